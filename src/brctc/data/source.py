"""Where the examples of a split come from, and how they are to be stored."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from brctc.data.features import FeatureConfig, StoredFeatures
from brctc.data.manifest import WordTime


class Loaded(NamedTuple):
    """An example with its data, as a source gives it: samples, features, or texts alone."""

    id: str
    texts: dict[str, str]
    samples: np.ndarray | None = None
    """(T) mono float32 at `sample_rate`."""
    sample_rate: int | None = None
    features: np.ndarray | None = None
    """(T, F), of a source that is not audio."""
    speaker: str | None = None
    word_times: tuple[WordTime, ...] | None = None


class ExampleError(ValueError):
    """An example that cannot be used, and everything that is wrong with it."""

    def __init__(self, *problems: str, id: str | None = None) -> None:
        """`id` is the example's, where it is not its item's: it is played at another speed."""
        super().__init__("; ".join(problems))
        self.problems, self.id = problems, id


class Source(Protocol):
    """The examples of one split, first as light items that are handed to the processes that prepare them.

    A source is pickled, so it holds nothing but descriptions.
    """

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    def digest(self) -> str:
        """Changes when the examples would be other ones."""
        ...

    def size(self) -> int:
        """How many items there are."""
        ...

    def items(self) -> Iterator[Any]:
        """Items with an `id`, in an order that never changes; a `Problem` in place of a malformed one."""
        ...

    def fingerprint(self, items: Sequence[Any]) -> str:
        """Changes when the files behind the items do."""
        ...

    def load(self, item: Any) -> Loaded:
        """The item's example; an ExampleError or ValueError says what is wrong with it."""
        ...


class CheckedSource(Source, Protocol):
    """A source that is looked at again when a training begins."""

    def lacks_files(self) -> bool:
        """Whether some of the files behind its items are gone: what is prepared does not need them."""
        ...


@dataclass(frozen=True)
class Storage:
    """What is stored of each example."""

    kind: Literal["features", "audio", "text"]
    """Features; audio, whose features are made when it is read; or texts alone."""
    features: StoredFeatures = None
    """How features are made of audio; None if the source is not audio."""
    feature_dim: int = 0
    frame_shift_s: float = 0.0
    speeds: tuple[float, ...] = (1.0,)
    """The speeds at which features are stored, or audio is to be heard in training."""

    @staticmethod
    def of_audio(
        features: FeatureConfig, kind: Literal["features", "audio"], speeds: Sequence[float]
    ) -> "Storage":
        """Storage for recordings."""
        check_speeds(speeds)
        return Storage(kind, features, features.dim, features.frame_shift_s, tuple(speeds))


def check_speeds(speeds: Sequence[float]) -> None:
    """Whole percents, since that is how audio is resampled."""
    for speed in speeds:
        if not 0.5 <= speed <= 2 or abs(100 * speed - round(100 * speed)) > 1e-6:
            raise ValueError(f"speeds has {speed:g}, expected 0.5 to 2 in whole hundredths")


def at_speed(
    id: str, times: Sequence[WordTime] | None, speed: float
) -> tuple[str, tuple[WordTime, ...] | None]:
    """An utterance's id and word times when it is played at another speed."""
    if speed != 1:
        id = f"{id}_sp{speed:g}"
    if times is None:
        return id, None
    return id, tuple(WordTime(word, round(a / speed, 6), round(b / speed, 6)) for word, a, b in times)
