"""A list in a JSON file, item by item: neither the file nor the list need fit into memory."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

BLOCK = 1 << 18
"""Characters that are read at once; no text inside an item is longer."""
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"[-+.eE0-9]*")


def iterate_json_list(path: Path, key: str) -> Iterator[Any]:
    """The items of the list that the file's object has under `key`; what else it has is passed over."""
    with path.open(encoding="utf-8-sig") as file:
        reader = _Reader(path, file)
        found = False
        reader.take("{")
        while reader.next() != "}":
            name = reader.value()
            reader.take(":")
            if name == key:
                found = True
                yield from _items(reader)
            else:
                reader.value()
            if reader.next() != "}":
                reader.take(",")
    if not found:
        raise ValueError(f"{path} has no {key!r}")


def _items(reader: "_Reader") -> Iterator[Any]:
    reader.take("[")
    while reader.next() != "]":
        yield reader.value()
        if reader.next() != "]":
            reader.take(",")
    reader.take("]")


class _Reader:
    """What was read of the file and is not yet used."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self._path, self._file = path, file
        self._decoder = json.JSONDecoder()
        self._text, self._at, self._used = "", 0, 0

    def next(self) -> str:
        """The next character that is not white space."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None, "no space is a match, too"
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                raise self._ends_early()

    def take(self, expected: str) -> None:
        """Goes on behind a sign."""
        if (found := self.next()) != expected:
            raise self._wrong(f"{found!r}, expected {expected!r}", self._at)
        self._at += 1

    def value(self) -> Any:
        """The next value, whole."""
        self.next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - error.pos > BLOCK:  # what is still to be read cannot mend it
                    raise self._wrong(error.msg, error.pos) from None
                if not self._more():
                    raise self._ends_early() from None
                continue
            except RecursionError:
                raise self._wrong("lists inside lists without end", self._at) from None
            if not _NUMBER.fullmatch(self._text, end) or not self._more():  # one may go on in the next block
                self._at = end
                return value

    def _more(self) -> bool:
        """Reads on; twice as much if a value is not whole, so that long ones are not decoded too often."""
        rest = self._text[self._at :]
        try:
            block = self._file.read(max(BLOCK, len(rest)))
        except UnicodeDecodeError as error:
            place = f"after character {self._used + len(self._text)}"
            raise ValueError(f"{self._path} is not UTF-8: {error.reason} {place}") from None
        self._used += self._at
        self._text, self._at = rest + block, 0
        return bool(block)

    def _wrong(self, what: str, place: int) -> ValueError:
        return ValueError(f"{self._path} is not JSON: {what} at character {self._used + place}")

    def _ends_early(self) -> ValueError:
        return self._wrong("it ends too early, or is wrong", self._at)
