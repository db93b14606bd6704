"""IWSLT 2014: talks with their translations, from the files of its archive, in the splits that papers use.

Training lines are cleaned as is usual: 1 to 175 tokens on each side, and neither side more than 1.5 times as
long as the other. Every 23rd line that is left is for development. Test is dev2010, dev2012, tst2010, tst2011
and tst2012, one after the other. Case and punctuation stay.

Papers count the tokens of Moses. Here a pattern counts them, which knows no abbreviations: on 18,000 pairs
of Tatoeba and Multi30k it keeps and drops the same ones as Moses's rules (sacremoses) but for 4. So the
sizes are near the usual 160,239, 7,283 and 6,750 of German and English, training and development need
not agree with them line by line, and test does.
"""

import html
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Literal

from brctc.data.corpora.base import CORPORA, TrainSize
from brctc.data.corpora.pairs import PairsConfig, PairSource, one_line
from brctc.data.manifest import Row, text_lines

TESTS = ("dev2010", "dev2012", "tst2010", "tst2011", "tst2012")
MOST_TOKENS, MOST_RATIO, DEV_EVERY = 175, 1.5, 23
TOKEN = re.compile(r"\d+(?:[.,]\d+)*(?:-?\w+)*|-?\w+(?:-\w+)*-?|(?<=\w)'\w+|\.{2,}|[^\w\s]")
"""About what Moses makes a token: words with their hyphens, numbers, 's and 't, and each other sign."""
_NOT_TEXT = re.compile(r"\s*</?(url|keywords|speaker|talkid|reviewer|translator|doc|transcript)\b[^>]*>")
_TEXT_TAG = re.compile(r"</?(?:title|description)>")
_SEGMENT = re.compile(r'\s*<seg\s+id="[^"]*">(.*)</seg>\s*')
_log = logging.getLogger("brctc.data")


@CORPORA.register
class IWSLT14Config(PairsConfig):
    """Talks of IWSLT 2014, from German or Spanish into English, in the splits that papers use."""

    title: ClassVar[str] = "IWSLT14"

    kind: Literal["iwslt14"] = "iwslt14"
    languages: Literal["de-en", "es-en"] = "de-en"
    """Whose files are read; the first is the text."""

    def published_size(self) -> TrainSize:
        return TrainSize(160_000)

    def current_sources(self) -> Mapping[str, PairSource]:
        return {}  # cleaning takes seconds

    def sources(self) -> Mapping[str, PairSource]:
        folder = self.source / self.languages
        folder = folder if folder.is_dir() else self.source
        texts, translations = (
            folder / f"train.tags.{self.languages}.{language}" for language in self.languages.split("-")
        )
        for path, partner in ((texts, translations), (translations, texts)):
            if not path.is_file():
                told = f"; {partner.name} is there without it" if partner.is_file() else ""
                raise ValueError(f"{path}: No such file or directory{told}")
        tests = _find_tests(folder, self.languages)
        return {
            "train": TalkLines(texts, translations, self.reverse, "train"),
            "dev": TalkLines(texts, translations, self.reverse, "dev"),
            "test": TalkSegments(tests, self.reverse),
        }


def _find_tests(folder: Path, languages: str) -> dict[str, tuple[Path, Path]]:
    """The files of every test set that is there; German ones of 2012 are called TEDX."""
    found = {}
    for name in TESTS:
        sides = []
        for language in languages.split("-"):
            ending = f"{name}.{languages}.{language}.xml"
            there = [folder / f"IWSLT14.{talks}.{ending}" for talks in ("TED", "TEDX")]
            sides.append(next((path for path in there if path.is_file()), None))
        match sides:
            case [Path() as first, Path() as second]:
                found[name] = (first, second)
            case [Path() as side, None] | [None, Path() as side]:
                first, second = languages.split("-")
                other = second if side is sides[0] else first
                missing = side.name.removesuffix("".join(side.suffixes[-2:])) + f".{other}.xml"
                raise ValueError(
                    f"{folder / missing}: No such file or directory; {side.name} is there without it"
                )
    if not found:
        raise ValueError(f"{folder} has none of IWSLT14.TED.{{{','.join(TESTS)}}}.{languages}.*.xml")
    return found


class TalkLines(PairSource):
    """Lines of the training talks. A line's id has its number among all texts of the file, so that it does
    not depend on the cleaning."""

    def __init__(
        self, texts: Path, translations: Path, reverse: bool, split: Literal["train", "dev"]
    ) -> None:
        super().__init__(f"{texts} and {translations.name} ({split})", reverse)
        self.texts, self.translations, self.split = texts, translations, split
        self._told = False

    def items(self) -> Iterator[Row]:
        _check_equal({path: sum(1 for _ in talk_lines(path)) for path in (self.texts, self.translations)})
        kept = empty = unequal = 0
        pairs = zip(talk_lines(self.texts), talk_lines(self.translations), strict=True)
        for number, (text, translation) in enumerate(pairs):
            if not (text and translation):
                empty += 1
            elif not lengths_fit(text, translation):
                unequal += 1
            else:
                kept += 1
                if (kept % DEV_EVERY == 0) == (self.split == "dev"):
                    yield Row(f"talks_{number:06d}", text, translation=translation)
        if not self._told and self.split == "train":
            self._told = True
            _log.warning(
                "%s: %d pairs; left out: %d with an empty side, %d too long or of too different lengths",
                self.name, kept, empty, unequal
            )  # fmt: skip


class TalkSegments(PairSource):
    """The segments of the test sets, one set after the other; their ids have the set and the number."""

    def __init__(self, files: Mapping[str, tuple[Path, Path]], reverse: bool) -> None:
        folder = next(iter(files.values()))[0].parent
        super().__init__(f"{folder} ({', '.join(files)})", reverse)
        self.files = files
        self._told = False

    def items(self) -> Iterator[Row]:
        empty = 0
        for name, paths in self.files.items():
            texts, translations = (list(segments(path)) for path in paths)
            _check_equal(dict(zip(paths, (len(texts), len(translations)), strict=True)))
            for number, (text, translation) in enumerate(zip(texts, translations, strict=True), start=1):
                if text and translation:
                    yield Row(f"{name}_{number:04d}", text, translation=translation)
                else:
                    empty += 1
        if empty and not self._told:
            self._told = True
            _log.warning("%s: left out: %d with an empty side", self.name, empty)


def talk_lines(path: Path) -> Iterator[str]:
    """The texts of a file with tags: all lines but those that tell of a talk; its title and description are
    texts. An empty line stays one, so that both languages can be counted."""
    for line in text_lines(path):
        if not _NOT_TEXT.match(line):
            yield one_line(html.unescape(_TEXT_TAG.sub("", line)))


def segments(path: Path) -> Iterator[str]:
    """The texts between <seg id="n"> and </seg>."""
    for number, line in enumerate(text_lines(path), start=1):
        if match := _SEGMENT.fullmatch(line):
            yield one_line(html.unescape(match[1]))
        elif "<seg" in line:
            raise ValueError(f'{path}: line {number} is not <seg id="n"> text </seg>')


def lengths_fit(text: str, translation: str) -> bool:
    """Whether two sides have as many tokens as translations do."""
    counts = [len(TOKEN.findall(side)) for side in (text, translation)]
    return min(counts) >= 1 and max(counts) <= min(MOST_TOKENS, MOST_RATIO * min(counts))


def _check_equal(counts: Mapping[Path, int]) -> None:
    (first, a), (second, b) = counts.items()
    if a != b:
        raise ValueError(
            f"{first} has {a} lines of text, {second} has {b}: they are not translations line by line"
        )
