"""What texts are counted in: errors in words or characters, and times in what is heard as one.

With errors of words, times are of words: what spaces separate. With errors of characters (`char` tokens),
they are of words too where texts have words, as in English: no aligner says when a letter is said, and nobody
waits for one. Chinese and Japanese put no spaces between words, so there each character has a time of its
own, as in the paper; a word of Latin letters among them has one. 想听let it go is 想, 听, let, it and go.
"""

import re
from collections.abc import Sequence
from typing import Literal

from brctc.data.manifest import WordTime
from brctc.data.tokens import UNKNOWN_TEXT

Unit = Literal["word", "char"]
_UNSPACED = (
    "\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff"
)
"""Ideographs and kana, with the signs that repeat or lengthen them."""
_IDEOGRAPH = re.compile(f"[{_UNSPACED}]")
_ALONE = _UNSPACED + UNKNOWN_TEXT
_MARKS = rf"[^\w{_ALONE}]*"
_PART = re.compile(rf"(?:^{_MARKS})?(?:[{_ALONE}]{_MARKS}|[^\W{_UNSPACED}][^{_ALONE}]*)")


def unit_of(tokens: str) -> Unit:
    """What the errors of a system with tokens of this kind are counted in."""
    return "char" if tokens == "char" else "word"


def timed_units(text: str, unit: Unit) -> list[str]:
    """The parts of a text that have a time each, where errors are counted in this unit.

    Without its spaces, the text is all of them in a row: punctuation belongs to the part before it, or to the
    first one.
    """
    words = text.split()
    return words if unit == "word" else [part for word in words for part in _parts(word)]


def _parts(word: str) -> list[str]:
    return _PART.findall(word) if _IDEOGRAPH.search(word) else [word]


def count_parts(parts: Sequence[str], text: str) -> list[int] | None:
    """How many of the parts make up each word of a text; None if they do not.

    A part is a word, or one or more of the characters that could have a time of their own.
    """
    counts, end = [], 0
    for word in text.split():
        start, rest = end, word
        while rest and end < len(parts) and parts[end] and rest.startswith(parts[end]):
            rest = rest[len(parts[end]) :]
            end += 1
        if rest or [unit for part in parts[start:end] for unit in _parts(part)] != _parts(word):
            return None
        counts.append(end - start)
    return counts if end == len(parts) else None


def times_in(unit: Unit, times: Sequence[WordTime], text: str) -> tuple[WordTime, ...]:
    """A text's reference times in the unit that errors are counted in.

    A word of several characters is shared evenly by them: all that can be said without their sounds. A word
    whose characters have times lasts from the first to the last.
    """
    if unit == "char":
        return tuple(part for time in times for part in share_evenly(time, timed_units(time.word, "char")))
    counts = count_parts([time.word for time in times], text)
    if counts is None:  # a corpus's own idea of words
        return tuple(times)
    words, end = [], 0
    for word, count in zip(text.split(), counts, strict=True):
        words.append(WordTime(word, times[end].start_s, times[end + count - 1].end_s))
        end += count
    return tuple(words)


def share_evenly(time: WordTime, parts: Sequence[str]) -> list[WordTime]:
    """The parts of a word, each for as long as the others."""
    if len(parts) == 1:
        return [WordTime(parts[0], time.start_s, time.end_s)]
    each = (time.end_s - time.start_s) / len(parts)
    starts = [time.start_s + k * each for k in range(len(parts))]
    return [
        WordTime(part, *edges)
        for part, edges in zip(parts, zip(starts, [*starts[1:], time.end_s], strict=True), strict=True)
    ]
