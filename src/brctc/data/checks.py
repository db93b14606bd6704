"""What can be wrong with an example's texts: characters, times, and too many tokens for its frames."""

import hashlib
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from brctc.data.batch import SOURCE, Example
from brctc.data.manifest import Row
from brctc.data.subsampling import subsampled_frames
from brctc.data.tokens import UNKNOWN_ID, TokenConfig, Tokenizer, split_text
from brctc.data.units import count_parts
from brctc.files import write_json

DURATION_TOLERANCE_S = 0.1
"""How far the manifest's seconds may be from the audio's: enough for roundings and codecs' delays."""
TooLong = Literal["refused", "counted", "ignored"]
NOT_TEXT = ("Cc", "Cn", "Co", "Cs")
"""Unicode categories that no text needs: control, unassigned, private use, surrogate."""


def text_problems(name: str, text: str) -> list[str]:
    """What is wrong with a text as such; `name` is what the problem calls it."""
    problems = []
    if not text.strip():
        problems.append(f"the {name} is empty")
    odd = sorted(c for c in set(text) if c == "\ufffd" or unicodedata.category(c) in NOT_TEXT)
    if odd:
        codes = ", ".join(f"U+{ord(c):04X}" for c in odd)
        problems.append(f"the {name} has characters that are not text: {codes}")
    return problems


def row_problems(row: Row) -> list[str]:
    """What is wrong with a row that can be seen without reading its audio."""
    problems = text_problems("text", row.text)
    if row.translation is not None:
        problems += text_problems("translation", row.translation)
    if row.path is not None and not row.path.is_file():
        problems.append(f"{row.path}: no such file")
    return problems + word_time_problems(row)


def word_time_problems(row: Row) -> list[str]:
    """What is wrong with when its words are said."""
    if row.word_times is None or row.duration is None:
        return []
    words = [time.word for time in row.word_times]
    if count_parts(words, row.text) is None:
        return [f"word_times say {' '.join(words)!r}, the text says {row.text!r}"]
    before = 0.0
    for word, start_s, end_s in row.word_times:
        if not before <= start_s <= end_s <= row.duration + DURATION_TOLERANCE_S:
            return [f"word_times have {word!r} from {start_s:g} to {end_s:g} s: out of order or too late"]
        before = start_s
    return []


@dataclass(frozen=True)
class LengthCheck:
    """Whether CTC can align a text with what an encoder leaves of the frames.

    Tokens are counted by a tokenizer; characters and words can be counted before there is one.
    """

    tokens: Tokenizer | TokenConfig
    subsampling: int
    text: str = "transcript"
    too_long: TooLong = "refused"
    """What becomes of a text with more tokens than frames: CTC cannot align it. One frame must be left."""
    up_sampling: int = 1
    source: Tokenizer | None = None
    """Counts the frames of an example whose source is text."""

    @property
    def kind(self) -> str:
        """What a token is."""
        return self.tokens.kind

    def digest(self) -> str:
        """Changes with what is checked."""
        tokens = self.tokens.to_dict() if isinstance(self.tokens, Tokenizer) else self.tokens.model_dump()
        source = self.source and self.source.to_dict()
        rules = [tokens, self.subsampling, self.text, self.too_long, self.up_sampling, source]
        content = json.dumps(rules, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def encode(self, text: str) -> Sequence[Any]:
        """The text's tokens, as numbers or as they are written."""
        if isinstance(self.tokens, Tokenizer):
            return self.tokens.encode(text)
        return split_text(self.tokens.kind, text)

    def frames(self, example: Example) -> int:
        """Of an example, before the encoder: feature frames, or tokens of its source."""
        if self.source is None:
            return example.num_frames
        return len(self.source.encode(example.texts.get(SOURCE, "")))

    def too_short(self, frames: int) -> str | None:
        """Says so if the encoder leaves nothing of the frames."""
        if frames == 0:
            heard = self.source is None
            return "the audio is too short for one frame" if heard else "the source has no token"
        if subsampled_frames(frames, self.subsampling) <= 0:
            left = f"{self.subsampling}x subsampling leaves nothing of its {frames} frames"
            return f"the audio is too short: {left}"
        return None

    def too_many(self, tokens: Sequence[Any], frames: int) -> str | None:
        """Says so if the tokens do not fit into what the encoder makes of the frames."""
        given = self.up_sampling * subsampled_frames(frames, self.subsampling)
        needed = len(tokens) + sum(a == b for a, b in pairwise(tokens))
        if needed <= given:
            return None
        if self.source is None:
            has = f"the audio has {given} after {self.subsampling}x subsampling"
        else:
            has = f"the source has {given} after {self.up_sampling}x up-sampling"
        return (
            f"the {self.text} is too long: its {len(tokens)} tokens ({self.kind}) need {needed} frames, {has}"
        )

    def problem(self, tokens: Sequence[Any], frames: int) -> str | None:
        """Why an example cannot be used, if it cannot."""
        refused = self.too_long == "refused"
        return self.too_short(frames) or (self.too_many(tokens, frames) if refused else None)


@dataclass
class LabelCounts:
    """What a tokenizer makes of a split's texts, in sum."""

    labels: int = 0
    unknown: int = 0
    example: str = ""
    """The first example with a token that the vocabulary lacks."""
    fewest: int = 0
    most: int = 0
    texts: int = 0
    too_long: list[str] = field(default_factory=list)
    """Examples whose text has more tokens than frames, where these are counted."""

    def add(self, id: str, tokens: Sequence[Any], *, too_long: bool = False) -> None:
        """Counts one more text."""
        count = len(tokens)
        if too_long:
            self.too_long.append(id)
        self.fewest = min(self.fewest, count) if self.texts else count
        self.most = max(self.most, count)
        self.labels += count
        self.texts += 1
        if UNKNOWN_ID in tokens:
            self.unknown += list(tokens).count(UNKNOWN_ID)
            self.example = self.example or id

    def merge(self, other: "LabelCounts") -> None:
        """Adds what was counted elsewhere, behind this."""
        if other.texts:
            self.fewest = min(self.fewest, other.fewest) if self.texts else other.fewest
            self.most = max(self.most, other.most)
            self.example = self.example or other.example
        self.too_long += other.too_long
        self.labels += other.labels
        self.unknown += other.unknown
        self.texts += other.texts


def check_file_of(directory: Path, split: str, check: LengthCheck) -> Path:
    """Where the result of a check is stored."""
    return directory / f"{split}.checks" / f"{check.digest()[:16]}.json"


def store_labels(path: Path, key: str, labels: LabelCounts) -> None:
    """Keeps what a check has found of the split with this key."""
    write_json(path, {"of": key, "labels": asdict(labels)})
