"""NIST's CTM, as Kaldi writes alignments: utterance, channel, start, duration and word in each line."""

import math
from collections.abc import Collection
from pathlib import Path

from brctc.data.manifest import WordTime, text_lines

COMMENT = ";;"
LEAST_FIELDS = 5


def ctm_name(utterance: str) -> str:
    """An utterance in a CTM, whose fields are separated by spaces."""
    return "_".join(utterance.split())


def read_ctm(path: Path, wanted: Collection[str]) -> tuple[dict[str, list[WordTime]], dict[str, str]]:
    """The words of the utterances that are wanted, in the order of the lines; and of those that have a
    malformed line, what is wrong with the first. Lines of others are passed over.

    Behind the word there may be a confidence and more.
    """
    words: dict[str, list[WordTime]] = {}
    wrong: dict[str, str] = {}
    channels: dict[str, str] = {}
    for number, line in enumerate(text_lines(path), start=1):
        fields = line.split()
        if not fields or fields[0].startswith(COMMENT) or fields[0] not in wanted or fields[0] in wrong:
            continue
        name = fields[0]
        try:
            if len(fields) < LEAST_FIELDS:
                expected = "utterance, channel, start, duration and word"
                raise ValueError(f"{len(fields)} fields, expected {expected}")
            _, channel, start, duration, word, *others = fields
            if others and others[0] != "NA":
                _number("confidence", others[0])  # or else a word with a space in it
            if channels.setdefault(name, channel) != channel:
                raise ValueError(f"the channel is {channel}, before it was {channels[name]}")
            start_s, duration_s = _number("start", start), _number("duration", duration)
            words.setdefault(name, []).append(WordTime(word, start_s, start_s + duration_s))
        except ValueError as error:
            wrong[name] = f"line {number} of {path}: {error}"
            words.pop(name, None)
    return words, wrong


def _number(name: str, value: str) -> float:
    try:
        number = float(value) if value.isascii() and "_" not in value else math.nan
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"the {name} is {value!r}, expected a number from 0")
    return number
