"""A user's own corpus: a TSV file with a header and a line per example.

Speech: id, text, path, duration; optional: translation, speaker, start_sample and num_samples (a part of an
audio file that several utterances share), word_times ("word:start-end ..." in seconds; of Chinese and
Japanese, words or characters).
Text to text: id, text and translation, without a path.
Other columns are kept, unread. A relative path is relative to the manifest's folder.
"""

import hashlib
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from brctc.files import write_text

REQUIRED = ("id", "text")
SPEECH = ("path", "duration")
OPTIONAL = ("translation", "speaker", "start_sample", "num_samples", "word_times")
COLUMNS = (*REQUIRED, *SPEECH, *OPTIONAL)
MOST_COLUMNS = 200
LONGEST_ID = 500
DUPLICATE = "the id is used by an earlier row"
_WORD_TIME = re.compile(r"(.+):(\d+(?:\.\d*)?)-(\d+(?:\.\d*)?)")


class WordTime(NamedTuple):
    """When a word or character is spoken, in seconds from the start of its utterance."""

    word: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Row:
    """One line of a manifest; `duration` in seconds, samples counted at the audio file's own rate."""

    id: str
    text: str
    path: Path | None = None
    """None for text alone."""
    duration: float | None = None
    speaker: str | None = None
    start_sample: int | None = None
    num_samples: int | None = None
    word_times: tuple[WordTime, ...] | None = None
    others: tuple[tuple[str, str], ...] = ()
    """Names and values of columns that mean nothing here, for whoever writes the row again."""
    translation: str | None = None

    @property
    def texts(self) -> dict[str, str]:
        """By name: what is said (`transcript`) or read (`source`), and its `translation` if there is one."""
        named = {"source" if self.path is None else "transcript": self.text}
        return named if self.translation is None else named | {"translation": self.translation}


class Problem(NamedTuple):
    """What is wrong with one example."""

    id: str
    what: str

    def __str__(self) -> str:
        """Safe to print, whatever is wrong with the id."""
        id = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in self.id[:LONGEST_ID])
        return f"{id}{'...' * (len(self.id) > LONGEST_ID)}: {self.what}"


class PreparationError(ValueError):
    """A corpus that cannot be used as it is; `problems` names every bad example."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        count = f"{len(self.problems)} problem" + "s" * (len(self.problems) != 1)
        super().__init__("\n  ".join([f"{source}: {count}", *map(str, self.problems)]))


def read_manifest(path: str | Path, needed: Sequence[str] = ()) -> list[Row]:
    """The manifest's rows; a PreparationError names every malformed line and every duplicate id.

    `needed` are the columns that it must have; by default those that training needs.
    """
    rows, problems = [], []
    for found in iterate_manifest(path, needed):
        (problems if isinstance(found, Problem) else rows).append(found)
    problems += duplicate_ids(row.id for row in rows)
    if problems:
        raise PreparationError(str(path), problems)
    return rows


def iterate_manifest(path: str | Path, needed: Sequence[str] = ()) -> Iterator[Row | Problem]:
    """Row after row, a problem in place of one that is malformed; a manifest need not fit into memory."""
    path = Path(path)
    lines = text_lines(path)
    header = next(lines, "").split("\t")
    _check_header(path, header, needed)
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        values = line.split("\t")
        named = dict(zip(header, values, strict=False))
        try:
            if len(values) != len(header):
                raise ValueError(f"{len(values)} fields, expected the header's {len(header)}")
            yield _parse_row(named, path.parent)
        except ValueError as error:
            yield Problem(named.get("id", "").strip() or f"line {number}", str(error))


def manifest_digest(path: str | Path) -> str:
    """Changes with what a manifest says, and not with columns that mean nothing here."""
    lines = text_lines(Path(path))
    header = next(lines, "").split("\t")
    places = sorted((name, i) for i, name in enumerate(header) if name in COLUMNS)
    digest = hashlib.sha256(repr([name for name, _ in places]).encode())
    for line in lines:
        values = line.split("\t")
        read = [values[i] for _, i in places if i < len(values)]
        digest.update("\t".join(read).encode() + b"\n")
    return digest.hexdigest()


def text_lines(path: Path) -> Iterator[str]:
    """A file's lines, decoded one by one, so that one that is not UTF-8 is named with its place."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                place = f"byte {error.start} of line {number}"
                raise ValueError(f"{path} is not UTF-8: {error.reason} at {place}") from None


def _check_header(path: Path, header: Sequence[str], needed: Sequence[str]) -> None:
    if len(header) > MOST_COLUMNS:
        raise ValueError(f"{path} has {len(header)} columns, expected at most {MOST_COLUMNS}")
    speech = any(name in header for name in SPEECH)
    of_training = (*REQUIRED, *(SPEECH if speech or "translation" not in header else ()))
    missing = [name for name in needed or of_training if name not in header]
    if missing:
        texts = "" if needed or speech or of_training == REQUIRED else ", or 'translation' for texts alone"
        raise ValueError(f"{path} lacks the columns {missing}{texts}; its first line says {list(header)}")
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise ValueError(f"{path} has the columns {repeated} more than once")


def _parse_row(values: dict[str, str], folder: Path) -> Row:
    values = {name: value.strip() for name, value in values.items()}
    for name in ("id", "path"):
        if not values.get(name, "-"):
            raise ValueError(f"the {name} is empty")
    if problem := id_problem(values["id"]):
        raise ValueError(problem)
    path, duration = values.get("path"), values.get("duration")
    translation = values.get("translation")
    return Row(
        id=values["id"],
        text=" ".join(values.get("text", "").split()),
        path=None if path is None else folder / path,
        duration=None if duration is None else _parse_duration(duration),
        speaker=values.get("speaker") or None,
        start_sample=_parse_count("start_sample", values.get("start_sample"), least=0),
        num_samples=_parse_count("num_samples", values.get("num_samples"), least=1),
        word_times=parse_word_times(values.get("word_times")),
        others=tuple(item for item in values.items() if item[0] not in COLUMNS),
        translation=None if translation is None else " ".join(translation.split()),
    )


def id_problem(id: str) -> str | None:
    """Why something cannot be an id: it becomes part of file names, tables and logs."""
    if len(id) > LONGEST_ID:
        return f"the id has {len(id)} characters, expected at most {LONGEST_ID}"
    if id.isprintable():  # of millions, most are
        return None
    odd = sorted({c for c in id if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")})
    if odd:
        return f"the id has control characters: {', '.join(f'U+{ord(c):04X}' for c in odd)}"
    return None


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


def duplicate_ids(ids: Iterable[str]) -> list[Problem]:
    """A problem for every id that was used before."""
    seen: set[str] = set()
    problems = []
    for id in ids:
        if id in seen:
            problems.append(Problem(id, DUPLICATE))
        seen.add(id)
    return problems


def write_manifest(path: str | Path, rows: Sequence[Row]) -> None:
    """Writes rows as `read_manifest` reads them; paths inside the manifest's folder become relative.

    The file is whole or not there; one of this name is replaced.
    """
    path = Path(path)
    texts = rows and all(row.path is None for row in rows)
    speech = () if texts else SPEECH
    columns = [*REQUIRED, *speech]
    columns += [name for name in OPTIONAL if any(getattr(row, name) is not None for row in rows)]
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
