"""The Triton kernels as torch operators, for CUDA and ROCm tensors.

Loss and occupancies, which are small, are found in the forward pass; the backward pass makes the
gradient from them and the scores. Nothing waits for the device but the checks of the input's values,
and these only if they are asked for. Triton itself is imported when a kernel is first run.
"""

import math
from typing import Any

import torch
from torch import Tensor

from brctc.kernels import reference
from brctc.kernels.inputs import HALF_OR_FULL, Inputs, check_shapes, pad_targets
from brctc.kernels.operators import no_second_derivative, register
from brctc.kernels.reduction import reduce_losses
from brctc.risk import BayesRisk, DelayPenalty, EarlyEmission, EarlyFinish

READS_HALF = True
_CLOSED_FORMS: dict[type, int] = {type(None): 0, EarlyFinish: 1, EarlyEmission: 2}

risk_loss = reference.risk_loss


def has_closed_form(risk: BayesRisk | None) -> bool:
    """Whether the loss itself is native. Subclasses may have changed log_risk: they are not."""
    return type(risk) in _CLOSED_FORMS or type(risk) is DelayPenalty


def loss(
    inputs: Inputs, risk: BayesRisk | None, reduction: str, zero_infinity: bool, validate: bool
) -> Tensor:
    """The reduced loss, for a risk that has a closed form. A delay penalty, which is there to be compared
    with, has no kernels of its own."""
    if isinstance(risk, DelayPenalty):
        scores = inputs.scores if inputs.scores.dtype == torch.float64 else inputs.scores.float()
        return reference.loss(inputs._replace(scores=scores), risk, reduction, zero_infinity, validate)
    inputs = pad_targets(inputs)
    factor = float(getattr(risk, "risk_factor", 0.0))
    gradient = torch.is_grad_enabled() and inputs.scores.requires_grad
    options = (_CLOSED_FORMS[type(risk)], factor, gradient, validate)
    losses = torch.ops.brctc.triton_loss(*inputs, *options)[0]
    lengths = inputs.target_lengths.to(losses.device, non_blocking=True)
    return reduce_losses(losses, lengths, reduction, zero_infinity)


def path_groups(inputs: Inputs, event: str, validate: bool) -> tuple[Tensor, Tensor]:
    """log_share (N, U, T) and log_likelihood (N), as PathGroups describes them."""
    return torch.ops.brctc.triton_path_groups(*inputs, event == "start", validate)


# ---- operators ------------------------------------------------------------------------------


def _laid_out(scores: Tensor) -> Tensor:
    """Classes side by side, as the kernels read them."""
    return scores if scores.stride(2) == 1 and not scores.is_neg() else scores.resolve_neg().contiguous()


def _checked(*arguments: Any) -> Inputs:
    inputs = Inputs(*arguments)
    check_shapes(inputs, HALF_OR_FULL)
    if inputs.targets.dim() != 2:
        raise ValueError(f"the kernels need targets of shape (N, U), got {tuple(inputs.targets.shape)}")
    return inputs._replace(scores=_laid_out(inputs.scores))


def _loss(*arguments: Any) -> tuple[Tensor, ...]:
    from brctc.kernels import triton_run

    *inputs, risk, factor, gradient, validate = arguments
    if risk not in _CLOSED_FORMS.values() or not math.isfinite(factor):
        raise ValueError(f"risk {risk} with factor {factor} is not a closed form")
    return triton_run.loss(_checked(*inputs), risk, factor, gradient, validate)


def _gradient(grad_losses: Tensor, scores: Tensor, from_logits: bool, *saved: Tensor) -> Tensor:
    from brctc.kernels import triton_run

    occupancy, rows, possible, book = saved
    if grad_losses.shape != scores.shape[1:2] or not grad_losses.is_floating_point():
        found = f"{grad_losses.dtype} {tuple(grad_losses.shape)}"
        raise ValueError(f"grad_losses is {found}, expected {scores.shape[1]} floating-point values")
    # anyone can call this operator: what was saved must fit
    T, N, _ = scores.shape
    W = occupancy.shape[-1]
    fits = occupancy.shape[-3:] == (N, T, W) and rows.shape == (2, N, T) and book.shape == (N, 2 * W + 2)
    if not fits or possible.shape != (N,) or occupancy.numel() not in (N * T * W, 2 * N * T * W):
        raise ValueError(f"what was kept of the loss does not fit scores of shape {tuple(scores.shape)}")
    scores = _laid_out(scores)
    return triton_run.gradient(grad_losses, scores, from_logits, occupancy, rows, possible, possible, book)


