"""From a loss per utterance to the loss of a batch, as torch.nn.CTCLoss reduces it."""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

ReductionKind = Literal["none", "mean", "sum", "batchmean"]
"""(N); each loss divided by its target length, then their average; the sum; the average of the losses."""


class Reduction(NamedTuple):
    """What is made of the losses (N) of a batch."""

    kind: ReductionKind
    zero_infinity: bool = False  # an infinite loss counts as zero

    def check(self) -> None:
        if self.kind not in get_args(ReductionKind):
            kinds = ", ".join(f'"{kind}"' for kind in get_args(ReductionKind))
            raise ValueError(f"reduction is {self.kind!r}, expected one of {kinds}")


def reduce_losses(losses: Tensor, target_lengths: Tensor, reduction: Reduction) -> Tensor:
    """The reduced loss. native/ctc_bindings.cpp reduces too, for eager CPU calls: five small operators cost
    as much as the loss of a small batch."""
    if reduction.zero_infinity:
        losses = losses.where(~losses.isinf(), 0.0)  # NaN, of what could not be read, is not hidden
    if reduction.kind == "none":
        return losses
    if reduction.kind == "sum":
        return losses.sum()
    return torch.dot(losses, loss_weights(reduction.kind, target_lengths.to(losses)))


def loss_weights(kind: ReductionKind, target_lengths: Tensor) -> Tensor:
    """What each loss counts in the reduced one, in the dtype of the lengths, a floating-point one."""
    batch = target_lengths.shape[0]
    if kind == "mean":
        return 1 / (batch * target_lengths.clamp(min=1))
    return torch.full_like(target_lengths, 1 / batch if kind == "batchmean" else 1.0)
