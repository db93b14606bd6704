"""Where a frame is: sinusoids of its place, or of its distance from another."""

import torch
from torch import Tensor


def sinusoids(positions: Tensor, dim: int) -> Tensor:
    """(T, dim) for (T) positions: sines, then cosines, of wavelengths from 2 pi to 20000 pi."""
    # constants: a runtime that computes them its own way has other angles, by 1e-4 at position 1000
    rates = torch.tensor([10000.0 ** (-i / dim) for i in range(0, dim, 2)], device=positions.device)
    angles = positions[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def frame_positions(frames: int, like: Tensor, first: int = 0) -> Tensor:
    """(T, D): what is added to the frames of `like` (N, T, D), the first of which is frame `first`."""
    places = torch.arange(first, first + frames, device=like.device)
    return sinusoids(places, like.shape[-1]).to(like.dtype)


def distance_positions(frames: int, like: Tensor) -> Tensor:
    """(2 T, D): distances key - query from -T to T - 1, as Transformer-XL's relative attention takes them.

    -T occurs between no two frames: the extra row makes `distance_scores` a mere view.
    """
    return sinusoids(torch.arange(-frames, frames, device=like.device), like.shape[-1]).to(like.dtype)


def distance_scores(scores: Tensor) -> Tensor:
    """(..., T, 2 T) scores of query and distance to (..., T, T) of query and key.

    Row i wants columns T - i to 2 T - i - 1: one further left with every row. Read the rows as one
    line, leave out its first T, and fold it again with rows one shorter: a view, nothing is moved.
    """
    frames = scores.shape[-2]
    return scores.flatten(-2)[..., frames:].unflatten(-1, (frames, 2 * frames - 1))[..., :frames]