def _path_groups(*arguments: Any) -> tuple[Tensor, Tensor]:
    from brctc.kernels import triton_run

    *inputs, at_start, validate = arguments
    return triton_run.path_groups(_checked(*inputs), at_start, validate)


def _path_groups_backward(grad_share: Tensor, grad_likelihood: Tensor, *arguments: Any) -> Tensor:
    from brctc.kernels import triton_run

    *values, at_start = arguments
    inputs = _checked(*values)
    batch, width = inputs.targets.shape
    if tuple(grad_share.shape) != (batch, width, inputs.scores.shape[0]):
        raise ValueError(f"grad_share has shape {tuple(grad_share.shape)}, expected (N, U, T)")
    if tuple(grad_likelihood.shape) != (batch,):
        raise ValueError(f"grad_likelihood has shape {tuple(grad_likelihood.shape)}, expected (N)")
    return triton_run.path_groups_backward(grad_share, grad_likelihood, inputs, at_start)


def _real(scores: Tensor) -> torch.dtype:
    return torch.float64 if scores.dtype == torch.float64 else torch.float32


def _fake_loss(scores: Tensor, targets: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    risk, _, gradient, _ = arguments[-4:]
    T, N, _ = scores.shape
    W = targets.shape[1] + 1
    shape = (0,) if not gradient else (2, N, T, W) if risk == _CLOSED_FORMS[EarlyEmission] else (N, T, W)
    new = lambda *shape: scores.new_empty(shape, dtype=_real(scores))  # noqa: E731
    return new(N), new(*shape), new(2, N, T), new(N), scores.new_empty((N, 2 * W + 2), dtype=torch.int32)


def _fake_groups(scores: Tensor, targets: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    frames, batch = scores.shape[:2]
    shape = (batch, targets.shape[1], frames)
    return tuple(scores.new_empty(s, dtype=_real(scores)) for s in (shape, (batch,)))  # pyright: ignore[reportReturnType]


def _fake_gradient(scores: Tensor) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


def _setup_loss(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[0], *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.from_logits, ctx.has_gradient = inputs[5], inputs[8]


def _loss_backward(ctx: Any, grad_losses: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    if not ctx.has_gradient:
        raise RuntimeError("brctc::triton_loss was called with gradient=False and cannot be differentiated")
    scores, *saved = ctx.saved_tensors
    dense = torch.ops.brctc.triton_gradient(grad_losses, scores, ctx.from_logits, *saved)
    return (dense, *[None] * 9)


def _setup_groups(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.options = inputs[4:7]  # blank, from_logits, at_start


def _groups_backward(ctx: Any, grad_share: Tensor, grad_likelihood: Tensor) -> tuple[Tensor | None, ...]:
    arguments = (grad_share, grad_likelihood, *ctx.saved_tensors, *ctx.options)
    return (torch.ops.brctc.triton_path_groups_backward(*arguments), *[None] * 7)


_INPUTS = (
    "Tensor scores, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
    "SymInt blank, bool from_logits"
)
_DEVICES = ("CUDA", "CPU")  # ROCm's tensors are CUDA's to torch; the interpreter takes the CPU's

register(
    f"triton_loss({_INPUTS}, int risk, float risk_factor, bool gradient, bool validate) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _loss,
    _fake_loss,
    _loss_backward,
    _setup_loss,
    devices=_DEVICES,
)
register(
    "triton_gradient(Tensor grad_losses, Tensor scores, bool from_logits, Tensor occupancy, Tensor rows, "
    "Tensor possible, Tensor book) -> Tensor",
    _gradient,
    lambda grad_losses, scores, *_: _fake_gradient(scores),
    no_second_derivative,
    devices=_DEVICES,
)
register(
    f"triton_path_groups({_INPUTS}, bool at_start, bool validate) -> (Tensor, Tensor)",
    _path_groups,
    _fake_groups,
    _groups_backward,
    _setup_groups,
    devices=_DEVICES,
)
register(
    f"triton_path_groups_backward(Tensor grad_share, Tensor grad_likelihood, {_INPUTS}, bool at_start) "
    "-> Tensor",
    _path_groups_backward,
    lambda grad_share, grad_likelihood, scores, *_: _fake_gradient(scores),
    no_second_derivative,
    devices=_DEVICES,
)
