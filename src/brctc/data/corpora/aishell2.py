"""Aishell-2 as it is published.

lhotse's recipe reads the iOS recordings alone, and the header of each of a million files before anything
begins; here the test sets of all three devices are read, and files when they are prepared.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from brctc.data.corpora.base import CORPORA, TrainSize
from brctc.data.corpora.mandarin import check_unpacked, mandarin
from brctc.data.corpora.published import LeftOut, PublishedConfig, StreamedRows, none_empty
from brctc.data.manifest import Row, text_lines

TRAINING, HELD_OUT = "AISHELL-2", "AISHELL-DEV-TEST-SET"
DEVICES = ("iOS", "Android", "Mic")
_NOT_SAID = re.compile(r"[\uff0c?]|(?<![a-zA-Z])'")


@CORPORA.register
class Aishell2Config(PublishedConfig):
    """Aishell-2, 1,000 hours of Mandarin; trained and watched with iOS, tested with the devices there are."""

    title: ClassVar[str] = "Aishell-2"

    kind: Literal["aishell2"] = "aishell2"
    source: Path
    """The folder that holds AISHELL-2 (or its iOS) and AISHELL-DEV-TEST-SET."""

    def published_size(self) -> TrainSize:
        return TrainSize(962_000, 1000.0, 5214)

    def split_names(self) -> Sequence[str]:
        return list(self._folders()) if self.source.is_dir() else ("train", "dev")  # prepared elsewhere

    def published_sources(self) -> Mapping[str, StreamedRows]:
        folders = self._folders()
        for folder in folders.values():
            if not (folder / "trans.txt").is_file():
                raise ValueError(f"{folder / 'trans.txt'}: No such file or directory")
            check_unpacked(folder / "wav")
        return none_empty({split: Recordings(folder) for split, folder in folders.items()})

    def _folders(self) -> dict[str, Path]:
        """By split."""
        tests = {device.lower(): self._find(f"{device}/test") for device in DEVICES}
        splits = {"train": self._find("iOS/data"), "dev": self._find("iOS/dev"), **tests}
        for split, below in (("train", "iOS/data"), ("dev", "iOS/dev")):
            if splits[split] is None:
                places = ", ".join(f"{place}/{below}" for place in (TRAINING, HELD_OUT))
                raise ValueError(f"{self.source} has none of {places}, {below}")
        return {split: folder for split, folder in splits.items() if folder is not None}

    def _find(self, below: str) -> Path | None:
        places = [self.source / place / below for place in (TRAINING, HELD_OUT, ".")]
        return next((folder for folder in places if folder.is_dir()), None)


class Recordings(StreamedRows):
    """A folder with trans.txt and, in folders of speakers, wav files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, str(folder))

    def read(self) -> Iterator[Row | LeftOut]:
        texts, heard = read_texts(self.folder / "trans.txt"), set()
        for path in _wavs(self.folder / "wav"):
            id = path.stem
            if id not in texts:
                yield LeftOut(id, "without a transcript")
            elif not (text := spoken(texts[id])):
                yield LeftOut(id, "without text")
            else:
                yield Row(id, text, path, speaker=path.parent.name)
            heard.add(id)
        for id in texts:
            if id not in heard:
                yield LeftOut(id, "without audio")


def read_texts(path: Path) -> dict[str, str]:
    """Of every line an id and, after white space, a text."""
    texts: dict[str, str] = {}
    for number, line in enumerate(text_lines(path), start=1):
        if not line.strip():
            continue
        id, *text = line.split(maxsplit=1)
        if id in texts:
            raise ValueError(f"{path}: line {number} has the id {id} of an earlier line")
        texts[id] = text[0] if text else ""
    return texts


def spoken(text: str) -> str:
    """Without the few signs that the corpus has: commas, question marks, hyphens, and quotes that are no
    apostrophes."""
    return mandarin(_NOT_SAID.sub("", text.replace("-", " ")))


def _wavs(folder: Path) -> Iterator[Path]:
    """In an order that is the same wherever they are."""
    for here, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            if name.endswith(".wav"):
                yield Path(here, name)
