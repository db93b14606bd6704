"""How many frames an encoder's convolutions leave: known to the data, which is checked against it."""

from torch import Tensor

WINDOW = 7  # feature frames that a subsampled frame sees


def subsampled_frames(frames: int, factor: int) -> int:
    """(frames - 7) // factor + 1, or all for factor 1; 0 or less is too short.

    Windows lie inside the utterance (no padding), so nothing beyond its end can be seen.
    """
    return frames if factor == 1 else (frames - WINDOW) // factor + 1


def frames_to_enter(lengths: Tensor, factor: int) -> Tensor:
    """The fewest frames of which `lengths` frames come out, 1 or more."""
    return lengths if factor == 1 else factor * (lengths - 1) + WINDOW


def subsampled_lengths(lengths: Tensor, factor: int) -> Tensor:
    """`subsampled_frames` of a batch."""
    return lengths if factor == 1 else (lengths - WINDOW).div(factor, rounding_mode="floor") + 1
