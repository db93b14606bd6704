"""Praat's TextGrids in either of its text formats, long and short, as forced aligners write them.

Praat itself reads no more than what stands alone: texts in quotes, numbers, and whether there are tiers; all
else is comment. So one reader is enough for both formats.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from brctc.data.manifest import WordTime

INTERVALS, POINTS = "IntervalTier", "TextTier"
_ITEM = re.compile(
    r'"(?P<text>[^"]*(?:""[^"]*)*)"'
    r"|(?<!\S)(?P<number>-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)(?!\S)"
    r"|(?<!\S)(?P<flag><exists>|<absent>)(?!\S)"
    r"|![^\n]*"
    r'|(?P<open>")'
)


def read_textgrid(path: Path, tier: str) -> list[WordTime]:
    """The intervals of a tier, empty ones too. With several speakers, aligners call it "anna - words"."""
    tiers = [(name, found) for name, found in _tiers(_decode(path), path) if found is not None]
    names = [name for name, _ in tiers]
    for chosen in (
        [found for name, found in tiers if name == tier],
        [found for name, found in tiers if name.endswith(f" - {tier}")],
    ):
        if len(chosen) > 1:
            raise ValueError(f"{path} has several tiers {tier!r} of intervals: {_listed(names)}")
        if chosen:
            return chosen[0]
    raise ValueError(f"{path} has no tier {tier!r} of intervals, but {_listed(names)}")


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _decode(path: Path) -> str:
    """Praat writes UTF-16 with its mark where a label is not ASCII, or UTF-8 if it is told to."""
    content = path.read_bytes()
    if content.startswith(b"ooBinaryFile"):
        raise ValueError(f"{path} is binary: save it as a text file")
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        name = encoding.removesuffix("-sig").upper()
        raise ValueError(f"{path} is not {name}: {error.reason} at byte {error.start}") from None


def _tiers(content: str, path: Path) -> Iterator[tuple[str, list[WordTime] | None]]:
    """The name of each tier with its intervals; None for a tier of points."""
    items = _Items(content, path)
    if not items.text("File type").startswith("ooTextFile") or items.text("Object class") != "TextGrid":
        raise ValueError(f"{path} is not a TextGrid in text format")
    start_s, _ = items.number("xmin"), items.number("xmax")
    if start_s != 0:
        raise ValueError(f"{path} begins at {start_s:g} s, expected 0: the start of the utterance")
    for _ in range(items.count("size") if items.exist() else 0):
        kind, name = items.text("class"), items.text("name")
        if kind not in (INTERVALS, POINTS):
            raise items.error(f"the class of tier {name!r} is {kind!r}, expected {INTERVALS} or {POINTS}")
        items.number("xmin")
        items.number("xmax")
        found = []
        for _ in range(items.count("size")):
            start_s = items.number("xmin")
            end_s = items.number("xmax") if kind == INTERVALS else start_s
            found.append(WordTime(items.text("text").strip(), start_s, end_s))
        yield name, found if kind == INTERVALS else None


class _Items:
    """What stands alone in a file, one after the other."""

    def __init__(self, content: str, path: Path) -> None:
        self._content, self._path, self._place = content, path, 0
        self._found = (item for item in _ITEM.finditer(content) if not item[0].startswith("!"))

    def text(self, what: str) -> str:
        return self._next(what, "text").replace('""', '"')

    def number(self, what: str) -> float:
        return float(self._next(what, "number"))

    def count(self, what: str) -> int:
        value = self._next(what, "number")
        if not value.isdecimal():
            raise self.error(f"the {what} is {value}, expected a whole number")
        return int(value)

    def exist(self) -> bool:
        return self._next("tiers", "flag") == "<exists>"

    def error(self, what: str) -> ValueError:
        line = 1 + self._content.count("\n", 0, self._place)
        return ValueError(f"{self._path}: line {line}: {what}")

    def _next(self, what: str, kind: str) -> str:
        item = next(self._found, None)
        if item is None:
            raise ValueError(f"{self._path} is truncated: it ends before {what}")
        self._place = item.start()
        if item["open"]:
            raise self.error("a text in quotes does not end: the file is truncated")
        if item[kind] is None:
            raise self.error(f"expected {what}, a {kind}, found {item[0][:40]!r}")
        return item[kind]
