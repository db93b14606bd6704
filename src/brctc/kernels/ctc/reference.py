"""The criterion in plain PyTorch: slow, readable, on any device, differentiable twice.

It is the oracle that the other backends are tested against. Everything is in the log domain;
impossible events have log probability `NEVER`, which is finite so that gradients stay clean.

State s of S = 2U+1: even states are blanks, state 2u-1 (counted from 0) is label u.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from brctc.kernels.ctc.closed_form import ClosedForm, RiskKind
from brctc.kernels.ctc.groups import Event, PathGroups
from brctc.kernels.ctc.inputs import Inputs, check_values, pad_targets
from brctc.kernels.log_domain import NEVER, unfit, unreadable_rows
from brctc.kernels.reduction import Reduction, reduce_losses
from brctc.kernels.tensors import SMALLEST_LOG, unreadable


def has_closed_form(form: ClosedForm) -> bool:
    """Only where all paths are weighed at once: other risks go through their groups here."""
    return form.kind in (RiskKind.NONE, RiskKind.DELAY_PENALTY)


def loss(inputs: Inputs, form: ClosedForm, reduction: Reduction, validate: bool) -> Tensor:
    """-log of the summed path probabilities, weighed by a delay penalty or not at all; reduced."""
    dtype = inputs.scores.dtype
    delayed = form.kind is RiskKind.DELAY_PENALTY
    if delayed and inputs.scores.device.type != "mps":  # which has no float64
        # what early tokens gain and late ones pay is large and cancels: float32 would keep no digit of it
        inputs = inputs.with_scores(inputs.scores.double())
    given = inputs
    emissions, skip, inputs, bad = _lattice(inputs, validate)
    alpha = _forward(emissions, skip, _start_weights(form.factor, inputs) if delayed else None)
    losses = mark_unread(-_hide_never(_final(alpha, inputs)), given, bad)
    return reduce_losses(losses, inputs.target_lengths, reduction).to(dtype)


def risk_loss(
    inputs: Inputs,
    groups: PathGroups,
    log_risk: Tensor,
    last_only: bool,
    reduction: Reduction,
    token_weights: Tensor | None = None,
    weigh: Callable[..., Tensor] | None = None,
) -> Tensor:
    """The reduced loss of a custom risk, with `weigh` instead of weighed_loss: inf without paths, NaN where
    the risk of a group with paths is NaN or +inf."""
    log_share, tokens = groups.log_share, groups.target_lengths
    if groups.targets.shape[1] == 0:
        losses = -groups.log_likelihood  # no token in the whole batch: plain CTC
    else:
        if last_only:
            last = (tokens - 1).clamp(0, groups.targets.shape[1] - 1)[:, None, None]
            log_risk = log_risk.expand(log_share.shape).gather(1, last.expand(-1, 1, log_share.shape[2]))
            log_share = log_share.gather(1, last.expand_as(log_risk))
            tokens = tokens.clamp(max=1)
        losses = (weigh or weighed_loss)(log_share, log_risk, groups.log_likelihood, tokens, token_weights)
    return reduce_losses(losses, inputs.target_lengths, reduction)


def weighed_loss(
    log_share: Tensor,
    log_risk: Tensor,
    log_likelihood: Tensor,
    tokens: Tensor,
    token_weights: Tensor | None = None,
) -> Tensor:
    """(N): -sum over tokens of w * (log_likelihood + log sum_tau exp(log_share + log_risk)), w being (N, U)
    or the same for all tokens of an utterance, and 1 together."""
    # a risk may say anything where there are no paths
    weighed = torch.where(log_share > -math.inf, log_share + log_risk, -math.inf)
    highest = weighed.detach().amax(-1, keepdim=True)
    highest = torch.where(highest > -math.inf, highest, 0)
    total = (weighed - highest).exp().sum(-1)
    # a token without paths has objective -inf and, where logsumexp's would be NaN, no gradient
    none = total == 0
    log_objective = torch.where(none, -math.inf, torch.where(none, 1, total).log() + highest.squeeze(-1))
    exists = torch.arange(log_share.shape[1], device=tokens.device) < tokens[:, None]
    log_objective = torch.where(exists, log_objective, 0)
    if token_weights is None:
        log_objective, all_weight = log_objective.sum(1) / tokens.clamp(min=1), 1.0
    else:
        weight = torch.where(exists, token_weights, 0)
        # what has no weight does not count, even if nothing is possible for it
        dead = (weight == 0) & (log_objective == -math.inf)
        log_objective = (weight * torch.where(dead, 0, log_objective)).sum(1)
        all_weight = torch.where(tokens == 0, 1, weight.sum(1))
    # where the risk forbids every path the loss is infinite, and nothing can be learnt from it
    forbidden = ((log_objective == -math.inf) & ~log_likelihood.isnan()) | (log_likelihood == -math.inf)
    return torch.where(forbidden, math.inf, -(all_weight * log_likelihood + log_objective))


def path_groups(inputs: Inputs, event: Event, validate: bool) -> tuple[Tensor, Tensor]:
    """log_share (N, U, T) and log_likelihood (N), as PathGroups describes them."""
    given = inputs
    emissions, skip, inputs, bad = _lattice(inputs, validate)
    alpha = _forward(emissions, skip)
    total = _final(alpha, inputs)
    if event == "end":
        # reach label u at tau, then leave it: the paper's beta-hat without its subtraction
        leaving = _leaving(emissions, skip, inputs)
        posterior = alpha[:, :, 1::2] + leaving[:, :, 1::2]
    else:
        # enter label u at tau from another state, then go on in any way
        posterior = _entering(alpha, skip)[:, :, 1::2] + _backward(emissions, skip, inputs)[:, :, 1::2]
    posterior = posterior.transpose(1, 2)  # (N, U, T)
    possible = _valid(inputs) & (posterior > NEVER / 2) & (total > NEVER / 2)[:, None, None]
    share = torch.where(possible, posterior - total[:, None, None], -math.inf)
    return share, mark_unread(_hide_never(total), given, bad)


def mark_unread(values: Tensor, inputs: Inputs, bad: Tensor) -> Tensor:
    """The values (N), NaN for what could not be read. If wanted their gradient by the scores is NaN too,
    where anything comes back for them; it is zero otherwise."""
    marked = torch.where(bad, math.nan, values)
    if not inputs.nan:
        return marked
    frame = torch.arange(inputs.scores.shape[0], device=bad.device)[:, None]
    unread = bad & (frame < inputs.input_lengths.to(bad.device))
    return cast("Tensor", _Spoiled.apply(marked, inputs.scores, unread))


class _Spoiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, scores: Tensor, unread: Tensor) -> Tensor:
        ctx.save_for_backward(scores, unread)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scores, unread = ctx.saved_tensors
        spoiled = unread & (grads[0] != 0)
        return grads[0], torch.where(spoiled[:, :, None], math.nan, torch.zeros_like(scores)), None


def _lattice(inputs: Inputs, validate: bool) -> tuple[Tensor, Tensor, Inputs, Tensor]:
    """Emissions (N, T, S) of every state, where a state may be reached by a skip (N, S), the inputs with
    lengths that can be used, and which utterances (N) have something wrong: none if they are validated."""
    validate = validate and not inputs.scores.is_meta
    if validate:
        check_values(inputs)
    inputs = pad_targets(inputs)._replace(
        input_lengths=inputs.input_lengths.to(inputs.scores.device),
        target_lengths=inputs.target_lengths.to(inputs.scores.device),
    )
    scores = inputs.scores.transpose(0, 1)  # (N, T, C)
    batch, frames, classes = scores.shape
    targets = inputs.targets.to(scores.device)
    lengths = inputs.input_lengths, inputs.target_lengths
    bad = unfit(targets, *lengths, frames, classes, inputs.blank, least_frames=0)
    # padding may hold any number: it only has to be a class
    targets = targets.clamp(0, classes - 1)
    states = targets.new_full((batch, 2 * targets.shape[1] + 1), inputs.blank)
    states[:, 1::2] = targets
    at = states[:, None, :].expand(-1, frames, -1)
    in_time = torch.arange(frames, device=scores.device) < inputs.input_lengths[:, None]
    used = torch.arange(states.shape[1], device=scores.device) <= 2 * inputs.target_lengths[:, None]
    if inputs.from_logits:
        wrong = in_time & unreadable_rows(scores)
    else:
        wrong = in_time & (used[:, None, :] & ~(scores.detach().gather(2, at) < math.inf)).any(-1)
    if validate and not inputs.nan and wrong.any():
        n, t = wrong.nonzero()[0].tolist()
        raise ValueError(unreadable(inputs.from_logits, t, n))
    bad = bad | wrong.any(1)
    # NaN in the padding, and in what cannot be read, would reach its gradient
    scores = torch.where((in_time & ~bad[:, None])[:, :, None], scores, 0)
    if inputs.from_logits:
        scores = scores.log_softmax(-1)
    emissions = scores.gather(2, at)
    emissions = torch.where(emissions > SMALLEST_LOG, emissions, NEVER)
    skip = torch.zeros_like(states, dtype=torch.bool)
    skip[:, 3::2] = targets[:, 1:] != targets[:, :-1]
    inputs = inputs._replace(
        input_lengths=inputs.input_lengths.masked_fill(bad, 1),
        target_lengths=inputs.target_lengths.masked_fill(bad, 0),
    )
    return emissions, skip, inputs, bad


def _shift(x: Tensor, by: int) -> Tensor:
    """x[s - by], NEVER where there is no such state."""
    pad = x.new_full((*x.shape[:-1], abs(by)), NEVER)
    size = x.shape[-1]
    return torch.cat([pad, x], -1)[..., :size] if by > 0 else torch.cat([x, pad], -1)[..., -size:]


def _add(*terms: Tensor) -> Tensor:
    return torch.stack(terms).logsumexp(0).clamp(min=NEVER)


def _entering_from(alpha: Tensor, skip: Tensor) -> Tensor:
    """What enters each state from another one, given the frame before."""
    return _add(_shift(alpha, 1), torch.where(skip, _shift(alpha, 2), NEVER))


def _leaving_to(beta: Tensor, skip: Tensor) -> Tensor:
    """What leaves each state to another one, given the frame after."""
    skip_after = torch.cat([skip[:, 2:], torch.zeros_like(skip[:, :2])], -1)
    return _add(_shift(beta, -1), torch.where(skip_after, _shift(beta, -2), NEVER))


def _start(emissions: Tensor) -> Tensor:
    """Where a path may begin: the first blank or the first label."""
    states = torch.arange(emissions.shape[2], device=emissions.device)
    return torch.where(states < 2, emissions.new_zeros(()), NEVER).expand(emissions.shape[0], -1)


def _forward(emissions: Tensor, skip: Tensor, start_weights: Tensor | None = None) -> Tensor:
    """alpha (N, T, S): all path beginnings that stand in state s at frame t.

    `start_weights` (N, T), in nats, are added to a path where it enters a label.
    """
    weights = emissions.new_zeros(()).expand(emissions.shape)
    if start_weights is not None:
        is_label = torch.arange(emissions.shape[2], device=emissions.device) % 2
        weights = start_weights[:, :, None] * is_label
    alpha = _start(emissions) + weights[:, 0] + emissions[:, 0]
    rows = [alpha]
    for t in range(1, emissions.shape[1]):
        alpha = _add(alpha, _entering_from(alpha, skip) + weights[:, t]) + emissions[:, t]
        rows.append(alpha)
    return torch.stack(rows, 1)


def _start_weights(penalty: float, inputs: Inputs) -> Tensor:
    """(N, T): what a token that starts at frame t adds to its path, 0 in the middle of the utterance."""
    frame = torch.arange(inputs.scores.shape[0], device=inputs.scores.device, dtype=inputs.scores.dtype)
    return -penalty * (frame - (inputs.input_lengths[:, None] - 1) / 2)


def _entering(alpha: Tensor, skip: Tensor) -> Tensor:
    """(N, T, S): all path beginnings that enter state s at frame t, without its emission."""
    first = _start(alpha)
    rows = [first] + [_entering_from(alpha[:, t], skip) for t in range(alpha.shape[1] - 1)]
    return torch.stack(rows, 1)


def _finish(inputs: Inputs, emissions: Tensor) -> Tensor:
    """Where a path may end: the last blank or the last label."""
    states = torch.arange(emissions.shape[2], device=emissions.device)
    last = 2 * inputs.target_lengths[:, None]
    return torch.where((states == last) | (states == last - 1), emissions.new_zeros(()), NEVER)


def _backward_rows(emissions: Tensor, skip: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """beta (N, T, S), all endings from state s at frame t with its emission; and those that leave
    s after t, without it."""
    frames = emissions.shape[1]
    finish = _finish(inputs, emissions)
    beta = torch.full_like(finish, NEVER)
    betas, leavings = [], []
    for t in reversed(range(frames)):
        last = (inputs.input_lengths == t + 1)[:, None]
        leaving = torch.where(last, finish, _leaving_to(beta, skip))
        beta = _add(leaving, torch.where(last, NEVER, beta)) + emissions[:, t]
        betas.append(beta)
        leavings.append(leaving)
    return torch.stack(betas[::-1], 1), torch.stack(leavings[::-1], 1)


def _backward(emissions: Tensor, skip: Tensor, inputs: Inputs) -> Tensor:
    return _backward_rows(emissions, skip, inputs)[0]


def _leaving(emissions: Tensor, skip: Tensor, inputs: Inputs) -> Tensor:
    return _backward_rows(emissions, skip, inputs)[1]


def _final(alpha: Tensor, inputs: Inputs) -> Tensor:
    index = (inputs.input_lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, alpha.shape[2])
    at_end = alpha.gather(1, index).squeeze(1)
    total = (at_end + _finish(inputs, alpha)).logsumexp(1)
    # without frames there is one path, and only without labels
    without = torch.where(inputs.target_lengths == 0, total.new_zeros(()), NEVER)
    return torch.where(inputs.input_lengths == 0, without, total)


def _valid(inputs: Inputs) -> Tensor:
    frames, labels = inputs.scores.shape[0], inputs.targets.shape[1]
    device = inputs.scores.device
    in_time = torch.arange(frames, device=device) < inputs.input_lengths[:, None]
    exists = torch.arange(labels, device=device) < inputs.target_lengths[:, None]
    return exists[:, :, None] & in_time[:, None, :]


def _hide_never(total: Tensor) -> Tensor:
    return torch.where(total > NEVER / 2, total, -math.inf)
