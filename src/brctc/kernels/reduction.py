"""From a loss per utterance to the loss of a batch, as torch.nn.CTCLoss reduces it."""

from typing import NamedTuple

import torch
from torch import Tensor


class Reduction(NamedTuple):
    """What is made of the losses (N) of a batch."""

    kind: str  # "none", "sum", or "mean": each loss divided by its target length, then their average
    zero_infinity: bool = False  # an infinite loss counts as zero

    def check(self) -> None:
        if self.kind not in ("none", "mean", "sum"):
            raise ValueError(f'reduction is {self.kind!r}, expected "none", "mean" or "sum"')


def reduce_losses(losses: Tensor, target_lengths: Tensor, reduction: Reduction) -> Tensor:
    """The reduced loss. native/ctc_bindings.cpp reduces too, for eager CPU calls: five small operators cost
    as much as the loss of a small batch."""
    if reduction.zero_infinity:
        losses = losses.where(~losses.isinf(), 0.0)  # NaN, of what could not be read, is not hidden
    if reduction.kind == "none":
        return losses
    if reduction.kind == "sum":
        return losses.sum()
    return torch.dot(losses, mean_weights(target_lengths.to(losses)))


def mean_weights(target_lengths: Tensor) -> Tensor:
    """What "mean" multiplies each loss by, in the dtype of the lengths, a floating-point one."""
    return 1 / (target_lengths.shape[0] * target_lengths.clamp(min=1))
