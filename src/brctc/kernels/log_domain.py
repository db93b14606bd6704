"""What both references share: they compute with logarithms, and mark what cannot be computed."""

import math

import torch
from torch import Tensor

NEVER = -1e30
"""The log probability of an impossible event: finite, so that gradients stay clean."""


def unfit(
    targets: Tensor,
    lengths: Tensor,
    target_lengths: Tensor,
    frames: int,
    classes: int,
    blank: int,
    least_frames: int = 1,
) -> Tensor:
    """(N): whether lengths or labels are out of range. All on one device, which nothing waits for."""
    asked = torch.arange(targets.shape[1], device=targets.device) < target_lengths[:, None]
    no_label = asked & ((targets < 0) | (targets >= classes) | (targets == blank))
    out = (lengths < least_frames) | (lengths > frames)
    return out | (target_lengths < 0) | (target_lengths > targets.shape[1]) | no_label.any(1)


def unreadable_rows(logits: Tensor) -> Tensor:
    """Whether a softmax over the last axis has no value: NaN or +inf in the row, or nothing but -inf."""
    top = logits.detach().amax(-1)
    return ~((top < math.inf) & (top > -math.inf))
