"""Aishell-1 as it is published, through lhotse's own recipe."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from brctc.data.corpora.base import CORPORA, TrainSize
from brctc.data.corpora.mandarin import check_unpacked, mandarin
from brctc.data.corpora.published import PublishedConfig, rows_of
from brctc.data.manifest import Row, text_lines
from brctc.data.recordings import RowSource

FOLDER, TRANSCRIPT = "data_aishell", "transcript/aishell_transcript_v0.8.txt"
SPLITS = ("train", "dev", "test")
_log = logging.getLogger("brctc.data")


@CORPORA.register
class Aishell1Config(PublishedConfig):
    """Aishell-1, 178 hours of read Mandarin, in its own splits."""

    title: ClassVar[str] = "Aishell-1"

    kind: Literal["aishell1"] = "aishell1"
    source: Path
    """The folder data_aishell, or the one that holds it."""

    def published_size(self) -> TrainSize:
        return TrainSize(120_098, 150.9, 4231)

    def published_sources(self) -> Mapping[str, RowSource]:
        holder = _holder(self.source)
        _check(holder / FOLDER)
        rows = _read(holder)
        return {split: RowSource(rows[split], f"{self.source} ({split})") for split in SPLITS}


def _holder(source: Path) -> Path:
    """The folder that holds data_aishell, which is what lhotse looks for."""
    here = Path(os.path.abspath(source))
    if (here / FOLDER).is_dir():
        return here
    if here.name == FOLDER and here.is_dir():
        return here.parent
    raise ValueError(f"{source} has no folder {FOLDER}, and is not that folder")


def _check(folder: Path) -> None:
    """What lhotse's recipe takes for granted."""
    check_unpacked(folder / "wav")
    for split in SPLITS:
        if next((folder / "wav" / split).glob("*/*.wav"), None) is None:
            raise ValueError(f"{folder / 'wav' / split} has no speakers' folders with wav files")
    transcript = folder / TRANSCRIPT
    if not transcript.is_file():
        raise ValueError(f"{transcript}: No such file or directory")
    for number, line in enumerate(text_lines(transcript), start=1):
        if len(line.split()) < 2:
            raise ValueError(f"{transcript}: line {number} is {line!r}, expected an id and its text")


def _read(holder: Path) -> dict[str, list[Row]]:
    from lhotse.audio.utils import AudioLoadingError
    from lhotse.recipes import prepare_aishell

    try:
        with _summed_up(holder / FOLDER):
            manifests = prepare_aishell(holder)
    except AudioLoadingError as error:
        raise ValueError(str(error).splitlines()[0]) from None
    found = {}
    for split in SPLITS:
        rows = [replace(row, text=mandarin(row.text)) for row in rows_of(**manifests[split])]
        found[split] = sorted(rows, key=lambda row: row.id)  # the same order wherever the files are
    return found


@contextmanager
def _summed_up(folder: Path) -> Iterator[None]:
    """One warning for the hundreds of recordings without a transcript, instead of lhotse's two for each."""
    ids: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if message.startswith(start := "No transcript: "):
            ids.append(message.removeprefix(start))
        return not message.startswith(start) and not message.endswith("has no transcript.")

    root = logging.getLogger()
    root.addFilter(keep)
    try:
        yield
    finally:
        root.removeFilter(keep)
    if ids:
        _log.warning("%s: left out: %d without a transcript (%s first)", folder, len(ids), min(ids))
