"""Corpora that are one manifest, whose column `split` says what each row is for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from brctc.data.corpora.base import AudioCorpusConfig
from brctc.data.manifest import PreparationError, Problem, Row, read_manifest
from brctc.data.recordings import RowSource
from brctc.data.source import Source

NEEDED = ("train", "dev")


class SplitColumnConfig(AudioCorpusConfig):
    """A manifest with the column split, or the folder of one; its own splits, those that are there."""

    splits: ClassVar[tuple[str, ...]]
    """What the column may say; train and dev must be there."""
    columns: ClassVar[tuple[str, ...]] = ()
    """What else the manifest must have."""

    source: Path
    """A manifest, or the folder of one (manifest.tsv)."""

    @property
    def manifest(self) -> Path:
        return self.source / "manifest.tsv" if self.source.is_dir() else self.source

    def split_names(self) -> Sequence[str]:
        return list(self.sources()) if self.source.exists() else NEEDED  # prepared elsewhere

    def sources(self) -> Mapping[str, Source]:
        rows = read_manifest(self.manifest)
        for column in self.columns:
            if any(getattr(row, column) is None for row in rows):
                raise ValueError(f"{self.manifest} lacks the column {column!r}")
        problems = [problem for row in rows if (problem := self._problem(row)) is not None]
        if problems:
            raise PreparationError(str(self.manifest), problems)
        parts: dict[str, list[Row]] = {split: [] for split in self.splits}
        for row in rows:
            parts[_split(row)].append(row)
        for split in NEEDED:
            if not parts[split]:
                raise ValueError(f"{self.manifest} has no rows whose split is {split}")
        return {split: RowSource(part, f"{self.source} ({split})") for split, part in parts.items() if part}

    def _problem(self, row: Row) -> Problem | None:
        if _split(row) not in self.splits:
            return Problem(row.id, f"the split is {_split(row)!r}, expected {', '.join(self.splits)}")
        return None


def _split(row: Row) -> str:
    return dict(row.others).get("split", "")
