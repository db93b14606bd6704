"""Mean and deviation of features, summed up shard by shard."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

SMALLEST_DEVIATION = 1e-5  # a bin that never changes


class Statistics(NamedTuple):
    """Of all frames: how many, the mean of each bin, and the sum of squared differences from it."""

    frames: int
    mean: np.ndarray
    squares: np.ndarray

    @staticmethod
    def of(features: np.ndarray) -> "Statistics":
        """Of (T, F) frames."""
        values = features.astype(np.float64)
        mean = values.mean(0)
        return Statistics(len(values), mean, np.square(values - mean).sum(0))

    def __add__(self, other: "Statistics") -> "Statistics":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Of both together (Chan et al., 1979): nothing cancels, however large the means are."""
        frames = self.frames + other.frames
        step = other.mean - self.mean
        mean = self.mean + step * (other.frames / frames)
        squares = self.squares + other.squares + np.square(step) * (self.frames * other.frames / frames)
        return Statistics(frames, mean, squares)

    @property
    def deviation(self) -> np.ndarray:
        """Of each bin; 1 where it never changes."""
        found = np.sqrt(self.squares / self.frames)
        found[found < SMALLEST_DEVIATION] = 1
        return found

    def to_json(self) -> dict[str, Any]:
        """As plain data, exactly."""
        return {"frames": self.frames, "mean": self.mean.tolist(), "squares": self.squares.tolist()}

    @staticmethod
    def from_json(content: dict[str, Any]) -> "Statistics":
        """What `to_json` gave."""
        return Statistics(content["frames"], np.array(content["mean"]), np.array(content["squares"]))


def add_up(parts: Iterable[Statistics]) -> Statistics | None:
    """Of all parts together, in their order; None if there are none."""
    total = None
    for part in parts:
        total = part if total is None else total + part
    return total
