"""Rows of a manifest as a source of examples: every row checked, its audio read, every problem named."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from brctc.data.audio import AudioError, AudioFile
from brctc.data.checks import DURATION_TOLERANCE_S, row_problems
from brctc.data.manifest import Problem, Row, iterate_manifest, manifest_digest
from brctc.data.source import ExampleError, Loaded

Audio = tuple[np.ndarray, int]
"""Samples and their rate."""


class RowSource:
    """A manifest, or rows in memory. Speech or texts alone, as its columns say."""

    def __init__(self, rows: str | Path | Sequence[Row], name: str | None = None) -> None:
        self._rows = rows
        self.name = name or (str(rows) if isinstance(rows, str | Path) else "rows")
        self._open: AudioFile | None = None

    def digest(self) -> str:
        if isinstance(self._rows, str | Path):
            return manifest_digest(self._rows)
        rows = [replace(row, path=row.path and Path(os.path.abspath(row.path))) for row in self._rows]
        return hashlib.sha256(repr(rows).encode()).hexdigest()

    def size(self) -> int:
        if isinstance(self._rows, str | Path):
            with open(self._rows, "rb") as file:
                return sum(1 for line in file if line.strip()) - 1
        return len(self._rows)

    def items(self) -> Iterator[Row | Problem]:
        return iterate_manifest(self._rows) if isinstance(self._rows, str | Path) else iter(self._rows)

    def fingerprint(self, items: Sequence[Row]) -> str:
        """Of the audio files: their sizes and when they were written, however their folder is called."""
        digest = hashlib.sha256()
        for path in dict.fromkeys(item.path for item in items if item.path is not None):
            found = path.stat() if path.exists() else None
            digest.update(repr((path.name, found and (found.st_size, found.st_mtime_ns))).encode())
        return digest.hexdigest()

    def lacks_files(self) -> bool:
        """Whether some of the audio is not there."""
        paths = (row.path for row in self.items() if isinstance(row, Row))
        return any(path is not None and not path.exists() for path in paths)

    def load(self, item: Row) -> Loaded:
        if problems := row_problems(item):
            raise ExampleError(*problems)
        if item.path is None:
            return Loaded(item.id, item.texts)
        samples, rate = self._read(self._opened(item.path), item)
        return Loaded(item.id, item.texts, samples, rate, speaker=item.speaker, word_times=item.word_times)

    def _read(self, file: AudioFile, row: Row) -> Audio:
        return read_row(file, row)

    def _opened(self, path: Path) -> AudioFile:
        """Rows of one file usually follow one another: it stays open until another one is asked for."""
        if self._open is None or self._open.path != path:
            if self._open is not None:
                self._open.close()
            self._open = None
            self._open = AudioFile(path)
        return self._open

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": None}


def read_row(file: AudioFile, row: Row) -> Audio:
    """The part of an audio file that a row speaks of."""
    samples = file.read(row.start_sample or 0, row.num_samples)
    seconds = len(samples) / file.sample_rate
    if row.duration is not None and abs(seconds - row.duration) > DURATION_TOLERANCE_S:
        raise AudioError(f"{row.path}: {seconds:.2f} s of audio, the manifest says {row.duration:.2f} s")
    return samples, file.sample_rate


def read_by_file(rows: Sequence[Row]) -> Iterator[tuple[Row, Audio | AudioError]]:
    """Every row with its audio or what is wrong with it; file by file, so that each is decoded once."""
    by_file: dict[Path, list[Row]] = {}
    for row in rows:
        if row.path is None:
            yield row, AudioError(f"{row.id}: there is no audio, only text")
        else:
            by_file.setdefault(row.path, []).append(row)
    for path, sharing in by_file.items():
        try:
            file = AudioFile(path)
        except AudioError as error:
            yield from ((row, error) for row in sharing)
            continue
        with file:
            for row in sorted(sharing, key=lambda row: row.start_sample or 0):
                try:
                    yield row, read_row(file, row)
                except AudioError as error:
                    yield row, error
