"""The one door for a corpus: a TSV file with a header and a line per utterance.

Columns: id, text, path, duration; optional: speaker, start_sample, num_samples (a part of an audio
file that several utterances share), word_times ("word:start-end ..." in seconds). Others are kept, unread.
A relative path is relative to the manifest's folder.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from brctc.files import write_text

REQUIRED = ("id", "text", "path", "duration")
OPTIONAL = ("speaker", "start_sample", "num_samples", "word_times")
_WORD_TIME = re.compile(r"(.+):(\d+(?:\.\d*)?)-(\d+(?:\.\d*)?)")


class WordTime(NamedTuple):
    """When a word is spoken, in seconds from the start of its utterance."""

    word: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Row:
    """One line of a manifest; `duration` in seconds, samples counted at the audio file's own rate."""

    id: str
    text: str
    path: Path
    duration: float
    speaker: str | None = None
    start_sample: int | None = None
    num_samples: int | None = None
    word_times: tuple[WordTime, ...] | None = None
    others: tuple[tuple[str, str], ...] = ()
    """Names and values of columns that mean nothing here, for whoever writes the row again."""


class Problem(NamedTuple):
    """What is wrong with one utterance."""

    id: str
    what: str

    def __str__(self) -> str:
        return f"{self.id}: {self.what}"


class PreparationError(ValueError):
    """A corpus that cannot be used as it is; `problems` names every bad utterance."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        count = f"{len(self.problems)} problem" + "s" * (len(self.problems) != 1)
        super().__init__("\n  ".join([f"{source}: {count}", *map(str, self.problems)]))


def read_manifest(path: str | Path) -> list[Row]:
    """The manifest's rows; a PreparationError names every malformed line and every duplicate id."""
    rows, problems = parse_manifest(path)
    problems += duplicate_ids(rows)
    if problems:
        raise PreparationError(str(path), problems)
    return rows


def manifest_digest(path: str | Path) -> str:
    """Changes with what a manifest says, and not with columns that mean nothing here."""
    text = Path(path).read_bytes().decode("utf-8-sig", errors="replace")
    lines = [line.rstrip("\r").split("\t") for line in text.split("\n")]
    places = {name: i for i, name in enumerate(lines[0]) if name in (*REQUIRED, *OPTIONAL)}
    read = [[(name, line[i]) for name, i in sorted(places.items()) if i < len(line)] for line in lines]
    return hashlib.sha256(repr(read).encode()).hexdigest()


def parse_manifest(path: str | Path) -> tuple[list[Row], list[Problem]]:
    """The rows that can be read, and what is wrong with the others."""
    path = Path(path)
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    header = lines[0].rstrip("\r").split("\t")
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise ValueError(f"{path} lacks the columns {missing}; its first line says {header}")
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise ValueError(f"{path} has the columns {repeated} more than once")
    rows, problems = [], []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        values = line.rstrip("\r").split("\t")
        named = dict(zip(header, values, strict=False))
        try:
            if len(values) != len(header):
                raise ValueError(f"{len(values)} fields, expected the header's {len(header)}")
            rows.append(_parse_row(named, path.parent))
        except ValueError as error:
            problems.append(Problem(named.get("id", "").strip() or f"line {number}", str(error)))
    return rows, problems


def _parse_row(values: dict[str, str], folder: Path) -> Row:
    values = {name: value.strip() for name, value in values.items()}
    for name in ("id", "path"):
        if not values[name]:
            raise ValueError(f"the {name} is empty")
    return Row(
        id=values["id"],
        text=" ".join(values["text"].split()),
        path=folder / values["path"],
        duration=_parse_duration(values["duration"]),
        speaker=values.get("speaker") or None,
        start_sample=_parse_count("start_sample", values.get("start_sample"), least=0),
        num_samples=_parse_count("num_samples", values.get("num_samples"), least=1),
        word_times=parse_word_times(values.get("word_times")),
        others=tuple(item for item in values.items() if item[0] not in (*REQUIRED, *OPTIONAL)),
    )


def _parse_duration(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"duration is {value!r}, expected seconds above 0")
    return seconds


def _parse_count(name: str, value: str | None, least: int) -> int | None:
    if not value:
        return None
    if not value.isdecimal() or int(value) < least:
        raise ValueError(f"{name} is {value!r}, expected a whole number from {least}")
    return int(value)


def parse_word_times(value: str | None) -> tuple[WordTime, ...] | None:
    """ "bin:0.95-1.18 blue:1.18-1.36" as word times; None for nothing."""
    if not value:
        return None
    times = []
    for item in value.split():
        match = _WORD_TIME.fullmatch(item)
        if match is None:
            raise ValueError(f"word_times has {item!r}, expected word:start-end in seconds")
        times.append(WordTime(match[1], float(match[2]), float(match[3])))
    return tuple(times)


def duplicate_ids(rows: Iterable[Row]) -> list[Problem]:
    """A problem for every row whose id was used before."""
    seen: set[str] = set()
    problems = []
    for row in rows:
        if row.id in seen:
            problems.append(Problem(row.id, "the id is used by an earlier row"))
        seen.add(row.id)
    return problems


def write_manifest(path: str | Path, rows: Sequence[Row]) -> None:
    """Writes rows as `read_manifest` reads them; paths inside the manifest's folder become relative.

    The file is whole or not there; one of this name is replaced.
    """
    path = Path(path)
    columns = [*REQUIRED, *(name for name in OPTIONAL if any(getattr(row, name) is not None for row in rows))]
    others = list(dict.fromkeys(name for row in rows for name, _ in row.others))
    lines = ["\t".join([*columns, *others])]
    for row in rows:
        values = [_format(getattr(row, name), path.parent) for name in columns]
        values += [dict(row.others).get(name, "") for name in others]
        for name, value in zip([*columns, *others], values, strict=True):
            if set(value) & set("\t\n\r"):
                raise ValueError(f"{row.id}: the {name} {value!r} contains a tab or a line break")
        lines.append("\t".join(values))
    write_text(path, "\n".join(lines) + "\n")


def _format(value: object, folder: Path) -> str:
    match value:
        case None:
            return ""
        case Path():
            return str(value.relative_to(folder) if value.is_relative_to(folder) else value.absolute())
        case float():
            return f"{value:.6f}"
        case tuple():
            return " ".join(f"{word}:{start:.6f}-{end:.6f}" for word, start, end in value)
        case _:
            return str(value)
