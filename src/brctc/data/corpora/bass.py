"""Lines of the game "Beneath a Steel Sky": English speech, with its English text and German translation.

The folder has manifest.tsv, whose column `split` says what is for training, development and test.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from brctc.data.corpora.base import CORPORA, AudioCorpusConfig
from brctc.data.manifest import PreparationError, Problem, Row, read_manifest
from brctc.data.recordings import RowSource
from brctc.data.source import Source

SPLITS = ("train", "dev", "test")


@CORPORA.register
class BassConfig(AudioCorpusConfig):
    """Spoken lines of a game with their translations; its own splits, the test set if it is there."""

    title: ClassVar[str] = "Beneath a Steel Sky"
    small_scale: ClassVar[bool] = True

    kind: Literal["bass"] = "bass"
    source: Path
    """A manifest, or the folder of one (manifest.tsv), with the columns translation and split."""

    def split_names(self) -> Sequence[str]:
        return list(self.sources()) if self.source.exists() else SPLITS[:2]  # prepared elsewhere

    def sources(self) -> Mapping[str, Source]:
        manifest = self.source / "manifest.tsv" if self.source.is_dir() else self.source
        rows = read_manifest(manifest)
        if any(row.translation is None for row in rows):
            raise ValueError(f"{manifest} lacks the column 'translation'")
        problems = [problem for row in rows if (problem := _problem(row)) is not None]
        if problems:
            raise PreparationError(str(manifest), problems)
        parts: dict[str, list[Row]] = {split: [] for split in SPLITS}
        for row in rows:
            parts[_split(row)].append(row)
        for split in SPLITS[:2]:
            if not parts[split]:
                raise ValueError(f"{manifest} has no rows whose split is {split}")
        return {split: RowSource(part, f"{self.source} ({split})") for split, part in parts.items() if part}


def _split(row: Row) -> str:
    return dict(row.others).get("split", "")


def _problem(row: Row) -> Problem | None:
    if _split(row) not in SPLITS:
        return Problem(row.id, f"the split is {_split(row)!r}, expected {', '.join(SPLITS)}")
    return None
