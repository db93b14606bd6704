"""Eager calls of the native core, as autograd Functions. The registered operators are for whoever traces:
they cost 150 us a step in dispatch, more than the work itself for a small batch.

A Function takes its tensors in named tuples where it can, since autograd looks at every argument.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import unwrap_if_dead

from brctc import _native
from brctc.kernels.ctc import cpu_native, cpu_operators, reference
from brctc.kernels.ctc.closed_form import ClosedForm
from brctc.kernels.ctc.groups import PathGroups
from brctc.kernels.ctc.inputs import Inputs
from brctc.kernels.operators import builds_graph, is_batched, wants_operator
from brctc.kernels.reduction import Reduction


def _save(ctx: Any, inputs: Inputs, *tensors: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4], *tensors)
    ctx.inputs = inputs[4:]


def _saved(ctx: Any) -> tuple[Inputs, list[Tensor]]:
    scores, targets, input_lengths, target_lengths, *tensors = ctx.saved_tensors
    return Inputs(scores, targets, input_lengths, target_lengths, *ctx.inputs), tensors


class LossOptions(NamedTuple):
    """What a closed form's loss is, apart from its inputs."""

    form: ClosedForm
    reduction: Reduction
    gradient: bool


class Loss(torch.autograd.Function):
    """Loss and reduction in one node, since a further one costs 20 us each way. The gradient is found
    with the loss and waits for the backward pass, which hands it out."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, inputs: Inputs, options: LossOptions) -> Tensor:
        inputs = inputs.with_scores(scores)
        _save(ctx, inputs)
        ctx.options = options
        loss, ctx.dense = cpu_native.loss(inputs, *options)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        def find() -> Any:
            return cpu_native.loss(_saved(ctx)[0], *ctx.options)[1]

        return _hand_out(ctx, grads[0], find), None, None


def _hand_out(ctx: Any, grad: Tensor, find: Callable[[], Any]) -> Tensor:
    """The gradient of the loss, times what comes back for it; found again if the graph was retained."""
    dense: Any = find() if ctx.dense is None else ctx.dense
    ctx.dense = None
    if builds_graph():
        scores = ctx.saved_tensors[0]
        grad = grad if grad.dim() else grad.expand(scores.shape[1])
        return cpu_operators.weigh_gradient(grad, scores, dense)
    if not grad.is_neg() and _native.is_one(grad):  # nearly always
        return dense
    if is_batched(grad):  # many at once: nothing to look at, and no place for them all
        return torch.where(dense == 0, dense, dense * (grad[:, None] if grad.dim() else grad))
    if grad.dim():
        dense.mul_(cpu_operators.where_possible(grad, dense)[:, None])
        if not grad.all():  # of a loss that is NaN and not used, nothing is left
            dense[:, grad == 0] = 0
    elif grad.item() != 1:
        dense.mul_(grad)
    return dense


class Groups(torch.autograd.Function):
    """Path groups, differentiable by the scores."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, inputs: Inputs, at_start: bool) -> tuple[Tensor, Tensor]:
        inputs = inputs.with_scores(scores)
        _save(ctx, inputs)
        ctx.at_start = at_start
        return cpu_native.path_groups(inputs, at_start)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_share, grad_likelihood = grads
        inputs, _ = _saved(ctx)
        if wants_operator(*grads):
            dense = cpu_operators.path_groups_backward(grad_share, grad_likelihood, *inputs, ctx.at_start)
        else:
            dense = cpu_native.path_groups_backward(grad_share, grad_likelihood, inputs, ctx.at_start)
        return dense, None, None


class RiskLossOptions(NamedTuple):
    """What a custom risk's loss is, apart from its inputs."""

    last_only: bool
    reduction: Reduction
    gradient: bool
    token_weights: Tensor | None


class RiskLoss(torch.autograd.Function):
    """As Loss, for a custom risk that has been evaluated and learns nothing."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        log_risk: Tensor,  # not in a tuple: torch refuses it if it is a dual number
        inputs: Inputs,  # with padded targets
        groups: PathGroups,
        options: RiskLossOptions,
    ) -> Tensor:
        loss, grad_share, grad_likelihood = cpu_native.weigh_groups(
            groups.log_share,
            log_risk,
            groups.log_likelihood,
            groups.target_lengths,
            options.token_weights,
            options.last_only,
            options.reduction,
        )
        inputs = inputs.with_scores(scores)
        _save(ctx, inputs, grad_share, grad_likelihood)
        ctx.at_start = at_start = groups.event == "start"
        ctx.dense = None
        if options.gradient:
            ctx.dense = cpu_native.path_groups_backward(grad_share, grad_likelihood, inputs, at_start)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        def find() -> Any:
            inputs, (grad_share, grad_likelihood) = _saved(ctx)
            return cpu_native.path_groups_backward(grad_share, grad_likelihood, inputs, ctx.at_start)

        return _hand_out(ctx, grads[0], find), *[None] * 4


class WeighedLoss(torch.autograd.Function):
    """reference.weighed_loss in one node, differentiable by the risk too."""

    @staticmethod
    def forward(
        ctx: Any,
        log_share: Tensor,
        log_risk: Tensor,
        log_likelihood: Tensor,
        tokens: Tensor,
        token_weights: Tensor | None,
    ) -> Tensor:
        operands = (log_share, log_risk, log_likelihood, tokens)
        loss, grad_share, grad_likelihood = cpu_native.weigh_groups(
            *operands, token_weights, last_only=False, reduction=Reduction("none")
        )
        ctx.token_weights = token_weights
        ctx.save_for_backward(*operands, grad_share, grad_likelihood.to(loss.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        *operands, grad_share, grad_likelihood = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the reference can be differentiated again
            # by views of the operands: the risk may itself depend on the shares, which is not counted here
            views = [operand.view_as(operand) for operand in operands]
            wanted = [view for view in views if view.requires_grad]
            share, risk, likelihood, tokens = views
            loss = reference.weighed_loss(share, risk, likelihood, tokens, ctx.token_weights)
            found = list(torch.autograd.grad(loss, wanted, grad, create_graph=True))
            return *(found.pop(0) if view.requires_grad else None for view in views), None
        share = grad_share * grad[:, None, None]
        risk = share.sum_to_size(operands[1].shape) if ctx.needs_input_grad[1] else None
        return share, risk, grad_likelihood * grad, None, None


def _direct(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` without its checks in Python, which needs_operators has made: functorch transforms and
    dead wrappers of them. They took 3% of a small batch (T=100, N=8, C=500, U=20, fused)."""
    apply = super(torch.autograd.Function, function).apply  # pyright: ignore[reportAttributeAccessIssue]

    def run(scores: Tensor, *arguments: Any) -> Any:
        return apply(unwrap_if_dead(scores), *arguments)

    return run


apply_loss, apply_groups, apply_risk_loss = map(_direct, (Loss, Groups, RiskLoss))
