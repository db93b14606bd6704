"""The native CPU core as torch operators.

Each operator is registered with torch.library (schema, fake kernel, autograd), so that it is
traced, compiled and exported like torch's own. Eager calls on plain tensors go through an
autograd.Function over the same functions instead: the registered route costs 150 us a step in
dispatch, more than the work itself for a small batch.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import unwrap_if_dead

from brctc import _native
from brctc.kernels import reference
from brctc.kernels.inputs import Inputs, check_shapes, local_tensor, native_batch
from brctc.kernels.operators import (
    builds_graph,
    is_batched,
    is_traced,
    needs_operators,
    no_second_derivative,
    outside_graphs,
    register,
    wants_operator,
)
from brctc.kernels.reduction import reduce_losses
from brctc.risk import BayesRisk, DelayPenalty, EarlyEmission, EarlyFinish, PathGroups

READS_HALF = False
_CLOSED_FORMS: dict[type, int] = {type(None): 0, EarlyFinish: 1, EarlyEmission: 2, DelayPenalty: 3}


# Beyond, the weights of Eq. 11 leave the range of a double (native/groups.h, largest_factor).
_LARGEST_EMISSION_FACTOR = 1300


def has_closed_form(risk: BayesRisk | None) -> bool:
    """Whether the loss itself is native. Subclasses may have changed log_risk: they are not."""
    if isinstance(risk, EarlyEmission) and abs(risk.risk_factor) > _LARGEST_EMISSION_FACTOR:
        return False
    return type(risk) in _CLOSED_FORMS


def loss(
    inputs: Inputs, risk: BayesRisk | None, reduction: str, zero_infinity: bool, validate: bool = True
) -> Tensor:
    """The reduced loss, for a risk that has a closed form. Always validates: it would read beyond its
    memory otherwise, and there is no device to wait for."""
    factor = 0.0
    if risk is not None:
        factor = float(risk.penalty if isinstance(risk, DelayPenalty) else getattr(risk, "risk_factor", 0.0))
    gradient = inputs.scores.requires_grad and torch.is_grad_enabled()
    options = (_CLOSED_FORMS[type(risk)], factor, gradient)
    if needs_operators(inputs.scores):
        losses = torch.ops.brctc.loss_and_gradient(*inputs, *options)[0]
        return reduce_losses(losses, inputs.target_lengths, reduction, zero_infinity)
    return _apply_loss(unwrap_if_dead(inputs.scores), inputs[1:], (*options, reduction, zero_infinity))


def path_groups(inputs: Inputs, event: str, validate: bool = True) -> tuple[Tensor, Tensor]:
    """log_share (N, U, T) and log_likelihood (N), as PathGroups describes them."""
    arguments = (*inputs[1:], event == "start")
    if needs_operators(inputs.scores):
        return torch.ops.brctc.path_groups(inputs.scores, *arguments)
    return _apply_groups(unwrap_if_dead(inputs.scores), *arguments)


def risk_loss(
    inputs: Inputs,
    groups: PathGroups,
    log_risk: Tensor,
    last_only: bool,
    reduction: str,
    zero_infinity: bool,
) -> Tensor:
    """The reduced loss of a risk of the user's own. If that learns nothing itself, the gradient is found at
    once and waits in one node: three, and the operators between them, cost as much as a small lattice."""
    share = groups.log_share
    watched = share.retains_grad or share._backward_hooks  # somebody wants to see its gradient
    plain = groups.targets.shape[1] > 0 and not (is_traced(share) or is_traced(log_risk))
    if not plain or watched or log_risk.requires_grad:
        options = (last_only, reduction, zero_infinity)
        return reference.risk_loss(inputs, groups, log_risk, *options, weigh=weighed_loss)
    gradient = inputs.scores.requires_grad and torch.is_grad_enabled()
    labels = (groups.targets, groups.input_lengths, groups.target_lengths, *inputs[4:])
    options = (groups.event == "start", last_only, reduction, zero_infinity, gradient)
    found = (share, groups.log_likelihood)
    return _apply_risk_loss(unwrap_if_dead(inputs.scores), log_risk, labels, found, options)


def weighed_loss(log_share: Tensor, log_risk: Tensor, log_likelihood: Tensor, tokens: Tensor) -> Tensor:
    """The reference's in one pass and one node. In torch's operators it costs more than the lattice: a
    dozen passes, and every exp that underflows takes forty times as long as one that does not."""
    operands = (log_share, log_risk, log_likelihood, tokens)
    return reference.weighed_loss(*operands) if is_traced(log_share) else _WeighedLoss.apply(*operands)


def best_path(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Path (N, T), token starts and ends (N, U), score (N); -1 where there is none."""
    return torch.ops.brctc.best_path(*inputs)


