"""How much of the encoder's output is left after trimming, and how much would have to be."""

from collections.abc import Iterable
from typing import NamedTuple


class DownSampling(NamedTuple):
    """Both over the whole corpus, not means of utterances."""

    factor: float
    """Kept frames / frames."""
    oracle: float
    """Labels / frames: no alignment fits into less."""


def down_sampling(
    lengths_before: Iterable[int], lengths_after: Iterable[int], target_lengths: Iterable[int]
) -> DownSampling:
    """The paper's DSF |h'|/|h| and its oracle |l|/|h|; lengths in encoder frames."""
    before, after, labels = (
        [int(n) for n in lengths] for lengths in (lengths_before, lengths_after, target_lengths)
    )
    if not len(before) == len(after) == len(labels):
        raise ValueError(
            f"{len(before)} lengths before, {len(after)} after trimming and {len(labels)} target lengths"
        )
    for n, (given, kept) in enumerate(zip(before, after, strict=True)):
        if not 0 <= kept <= given:
            raise ValueError(f"utterance {n} has {given} frames and keeps {kept}")
    frames = sum(before)
    if frames == 0:
        raise ValueError("no frames: there is no factor")
    return DownSampling(sum(after) / frames, sum(labels) / frames)
