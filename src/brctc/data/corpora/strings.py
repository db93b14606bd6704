"""What corpora of digit strings have in common: how many strings, how long."""

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from brctc.config import Config
from brctc.data.corpora.base import Size

SPLITS = ("train", "dev", "test")


class StringItem(NamedTuple):
    """One string of a split."""

    id: str
    number: int


class StringsConfig(Config):
    """Sizes of the splits and lengths of the strings."""

    train_strings: Size = 4000
    dev_strings: Size = 300
    test_strings: Size = 1000
    min_digits: Size = 3
    max_digits: Size = 8
    short_share: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Share of the training strings that have 1 to min_digits digits, for a length curriculum."""
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        if self.min_digits > self.max_digits:
            raise ValueError(f"min_digits {self.min_digits} is above max_digits {self.max_digits}")
        return self

    def num_strings(self, split: str) -> int:
        """Strings of a split."""
        return {"train": self.train_strings, "dev": self.dev_strings, "test": self.test_strings}[split]

    def string_rng(self, split: str, index: int) -> np.random.Generator:
        """What decides a string: its own generator, so that it does not depend on the others."""
        return np.random.default_rng([self.seed, SPLITS.index(split), index])

    def draw_num_digits(self, split: str, rng: np.random.Generator) -> int:
        """The length of a string."""
        short = split == "train" and rng.random() < self.short_share
        low, high = (1, self.min_digits) if short else (self.min_digits, self.max_digits)
        return int(rng.integers(low, high, endpoint=True))


class StringsSource:
    """The strings of a split, by their numbers; how one is made is up to a subclass."""

    def __init__(self, name: str, split: str, size: int) -> None:
        self.name, self.split, self._size = name, split, size

    def size(self) -> int:
        return self._size

    def items(self) -> Iterator[StringItem]:
        return (StringItem(f"{self.split}-{number:05d}", number) for number in range(self._size))

    def fingerprint(self, items: Sequence[StringItem]) -> str:
        return ""
