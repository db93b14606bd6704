"""The CTC criteria on the CPU, by the native core: eager calls through autograd Functions, traced ones
through registered operators.

Values are always validated: the core would read beyond its memory otherwise, and there is no device to
wait for.
"""

from typing import cast

import torch
from torch import Tensor

from brctc.kernels.ctc import cpu_autograd, cpu_operators, reference
from brctc.kernels.ctc.closed_form import ClosedForm, RiskKind
from brctc.kernels.ctc.cpu_native import Alignment
from brctc.kernels.ctc.groups import Event, PathGroups
from brctc.kernels.ctc.inputs import Inputs
from brctc.kernels.operators import is_traced, needs_operators
from brctc.kernels.reduction import Reduction, reduce_losses

# Beyond, the weights of Eq. 11 leave the range of a double (native/emission_loss.h, largest_factor).
_LARGEST_EMISSION_FACTOR = 1300


def has_closed_form(form: ClosedForm) -> bool:
    return form.kind is not RiskKind.EARLY_EMISSION or abs(form.factor) <= _LARGEST_EMISSION_FACTOR


def loss(inputs: Inputs, form: ClosedForm, reduction: Reduction, validate: bool) -> Tensor:
    gradient = inputs.scores.requires_grad and torch.is_grad_enabled()
    if needs_operators(inputs.scores):
        losses, _ = cpu_operators.loss_and_gradient(*inputs, form.kind.value, form.factor, gradient)
        return reduce_losses(losses, inputs.target_lengths, reduction)
    options = cpu_autograd.LossOptions(form, reduction, gradient)
    return cpu_autograd.apply_loss(inputs.scores, inputs, options)


def path_groups(inputs: Inputs, event: Event, validate: bool) -> tuple[Tensor, Tensor]:
    at_start = event == "start"
    if needs_operators(inputs.scores):
        return cpu_operators.path_groups(*inputs, at_start)
    return cpu_autograd.apply_groups(inputs.scores, inputs, at_start)


def risk_loss(
    inputs: Inputs,
    groups: PathGroups,
    log_risk: Tensor,
    last_only: bool,
    reduction: Reduction,
    token_weights: Tensor | None,
) -> Tensor:
    """If the risk learns nothing itself, the gradient is found at once and waits in one node: three, and
    the operators between them, cost as much as a small lattice."""
    share = groups.log_share
    watched = share.retains_grad or share._backward_hooks  # somebody wants to see its gradient
    plain = groups.targets.shape[1] > 0 and not (is_traced(share) or is_traced(log_risk))
    learnt = log_risk.requires_grad or (token_weights is not None and token_weights.requires_grad)
    if not plain or watched or learnt:
        how = (last_only, reduction, token_weights, weighed_loss)
        return reference.risk_loss(inputs, groups, log_risk, *how)
    labels = groups.targets, groups.input_lengths, groups.target_lengths
    padded = Inputs(inputs.scores, *labels, *inputs[4:])
    gradient = inputs.scores.requires_grad and torch.is_grad_enabled()
    options = cpu_autograd.RiskLossOptions(last_only, reduction, gradient, token_weights)
    return cpu_autograd.apply_risk_loss(inputs.scores, log_risk, padded, groups, options)


def weighed_loss(
    log_share: Tensor,
    log_risk: Tensor,
    log_likelihood: Tensor,
    tokens: Tensor,
    token_weights: Tensor | None = None,
) -> Tensor:
    """(N), as reference.weighed_loss."""
    if is_traced(log_share) or (token_weights is not None and token_weights.requires_grad):
        return reference.weighed_loss(log_share, log_risk, log_likelihood, tokens, token_weights)
    return cast(
        "Tensor",
        cpu_autograd.WeighedLoss.apply(log_share, log_risk, log_likelihood, tokens, token_weights),
    )


def best_path(inputs: Inputs, wild: Tensor | None, price: float) -> Alignment:
    """Viterbi search. The other backends have none: align.best_path brings its tensors here."""
    return Alignment(*cpu_operators.best_path(*inputs, wild, price))
