"""What corpora of digit strings have in common: how many strings, how long."""

from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from brctc.config import Config

SPLITS = ("train", "dev", "test")

Size = Annotated[int, Field(ge=1)]


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

    @property
    def total_strings(self) -> int:
        """Strings of all splits."""
        return sum(map(self.num_strings, SPLITS))

    def string_rng(self, split: str, index: int) -> np.random.Generator:
        """What decides a string: its own generator, so that it does not depend on the others."""
        return np.random.default_rng([self.seed, SPLITS.index(split), index])

    def draw_num_digits(self, split: str, rng: np.random.Generator) -> int:
        """The length of a string."""
        short = split == "train" and rng.random() < self.short_share
        low, high = (1, self.min_digits) if short else (self.min_digits, self.max_digits)
        return int(rng.integers(low, high, endpoint=True))
