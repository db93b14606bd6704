"""The native CPU core as torch operators.

Each operator is registered with torch.library (schema, fake kernel, autograd), so that it is
traced, compiled and exported like torch's own. Eager calls on plain tensors go through an
autograd.Function over the same functions instead: the registered route costs 150 us a step in
dispatch, more than the work itself for a small batch.
"""

import math
from typing import Any

import torch
from torch import Tensor

from brctc import _native
from brctc.kernels.inputs import Inputs, check_shapes, check_values
from brctc.kernels.reduction import reduce_losses
from brctc.risk import BayesRisk, EarlyEmission, EarlyFinish

_CLOSED_FORMS: dict[type, int] = {type(None): 0, EarlyFinish: 1, EarlyEmission: 2}


def has_closed_form(risk: BayesRisk | None) -> bool:
    """Whether the loss itself is native. Subclasses may have changed log_risk: they are not."""
    return type(risk) in _CLOSED_FORMS


def loss(inputs: Inputs, risk: BayesRisk | None, reduction: str, zero_infinity: bool) -> Tensor:
    """The reduced loss, for a risk that has a closed form."""
    factor = float(getattr(risk, "risk_factor", 0.0))
    gradient = torch.is_grad_enabled() and inputs.scores.requires_grad
    arguments = (*inputs, _CLOSED_FORMS[type(risk)], factor, gradient)
    if _is_traced(inputs.scores):
        losses = torch.ops.brctc.ctc_loss(*arguments)[0]
        return reduce_losses(losses, inputs.target_lengths, reduction, zero_infinity)
    return _Loss.apply(*arguments, reduction, zero_infinity)


def path_groups(inputs: Inputs, event: str) -> tuple[Tensor, Tensor]:
    """log_share (N, U, T) and log_likelihood (N), as PathGroups describes them."""
    arguments = (*inputs, event == "start")
    if _is_traced(inputs.scores):
        return torch.ops.brctc.path_groups(*arguments)
    return _Groups.apply(*arguments)