# ---- the native calls -----------------------------------------------------------------------


class _Call:
    """A checked batch, with the tensors that the native side points into kept alive."""

    def __init__(self, inputs: Inputs) -> None:
        # also in a second backward pass: labels may have changed behind torch's back, in a numpy buffer
        plain = None if inputs.scores.is_neg() else _native.Input.of(*inputs, torch.get_num_threads())
        self.inputs = inputs if plain else _laid_out(inputs)
        self.native = plain or native_batch(self.inputs)


def _laid_out(inputs: Inputs) -> Inputs:
    """As native code reads it."""
    check_shapes(inputs)
    scores, targets, input_lengths, target_lengths, blank, from_logits = inputs
    # asked before it is done: each operator costs microseconds, even one that changes nothing
    if scores.stride(2) != 1 or scores.is_neg():
        scores = scores.detach().resolve_neg().contiguous()
    labels = local_tensor(targets), local_tensor(input_lengths), local_tensor(target_lengths)
    return Inputs(scores, *labels, blank, from_logits)


def _batch_major(scores: Tensor) -> bool:
    return bool(scores.stride(1) > scores.stride(0))


_REDUCTIONS = {"none": 0, "sum": 1, "mean": 2}


@outside_graphs
def _native_loss(
    inputs: Inputs,
    risk: int,
    risk_factor: float,
    gradient: bool,
    reduction: str = "none",
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The reduced loss, and its gradient if that is wanted."""
    if risk not in _CLOSED_FORMS.values() or not math.isfinite(risk_factor):
        raise ValueError(f"risk {risk} with factor {risk_factor} is not a closed form")
    call = _Call(inputs)
    result = inputs.scores.new_empty(inputs.scores.shape[1:2] if reduction == "none" else ())
    dense = _native.loss(
        call.native, risk, risk_factor, _REDUCTIONS[reduction], zero_infinity, result.data_ptr(), gradient
    )
    return result, dense


def _loss_and_gradient(
    scores: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    from_logits: bool,
    risk: int,
    risk_factor: float,
    gradient: bool,
) -> tuple[Tensor, Tensor]:
    """Losses (N) and the gradient of each with respect to the scores, empty if it is not wanted."""
    inputs = Inputs(scores, targets, input_lengths, target_lengths, blank, from_logits)
    losses, dense = _native_loss(inputs, risk, risk_factor, gradient)
    return losses, scores.new_empty(0) if dense is None else dense


def _weigh_gradient(grad_loss: Tensor, scores: Tensor, gradient: Tensor) -> Tensor:
    """The scores are there for autograd to see: the gradient depends on them, without a derivative."""
    if grad_loss.shape != scores.shape[1:2] or not grad_loss.is_floating_point():
        found = f"{grad_loss.dtype} {tuple(grad_loss.shape)}"
        raise ValueError(f"grad_loss is {found}, expected {scores.shape[1]} floating-point values")
    if gradient.shape != scores.shape or gradient.dtype != scores.dtype:
        found = f"{gradient.dtype} {tuple(gradient.shape)}"
        raise ValueError(f"gradient is {found}, expected {scores.dtype} {tuple(scores.shape)}")
    return gradient * _where_possible(grad_loss, gradient).to(gradient.dtype)[:, None]


def _where_possible(grad_loss: Tensor, gradient: Tensor) -> Tensor:
    """What comes back for each loss. That of an utterance without a path is often infinite, and times its
    gradient, which is zero, would be NaN."""
    if grad_loss.isfinite().all():
        return grad_loss
    return grad_loss.masked_fill((gradient == 0).all(-1).all(0), 0.0)


@outside_graphs
def _path_groups(
    scores: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    from_logits: bool,
    at_start: bool,
) -> tuple[Tensor, Tensor]:
    inputs = Inputs(scores, targets, input_lengths, target_lengths, blank, from_logits)
    _check_padded(targets)
    call = _Call(inputs)
    log_share = scores.new_empty(scores.shape[1], targets.shape[1], scores.shape[0])
    log_likelihood = scores.new_empty(scores.shape[1])
    _native.groups(call.native, at_start, targets.shape[1], log_share.data_ptr(), log_likelihood.data_ptr())
    return log_share, log_likelihood


@outside_graphs
def _path_groups_backward(
    grad_share: Tensor,
    grad_likelihood: Tensor,
    scores: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    from_logits: bool,
    at_start: bool,
) -> Tensor:
    """Runs the lattice again: that costs less than to keep it."""
    inputs = Inputs(scores, targets, input_lengths, target_lengths, blank, from_logits)
    _check_padded(targets)
    call = _Call(inputs)
    batch, width = targets.shape
    if tuple(grad_share.shape) != (batch, width, scores.shape[0]):
        raise ValueError(f"grad_share has shape {tuple(grad_share.shape)}, expected (N, U, T)")
    if tuple(grad_likelihood.shape) != (batch,):
        raise ValueError(f"grad_likelihood has shape {tuple(grad_likelihood.shape)}, expected (N)")
    shares = grad_share.detach().to(scores.dtype).contiguous()
    likelihoods = grad_likelihood.detach().to(torch.float64).contiguous()
    return _native.groups_backward(call.native, at_start, width, shares.data_ptr(), likelihoods.data_ptr())


@outside_graphs
def _weigh(
    log_share: Tensor,
    log_risk: Tensor,
    log_likelihood: Tensor,
    tokens: Tensor,
    last_only: bool = False,
    reduction: str = "none",
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The reduced loss, and its derivatives by log_share and, in double, by log_likelihood."""
    share, likelihood, tokens = log_share.contiguous(), log_likelihood.contiguous(), local_tensor(tokens)
    risk = log_risk.expand_as(share)
    if risk.stride(2) not in (0, 1) or risk.is_neg():
        risk = risk.resolve_neg().contiguous()
    if not risk.data_ptr():  # torch has tensors of zeros that are kept nowhere
        risk = torch.zeros_like(share)
    result = share.new_empty(share.shape[:1] if reduction == "none" else ())
    grad_share = torch.empty_like(share)
    grad_likelihood = torch.empty_like(likelihood, dtype=torch.float64)
    _native.weigh(
        share.data_ptr(),
        risk.data_ptr(),
        risk.stride(),
        share.shape,
        likelihood.data_ptr(),
        tokens.data_ptr(),
        last_only,
        _REDUCTIONS[reduction],
        zero_infinity,
        result.data_ptr(),
        grad_likelihood.data_ptr(),
        grad_share.data_ptr(),
        share.dtype == torch.float64,
        torch.get_num_threads(),
    )
    return result, grad_share, grad_likelihood


def _check_padded(targets: Tensor) -> None:
    if targets.dim() != 2:
        raise ValueError(f"path groups need targets of shape (N, U), got {tuple(targets.shape)}")


@outside_graphs
def _best_path(
    scores: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    from_logits: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check_padded(targets)
    call = _Call(Inputs(scores, targets, input_lengths, target_lengths, blank, from_logits))
    path, start, end, score = _new_best_path(scores, call.inputs.targets)
    _native.best_path(
        call.native,
        path.data_ptr(),
        start.data_ptr(),
        end.data_ptr(),
        targets.shape[1],
        score.data_ptr(),
    )
    return path, start, end, score.to(scores.dtype)


def _new_best_path(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    frames, batch = scores.shape[:2]
    path = targets.new_empty(batch, frames, dtype=torch.int64)
    start, end = (targets.new_empty(targets.shape, dtype=torch.int64) for _ in range(2))
    return path, start, end, scores.new_empty(batch, dtype=torch.float64)


# ---- autograd -------------------------------------------------------------------------------


class _Loss(torch.autograd.Function):
    """Loss and reduction in one node, since a further one costs 20 us each way. The gradient is found
    with the loss and waits for the backward pass, which hands it out."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, others: tuple[Any, ...], options: tuple[Any, ...]) -> Tensor:
        # one tensor and two tuples: autograd looks at every argument
        inputs = Inputs(scores, *others)
        ctx.save_for_backward(*inputs[:4])
        ctx.options = others[3:], options
        loss, ctx.dense = _native_loss(inputs, *options)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        def find() -> Any:
            others, options = ctx.options
            return _native_loss(Inputs(*ctx.saved_tensors, *others), *options)[1]

        return _hand_out(ctx, grads[0], find), None, None


def _hand_out(ctx: Any, grad: Tensor, find: Callable[[], Any]) -> Tensor:
    """The gradient of the loss, times what comes back for it; found again if the graph was retained."""
    dense: Any = find() if ctx.dense is None else ctx.dense
    ctx.dense = None
    if builds_graph():
        scores = ctx.saved_tensors[0]
        grad = grad if grad.dim() else grad.expand(scores.shape[1])
        return torch.ops.brctc.weigh_gradient(grad, scores, dense)
    if not grad.is_neg() and _native.is_one(grad):  # nearly always
        return dense
    if is_batched(grad):  # many at once: nothing to look at, and no place for them all
        return torch.where(dense == 0, dense, dense * (grad[:, None] if grad.dim() else grad))
    if grad.dim():
        dense.mul_(_where_possible(grad, dense)[:, None])
    elif grad.item() != 1:
        dense.mul_(grad)
    return dense


class _Groups(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(*arguments[:4])
        ctx.options = arguments[4:]
        return _path_groups(*arguments)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        operands: tuple[Any, ...] = (*grads, *ctx.saved_tensors, *ctx.options)
        if wants_operator(*grads):
            return (torch.ops.brctc.path_groups_backward(*operands), *[None] * 6)
        return (_path_groups_backward(*operands), *[None] * 6)


class _RiskLoss(torch.autograd.Function):
    """As _Loss, for a risk of the user's own that has been evaluated and learns nothing."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        risk: Tensor,  # not in a tuple: torch refuses it if it is a dual number
        labels: tuple[Any, ...],
        found: tuple[Tensor, Tensor],
        options: tuple[Any, ...],
    ) -> Tensor:
        at_start, last_only, reduction, zero_infinity, gradient = options
        share, likelihood = found
        how = (last_only, reduction, zero_infinity)
        loss, grad_share, grad_likelihood = _weigh(share, risk, likelihood, labels[2], *how)
        operands: tuple[Any, ...] = (grad_share, grad_likelihood, scores, *labels, at_start)
        ctx.save_for_backward(scores, *labels[:3], grad_share, grad_likelihood)
        ctx.options = operands[6:]
        ctx.dense = _path_groups_backward(*operands) if gradient else None
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        def find() -> Any:
            *inputs, grad_share, grad_likelihood = ctx.saved_tensors
            return _path_groups_backward(grad_share, grad_likelihood, *inputs, *ctx.options)

        return _hand_out(ctx, grads[0], find), *[None] * 4


class _WeighedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *operands: Any) -> Tensor:
        loss, grad_share, grad_likelihood = _weigh(*operands)
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
            loss = reference.weighed_loss(*views)
            found = list(torch.autograd.grad(loss, wanted, grad, create_graph=True))
            return tuple(found.pop(0) if view.requires_grad else None for view in views)
        share = grad_share * grad[:, None, None]
        risk = share.sum_to_size(operands[1].shape) if ctx.needs_input_grad[1] else None
        return share, risk, grad_likelihood * grad, None


def _direct(function: type[torch.autograd.Function]) -> Any:
    """Past Function.apply, which takes 5 us to ask what needs_operators has asked, and for dead wrappers."""
    return super(torch.autograd.Function, function).apply  # pyright: ignore[reportAttributeAccessIssue]


_apply_loss, _apply_groups, _apply_risk_loss = map(_direct, (_Loss, _Groups, _RiskLoss))


# ---- operators ------------------------------------------------------------------------------

_INPUTS = (
    "Tensor scores, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
    "SymInt blank, bool from_logits"
)


def _fake_loss(scores: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    gradient = arguments[-1]
    return scores.new_empty(scores.shape[1]), _fake_gradient(scores) if gradient else scores.new_empty(0)


def _fake_gradient(scores: Tensor) -> Tensor:
    laid_out = scores if scores.stride(2) == 1 else scores.contiguous()
    frames, batch, classes = scores.shape
    if _batch_major(laid_out):
        return scores.new_empty(batch, frames, classes).transpose(0, 1)
    return scores.new_empty(frames, batch, classes)


def _fake_groups(scores: Tensor, targets: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    frames, batch = scores.shape[:2]
    return scores.new_empty(batch, targets.shape[1], frames), scores.new_empty(batch)


def _fake_best_path(scores: Tensor, targets: Tensor, *_: Any) -> tuple[Tensor, ...]:
    path, start, end, score = _new_best_path(scores, targets)
    return path, start, end, score.to(scores.dtype)


def _setup_loss(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[0], output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.has_gradient = inputs[8]


def _loss_backward(ctx: Any, grad_loss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    if not ctx.has_gradient:
        raise RuntimeError(
            "brctc::loss_and_gradient was called with gradient=False and cannot be differentiated"
        )
    return (torch.ops.brctc.weigh_gradient(grad_loss, *ctx.saved_tensors), *[None] * 8)


def _setup_groups(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.options = inputs[4:]  # blank, from_logits, at_start


def _groups_backward(ctx: Any, grad_share: Tensor, grad_likelihood: Tensor) -> tuple[Tensor | None, ...]:
    arguments = (grad_share, grad_likelihood, *ctx.saved_tensors, *ctx.options)
    return (torch.ops.brctc.path_groups_backward(*arguments), *[None] * 6)


register(
    f"loss_and_gradient({_INPUTS}, int risk, float risk_factor, bool gradient) -> (Tensor, Tensor)",
    _loss_and_gradient,
    _fake_loss,
    _loss_backward,
    _setup_loss,
)
register(
    "weigh_gradient(Tensor grad_loss, Tensor scores, Tensor gradient) -> Tensor",
    _weigh_gradient,
    lambda grad_loss, scores, gradient: torch.empty_like(gradient),
    no_second_derivative,
)
register(
    f"path_groups({_INPUTS}, bool at_start) -> (Tensor, Tensor)",
    _path_groups,
    _fake_groups,
    _groups_backward,
    _setup_groups,
)
register(
    f"path_groups_backward(Tensor grad_share, Tensor grad_likelihood, {_INPUTS}, bool at_start) -> Tensor",
    _path_groups_backward,
    lambda grad_share, grad_likelihood, scores, *_: _fake_gradient(scores),
    no_second_derivative,
)
register(f"best_path({_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)", _best_path, _fake_best_path)
