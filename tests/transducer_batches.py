"""Batches for the transducer loss, and for it behind a joint network."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

import brctc

BACKENDS = ["cpu", "reference"]


class Batch(NamedTuple):
    logits: Tensor
    targets: Tensor
    logit_lengths: Tensor
    target_lengths: Tensor
    blank: int

    def loss(self, **options) -> Tensor:
        return brctc.transducer_loss(*self[:4], **{"reduction": "none", "blank": self.blank, **options})

    def loss_and_grad(self, upstream, **options):
        logits = self.logits.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        loss = self._replace(logits=logits).loss(**options)
        (grad,) = torch.autograd.grad(loss, logits, upstream.to(loss))
        return loss.detach(), grad


def random_batch(N, T, U, C, *, blank=0, spread=2.0, dtype=torch.double, seed=0) -> Batch:
    """Lengths vary, the first utterance is full; padding holds values that must not be read."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(N, T, U + 1, C, dtype=dtype, generator=generator)
    logit_lengths = torch.randint(1, T + 1, (N,), generator=generator)
    target_lengths = torch.randint(0, U + 1, (N,), generator=generator)
    logit_lengths[0], target_lengths[0] = T, U
    labels = torch.randint(0, C - 1, (N, U), generator=generator)
    labels += labels >= blank
    for n in range(N):
        labels[n, target_lengths[n] :] = -7
        logits[n, logit_lengths[n] :] = math.nan
        logits[n, :, target_lengths[n] + 1 :] = math.nan
    return Batch(logits, labels, logit_lengths, target_lengths, blank)


def random_joint(batch: Batch, D: int, seed: int = 0) -> list[Tensor]:
    """Inputs of a joint network for the batch; what belongs to padding is NaN."""
    generator = torch.Generator().manual_seed(seed)
    N, T, rows, C = batch.logits.shape
    dtype = batch.logits.dtype
    encoder, prediction, weight, bias = (
        torch.randn(shape, dtype=dtype, generator=generator)
        for shape in ((N, T, D), (N, rows, D), (C, D), (C,))
    )
    for n in range(N):
        encoder[n, batch.logit_lengths[n] :] = math.nan
        prediction[n, batch.target_lengths[n] + 1 :] = math.nan
    return [encoder, prediction, weight, bias]
