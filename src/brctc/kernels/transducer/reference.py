"""The transducer loss in plain PyTorch: slow, readable, on any device, differentiable twice.

It is the oracle that the native backend is tested against. Everything is in the log domain;
impossible events have log probability `NEVER`, which is finite so that gradients stay clean.
"""

import math

import torch
from torch import Tensor

from brctc.kernels.log_domain import NEVER, unfit, unreadable_rows
from brctc.kernels.reduction import Reduction, reduce_losses
from brctc.kernels.tensors import SMALLEST_LOG, unreadable
from brctc.kernels.transducer.inputs import Joint, Labels, native_transducer


def losses(logits: Tensor, labels: Labels, validate: bool, fused: bool = True) -> Tensor:
    """-log P(targets) of every utterance, (N). If not `fused`, logits are log-probabilities already."""
    log_blank, log_label, labels, bad = _emissions(logits, labels, validate, fused)
    frames, rows = logits.shape[1], logits.shape[2]
    u = torch.arange(rows, device=logits.device)
    # the cells of a diagonal, t + u = d, do not depend on each other
    log_mass = torch.where(u == 0, log_blank.new_zeros(()), NEVER).expand(logits.shape[0], rows)
    end = labels.logit_lengths + labels.target_lengths
    total = log_blank.new_full((logits.shape[0],), NEVER)
    for d in range(frames + rows - 1):
        t = (d - u).clamp(0, frames - 1)
        exists = (d - u >= 0) & (d - u < frames)
        by_blank = torch.where(exists, log_mass + log_blank[:, t, u], NEVER)
        by_label = torch.where(exists, log_mass + log_label[:, t, u], NEVER)
        arriving = torch.cat([torch.full_like(by_label[:, :1], NEVER), by_label[:, :-1]], 1)
        log_mass = torch.stack([by_blank, arriving]).logsumexp(0).clamp(min=NEVER)
        at_end = log_mass.gather(1, labels.target_lengths[:, None]).squeeze(1)
        total = torch.where(end == d + 1, at_end, total)
    return torch.where(bad, math.nan, -torch.where(total > NEVER / 2, total, -math.inf))


def joint_loss(joint: Joint, labels: Labels, reduction: Reduction, validate: bool) -> Tensor:
    """Makes all logits; the native CPU backend does not."""
    found = losses(joint_logits(joint, labels), labels, validate)
    return reduce_losses(found, labels.target_lengths, reduction)


def joint_logits(joint: Joint, labels: Labels) -> Tensor:
    """(N, T, U + 1, C)"""
    # what belongs to padding may hold anything
    encoder = _masked(joint.encoder, labels.logit_lengths)
    prediction = _masked(joint.prediction, labels.target_lengths + 1)
    hidden = (encoder[:, :, None] + prediction[:, None]).tanh()
    return hidden @ joint.weight.t() + joint.bias


def _masked(values: Tensor, lengths: Tensor) -> Tensor:
    index = torch.arange(values.shape[1], device=values.device)
    return torch.where((index < lengths.to(values.device)[:, None])[:, :, None], values, 0.0)


def _emissions(
    logits: Tensor, labels: Labels, validate: bool, fused: bool
) -> tuple[Tensor, Tensor, Labels, Tensor]:
    """Log probability (N, T, U + 1) of the blank and of the next label in every cell, NEVER where
    that leads out of the lattice; labels with lengths that can be used; and which utterances (N) have
    something wrong: none if they are validated."""
    validate = validate and not logits.is_meta
    if validate:  # raises for lengths or labels out of range
        native_transducer(labels, tuple(logits.shape), logits.dtype)
    frames, rows, classes = logits.shape[1:]
    device = logits.device
    t = torch.arange(frames, device=device)[:, None]
    u = torch.arange(rows, device=device)
    targets, logit_lengths, target_lengths, blank = labels
    labels = Labels(targets.to(device), logit_lengths.to(device), target_lengths.to(device), blank)
    bad = unfit(labels.targets, labels.logit_lengths, labels.target_lengths, frames, classes, blank)
    target_lengths = labels.target_lengths[:, None, None]
    in_time = t < labels.logit_lengths[:, None, None]
    used = in_time & (u <= target_lengths)
    wrong = used & unreadable_rows(logits)
    if validate and wrong.any():
        n, at = wrong.any(-1).nonzero()[0].tolist()
        raise ValueError(unreadable(True, at, n))
    bad = bad | wrong.flatten(1).any(1)
    # padding may hold anything, and so may what cannot be read: it must not reach the gradient either
    log_probs = torch.where((used & ~bad[:, None, None])[..., None], logits, 0.0)
    log_probs = log_probs.log_softmax(-1) if fused else log_probs
    log_blank = log_probs[..., labels.blank]
    targets = labels.targets.clamp(0, classes - 1)
    index = torch.nn.functional.pad(targets, (0, 1))[:, None, :, None].expand(-1, frames, -1, -1)
    log_label = log_probs.gather(3, index).squeeze(3)
    # in the last frame a blank ends the path, which only the last row may do
    last = t + 1 == labels.logit_lengths[:, None, None]
    takes_blank = used & ~(last & (u < target_lengths))
    labels = labels._replace(
        logit_lengths=labels.logit_lengths.masked_fill(bad, 1),
        target_lengths=labels.target_lengths.masked_fill(bad, 0),
    )
    return (
        _possible(log_blank, takes_blank),
        _possible(log_label, used & (u < target_lengths)),
        labels,
        bad,
    )


def _possible(log_prob: Tensor, where: Tensor) -> Tensor:
    return torch.where(where & (log_prob > SMALLEST_LOG), log_prob, NEVER)
