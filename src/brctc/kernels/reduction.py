"""From a loss per utterance to the loss of a batch, as torch.nn.CTCLoss reduces it."""

import torch
from torch import Tensor


def check_reduction(reduction: str) -> None:
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f'reduction is {reduction!r}, expected "none", "mean" or "sum"')


def reduce_losses(losses: Tensor, target_lengths: Tensor, reduction: str, zero_infinity: bool) -> Tensor:
    """ "mean" divides each loss by its target length, then averages over the batch.

    native/bindings.cpp has the same for eager calls, where five small operators would cost as much
    as the loss of a small batch.
    """
    if zero_infinity:
        losses = losses.where(~losses.isinf(), 0.0)  # NaN, of what could not be read, is not hidden
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return torch.dot(losses, mean_weights(target_lengths.to(losses)))


def mean_weights(target_lengths: Tensor) -> Tensor:
    """What "mean" multiplies each loss by, in the dtype of the lengths, a floating-point one."""
    return 1 / (target_lengths.shape[0] * target_lengths.clamp(min=1))