def best_path(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Path (N, T), token starts and ends (N, U), score (N); -1 where there is none."""
    return torch.ops.brctc.best_path(*inputs)


def _is_traced(scores: Tensor) -> bool:
    return torch.compiler.is_compiling() or type(scores) not in (Tensor, torch.nn.Parameter)


# ---- the native calls -----------------------------------------------------------------------


class _Call:
    """A checked batch, with the tensors that the native side points into kept alive."""

    def __init__(self, inputs: Inputs, checked: bool = False) -> None:
        if not checked:
            check_shapes(inputs)
            check_values(inputs)
        scores = inputs.scores.detach()
        self.scores = scores = scores if scores.stride(2) == 1 else scores.contiguous()
        self.targets = targets = inputs.targets.contiguous()
        self.input_lengths = inputs.input_lengths.contiguous()
        self.target_lengths = inputs.target_lengths.contiguous()
        self.native = _native.Input(
            scores.data_ptr(),
            scores.dtype == torch.float64,
            *scores.shape,
            scores.stride(0),
            scores.stride(1),
            targets.data_ptr(),
            targets.shape[1] if targets.dim() == 2 else -1,
            self.input_lengths.data_ptr(),
            self.target_lengths.data_ptr(),
            inputs.blank,
            inputs.from_logits,
            torch.get_num_threads(),
        )

    def gradient(self, weights: Tensor, occupancy: Tensor, row_max: Tensor, row_scale: Tensor) -> Tensor:
        """The dense gradient in the layout of the scores."""
        dense = _native.gradient(
            self.native,
            weights.data_ptr(),
            occupancy.data_ptr(),
            row_max.data_ptr(),
            row_scale.data_ptr(),
        )
        return dense.transpose(0, 1) if _batch_major(self.scores) else dense


def _batch_major(scores: Tensor) -> bool:
    return bool(scores.stride(1) > scores.stride(0))


def _row_shape(scores: Tensor, wanted: bool) -> tuple[int, int]:
    return (scores.shape[1], scores.shape[0]) if wanted else (0, 0)


def _occupancy_size(scores: Tensor, targets: Tensor, wanted: bool) -> int:
    # a block of T rows of U_n + 1 per utterance, in either target layout
    return scores.shape[0] * (targets.numel() + scores.shape[1]) if wanted else 0


def _native_loss(
    scores: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    from_logits: bool,
    risk: int,
    risk_factor: float,
    gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Losses (N) in float64, and what their gradient needs: occupancies, and max and scale of the
    softmax rows."""
    if risk not in _CLOSED_FORMS.values() or not math.isfinite(risk_factor):
        raise ValueError(f"risk {risk} with factor {risk_factor} is not a closed form")
    call = _Call(Inputs(scores, targets, input_lengths, target_lengths, blank, from_logits))
    losses = torch.empty(scores.shape[1], dtype=torch.float64)
    occupancy = scores.new_empty(_occupancy_size(scores, targets, gradient))
    row_max = scores.new_empty(_row_shape(scores, gradient and from_logits))
    row_scale = torch.empty_like(row_max)
    _native.loss(
        call.native,
        risk,
        risk_factor,
        losses.data_ptr(),
        occupancy.data_ptr(),
        row_max.data_ptr(),
        row_scale.data_ptr(),
    )
    return losses, occupancy, row_max, row_scale


def _ctc_loss(scores: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    losses, *saved = _native_loss(scores, *arguments)
    return losses.to(scores.dtype), *saved


def _ctc_loss_backward(
    grad_loss: Tensor,
    scores: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    from_logits: bool,
    occupancy: Tensor,
    row_max: Tensor,
    row_scale: Tensor,
    checked: bool = False,
) -> Tensor:
    inputs = Inputs(scores, targets, input_lengths, target_lengths, blank, from_logits)
    if not checked:
        _check_saved(inputs, grad_loss, occupancy, row_max, row_scale)
    weights = grad_loss.detach().to(torch.float64).contiguous()
    return _Call(inputs, checked).gradient(weights, occupancy, row_max, row_scale)


def _check_saved(
    inputs: Inputs, grad_loss: Tensor, occupancy: Tensor, row_max: Tensor, row_scale: Tensor
) -> None:
    """The backward operator can be called by anyone: its saved tensors must fit."""
    scores = inputs.scores
    if grad_loss.shape != scores.shape[1:2] or not grad_loss.is_floating_point():
        raise ValueError(f"grad_loss is {grad_loss.dtype} {tuple(grad_loss.shape)}, expected one number per loss")
    expected = {
        "occupancy": (occupancy, (_occupancy_size(scores, inputs.targets, True),)),
        "row_max": (row_max, _row_shape(scores, inputs.from_logits)),
        "row_scale": (row_scale, _row_shape(scores, inputs.from_logits)),
    }
    for name, (value, shape) in expected.items():
        if tuple(value.shape) != shape or not value.is_contiguous():
            raise ValueError(f"{name} has shape {tuple(value.shape)}, expected contiguous {shape}")
        if value.dtype != scores.dtype:
            raise TypeError(f"{name} is {value.dtype}, expected {scores.dtype}")


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
    log_share = scores.new_empty(scores.shape[1], scores.shape[0], targets.shape[1])
    log_likelihood = torch.empty(scores.shape[1], dtype=torch.float64)
    _native.groups(
        call.native, at_start, targets.shape[1], log_share.data_ptr(), log_likelihood.data_ptr()
    )
    return log_share.transpose(1, 2), log_likelihood.to(scores.dtype)


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
    checked: bool = False,
) -> Tensor:
    """Runs the lattice again: that costs less than to keep it."""
    inputs = Inputs(scores, targets, input_lengths, target_lengths, blank, from_logits)
    _check_padded(targets)
    call = _Call(inputs, checked)
    batch, width = targets.shape
    if tuple(grad_share.shape) != (batch, width, scores.shape[0]):
        raise ValueError(f"grad_share has shape {tuple(grad_share.shape)}, expected (N, U, T)")
    if tuple(grad_likelihood.shape) != (batch,):
        raise ValueError(f"grad_likelihood has shape {tuple(grad_likelihood.shape)}, expected (N)")
    shares = grad_share.detach().to(scores.dtype).transpose(1, 2).contiguous()
    likelihoods = grad_likelihood.detach().to(torch.float64).contiguous()
    occupancy = scores.new_empty(_occupancy_size(scores, targets, True))
    row_max = scores.new_empty(_row_shape(scores, from_logits))
    row_scale = torch.empty_like(row_max)
    _native.groups_backward(
        call.native,
        at_start,
        width,
        shares.data_ptr(),
        likelihoods.data_ptr(),
        occupancy.data_ptr(),
        row_max.data_ptr(),
        row_scale.data_ptr(),
    )
    # occupancies of d log P: the sign of a loss is the caller's
    weights = torch.full((batch,), -1.0, dtype=torch.float64)
    return call.gradient(weights, occupancy, row_max, row_scale)


def _check_padded(targets: Tensor) -> None:
    if targets.dim() != 2:
        raise ValueError(f"path groups need targets of shape (N, U), got {tuple(targets.shape)}")


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
    path = torch.empty(scores.shape[1], scores.shape[0], dtype=torch.int64)
    start = torch.empty_like(targets)
    end = torch.empty_like(targets)
    score = torch.empty(scores.shape[1], dtype=torch.float64)
    _native.best_path(
        call.native,
        path.data_ptr(),
        start.data_ptr(),
        end.data_ptr(),
        targets.shape[1],
        score.data_ptr(),
    )
    return path, start, end, score.to(scores.dtype)


# ---- autograd -------------------------------------------------------------------------------


class _Loss(torch.autograd.Function):
    """Loss and reduction in one node: a further one costs 20 us each way."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *arguments, reduction, zero_infinity = arguments
        losses, *saved = _native_loss(*arguments)
        if arguments[8]:  # gradient
            _keep(ctx, arguments, saved)
        ctx.weights = weights = torch.empty_like(losses)
        value = _native.reduce(
            losses.data_ptr(),
            losses.shape[0],
            arguments[3].contiguous().data_ptr(),  # target_lengths
            reduction == "mean",
            zero_infinity,
            weights.data_ptr(),
        )
        dtype = arguments[0].dtype
        return losses.to(dtype) if reduction == "none" else torch.tensor(value, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        arguments = (grad * ctx.weights, *tensors[:4], *ctx.options, *tensors[4:])
        return (_differentiable_once(_ctc_loss_backward, "ctc_loss_backward", arguments), *[None] * 10)


class _Groups(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        _keep(ctx, arguments, [])
        ctx.at_start = arguments[6]
        return _path_groups(*arguments)

    @staticmethod
    def backward(ctx: Any, grad_share: Tensor, grad_likelihood: Tensor) -> tuple[Tensor | None, ...]:
        arguments = (grad_share, grad_likelihood, *ctx.saved_tensors, *ctx.options, ctx.at_start)
        return (_differentiable_once(_path_groups_backward, "path_groups_backward", arguments), *[None] * 6)


def _keep(ctx: Any, arguments: tuple[Any, ...], saved: list[Tensor]) -> None:
    ctx.save_for_backward(*arguments[:4], *saved)
    ctx.options = arguments[4:6]  # blank, from_logits


def _differentiable_once(function: Any, name: str, arguments: tuple[Any, ...]) -> Tensor:
    # With create_graph=True the registered operator stands in the graph, and says that it has no
    # derivative of its own; else the function itself is quicker.
    if torch.is_grad_enabled():
        return getattr(torch.ops.brctc, name)(*arguments)
    return function(*arguments, checked=True)


# ---- operators ------------------------------------------------------------------------------

_INPUTS = "Tensor {}, Tensor targets, Tensor input_lengths, Tensor target_lengths, SymInt blank, bool from_logits"
_INPUTS = _INPUTS.format("scores")
_library = torch.library.Library("brctc", "DEF")


def _no_second_derivative(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(
        "the native CPU backend has no second derivative: pass backend='reference' to differentiate twice"
    )


def _register(schema: str, function: Any, fake: Any) -> str:
    name = "brctc::" + schema.split("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(schema.split("(")[0], function, "CPU")
    torch.library.register_fake(name, fake, lib=_library)
    return name


def _fake_loss(scores, targets, input_lengths, target_lengths, blank, from_logits, risk, risk_factor, gradient):  # noqa: ANN001, ANN202
    rows = _row_shape(scores, gradient and from_logits)
    return (
        scores.new_empty(scores.shape[1]),
        scores.new_empty(_occupancy_size(scores, targets, gradient)),
        scores.new_empty(rows),
        scores.new_empty(rows),
    )


def _fake_gradient(scores: Tensor) -> Tensor:
    laid_out = scores if scores.stride(2) == 1 else scores.contiguous()
    frames, batch, classes = scores.shape
    if _batch_major(laid_out):
        return scores.new_empty(batch, frames, classes).transpose(0, 1)
    return scores.new_empty(frames, batch, classes)


def _fake_groups(scores, targets, input_lengths, target_lengths, blank, from_logits, at_start):  # noqa: ANN001, ANN202
    frames, batch, _ = scores.shape
    return scores.new_empty(batch, frames, targets.shape[1]).transpose(1, 2), scores.new_empty(batch)


def _fake_best_path(scores, targets, input_lengths, target_lengths, blank, from_logits):  # noqa: ANN001, ANN202
    frames, batch, _ = scores.shape
    return (
        targets.new_empty(batch, frames),
        torch.empty_like(targets),
        torch.empty_like(targets),
        scores.new_empty(batch),
    )


_name = _register(
    f"ctc_loss({_INPUTS}, int risk, float risk_factor, bool gradient) -> (Tensor, Tensor, Tensor, Tensor)",
    _ctc_loss,
    _fake_loss,
)


def _setup_loss(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _keep(ctx, inputs, list(output[1:]))
    ctx.mark_non_differentiable(*output[1:])
    ctx.has_gradient = inputs[8]


def _loss_backward(ctx: Any, grad_loss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    if not ctx.has_gradient:
        raise RuntimeError("brctc::ctc_loss was called with gradient=False and cannot be differentiated")
    tensors = ctx.saved_tensors
    grad = torch.ops.brctc.ctc_loss_backward(grad_loss, *tensors[:4], *ctx.options, *tensors[4:])
    return (grad, *[None] * 8)


torch.library.register_autograd(_name, _loss_backward, setup_context=_setup_loss, lib=_library)

_name = _register(
    f"ctc_loss_backward(Tensor grad_loss, {_INPUTS}, Tensor occupancy, Tensor row_max, Tensor row_scale)"
    " -> Tensor",
    _ctc_loss_backward,
    lambda grad_loss, scores, *_: _fake_gradient(scores),
)
torch.library.register_autograd(_name, _no_second_derivative, lib=_library)

_name = _register(f"path_groups({_INPUTS}, bool at_start) -> (Tensor, Tensor)", _path_groups, _fake_groups)


def _setup_groups(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _keep(ctx, inputs, [])
    ctx.at_start = inputs[6]


def _groups_backward(ctx: Any, grad_share: Tensor, grad_likelihood: Tensor) -> tuple[Tensor | None, ...]:
    arguments = (grad_share, grad_likelihood, *ctx.saved_tensors, *ctx.options, ctx.at_start)
    return (torch.ops.brctc.path_groups_backward(*arguments), *[None] * 6)


torch.library.register_autograd(_name, _groups_backward, setup_context=_setup_groups, lib=_library)

_name = _register(
    f"path_groups_backward(Tensor grad_share, Tensor grad_likelihood, {_INPUTS}, bool at_start) -> Tensor",
    _path_groups_backward,
    lambda grad_share, grad_likelihood, scores, *_: _fake_gradient(scores),
)
torch.library.register_autograd(_name, _no_second_derivative, lib=_library)

_register(f"best_path({_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)", _best_path, _fake_best_path)
