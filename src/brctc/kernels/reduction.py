"""From a loss per utterance to the loss of a batch, as torch.nn.CTCLoss reduces it."""

import torch
from torch import Tensor


def reduce_losses(losses: Tensor, target_lengths: Tensor, reduction: str, zero_infinity: bool) -> Tensor:
    """ "mean" divides each loss by its target length, then averages over the batch.

    native/bindings.cpp has the same for eager calls, where five small operators would cost as much
    as the loss of a small batch.
    """
    if zero_infinity:
        losses = losses.where(losses.isfinite(), 0.0)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    lengths = target_lengths.clamp(min=1).to(losses)
    return torch.dot(losses, 1 / (losses.shape[0] * lengths))
