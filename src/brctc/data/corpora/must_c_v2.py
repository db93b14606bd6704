"""MuST-C as it is published: English talks with their texts and translations.

lhotse's recipe gives the translations alone; here the English texts are read, too.

The entries of the YAML are read one by one with libyaml: 250,000 take 12 s, and need no memory. All at
once they take 38 s and 1.5 GB.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import yaml
from pydantic import Field

from brctc.data.corpora.base import CORPORA, TrainSize
from brctc.data.corpora.pairs import one_line
from brctc.data.corpora.published import LeftOut, PublishedConfig, Segment, StreamedRows, none_empty
from brctc.data.manifest import text_lines

SPLITS = ("train", "dev", "tst-COMMON", "tst-HE")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@CORPORA.register
class MustCConfig(PublishedConfig):
    """MuST-C v2: talks in English with translations, in its own splits, the test sets that are there."""

    title: ClassVar[str] = "MuST-C v2"

    kind: Literal["must-c-v2"] = "must-c-v2"
    source: Path
    """The folder of the languages, or the one that holds it."""
    languages: Annotated[str, Field(pattern="^en-[a-z]{2,3}$")] = "en-de"

    def published_size(self) -> TrainSize | None:
        return TrainSize(250_000, 450.0) if self.languages == "en-de" else None

    def split_names(self) -> Sequence[str]:
        return list(self._folders()) if self.source.is_dir() else SPLITS[:2]  # prepared elsewhere

    def published_sources(self) -> Mapping[str, StreamedRows]:
        return none_empty({split: Talks(folder, self.languages) for split, folder in self._folders().items()})

    def _folders(self) -> dict[str, Path]:
        """By split."""
        above = self.source / self.languages
        data = (above if above.is_dir() else self.source) / "data"
        found = {split: data / split for split in SPLITS if (data / split).is_dir()}
        for split in SPLITS[:2]:
            if split not in found:
                raise ValueError(f"{data / split}: No such file or directory")
        return found


class Place(NamedTuple):
    """Where a sentence is."""

    wav: str
    start_s: float
    duration_s: float
    speaker: str


class Talks(StreamedRows):
    """The sentences of a split. An id is the talk's name and the number of the sentence in it, from 0."""

    def __init__(self, folder: Path, languages: str) -> None:
        super().__init__(folder, f"{folder} ({languages})")
        self.places, self.texts, self.translations = (
            folder / "txt" / f"{folder.name}.{ending}" for ending in ("yaml", *languages.split("-"))
        )

    def read(self) -> Iterator[Segment | LeftOut]:
        for path in (self.places, self.texts, self.translations):
            if not path.is_file():
                raise ValueError(f"{path}: No such file or directory")
        sentences: Counter[str] = Counter()
        sides = (read_places(self.places), text_lines(self.texts), text_lines(self.translations))
        for place, text, translation in itertools.zip_longest(*sides):
            if place is None or text is None or translation is None:
                raise ValueError(self._unequal())
            talk = Path(place.wav).stem
            id = f"{talk}_{sentences[talk]:04d}"
            sentences[talk] += 1
            yield self._segment(id, place, one_line(text), one_line(translation))

    def _segment(self, id: str, place: Place, text: str, translation: str) -> Segment | LeftOut:
        if not (text and translation):
            return LeftOut(id, "with an empty side")
        return Segment(
            id,
            text,
            self.folder / "wav" / place.wav,
            place.duration_s,
            place.speaker,
            translation=translation,
            start_s=place.start_s,
        )

    def _unequal(self) -> str:
        counts = [f"{self.places} has {sum(1 for _ in read_places(self.places))} entries"]
        for path in (self.texts, self.translations):
            counts.append(f"{path.name} {sum(1 for _ in text_lines(path))} lines")
        return f"{', '.join(counts)}: they do not go together line by line"


def read_places(path: Path) -> Iterator[Place]:
    """The entries of a list in YAML, each `- {duration: 3.5, offset: 16.08, ...}`, on one line or more."""
    entry, first = "", 0
    for number, line in enumerate(text_lines(path), start=1):
        if not entry:
            first = number
        entry = f"{entry} {line.strip()}".strip()
        if entry.endswith("}"):
            yield _place(entry, f"{path}: line {first}")
            entry = ""
        elif entry and not entry.startswith("- {"):
            break
    if entry:
        raise ValueError(f"{path}: line {first} is not - {{duration: ..., offset: ..., wav: ...}}")


def _place(entry: str, where: str) -> Place:
    try:
        (content,) = yaml.load(entry, _LOADER)
        place = Place(
            str(content["wav"]),
            float(content["offset"]),
            float(content["duration"]),
            str(content["speaker_id"]),
        )
    except (yaml.YAMLError, KeyError, TypeError, ValueError):
        raise ValueError(
            f"{where} is {entry[:200]!r}, expected - {{duration: 1.5, offset: 9, speaker_id: s, wav: x.wav}}"
        ) from None
    if not 0 <= place.start_s < place.start_s + place.duration_s < float("inf"):
        raise ValueError(f"{where} has the offset {place.start_s:g} and the duration {place.duration_s:g}")
    return place
