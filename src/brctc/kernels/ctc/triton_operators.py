"""The Triton kernels of the CTC criteria as operators of torch: schema, fake kernel and autograd of each."""

from typing import Any

import torch
from torch import Tensor

from brctc.kernels.ctc.closed_form import RiskKind, checked_form
from brctc.kernels.ctc.inputs import Inputs, check_shapes
from brctc.kernels.operators import no_second_derivative, register
from brctc.kernels.tensors import HALF_OR_FULL


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
    from brctc.kernels.ctc import triton_run

    *inputs, risk, factor, gradient, validate = arguments
    form = checked_form(risk, factor)
    if form.kind is RiskKind.DELAY_PENALTY:
        raise ValueError("a delay penalty has no Triton kernels")
    return triton_run.loss(_checked(*inputs), form, gradient, validate)


def _gradient(grad_losses: Tensor, scores: Tensor, from_logits: bool, *saved: Tensor) -> Tensor:
    from brctc.kernels.ctc import triton_run

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
    # of a loss, the occupancies of a frame add up to 1, or to 0 without a path
    return triton_run.gradient(
        grad_losses, scores, from_logits, occupancy, rows, possible, mass=possible, book=book
    )


def _path_groups(*arguments: Any) -> tuple[Tensor, Tensor]:
    from brctc.kernels.ctc import triton_run

    *inputs, at_start, validate = arguments
    return triton_run.path_groups(_checked(*inputs), at_start, validate)


def _path_groups_backward(grad_share: Tensor, grad_likelihood: Tensor, *arguments: Any) -> Tensor:
    from brctc.kernels.ctc import triton_run

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
    shape = (0,) if not gradient else (2, N, T, W) if risk == RiskKind.EARLY_EMISSION else (N, T, W)
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
    ctx.from_logits, ctx.has_gradient = inputs[5], inputs[9]


def _loss_backward(ctx: Any, grad_losses: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    if not ctx.has_gradient:
        raise RuntimeError("brctc::triton_loss was called with gradient=False and cannot be differentiated")
    scores, *saved = ctx.saved_tensors
    dense = gradient(grad_losses, scores, ctx.from_logits, *saved)
    return (dense, *[None] * 10)


def _setup_groups(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:4])
    *ctx.others, _ = inputs[4:]


def _groups_backward(ctx: Any, grad_share: Tensor, grad_likelihood: Tensor) -> tuple[Tensor | None, ...]:
    dense = path_groups_backward(grad_share, grad_likelihood, *ctx.saved_tensors, *ctx.others)
    return (dense, *[None] * 8)


_INPUTS = (
    "Tensor scores, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
    "SymInt blank, bool from_logits, bool nan"
)
_DEVICES = ("CUDA", "CPU")  # ROCm's tensors are CUDA's to torch; the interpreter takes the CPU's

loss = register(
    f"triton_loss({_INPUTS}, int risk, float factor, bool gradient, bool validate) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _loss,
    _fake_loss,
    _loss_backward,
    _setup_loss,
    devices=_DEVICES,
)
gradient = register(
    "triton_gradient(Tensor grad_losses, Tensor scores, bool from_logits, Tensor occupancy, Tensor rows, "
    "Tensor possible, Tensor book) -> Tensor",
    _gradient,
    lambda grad_losses, scores, *_: _fake_gradient(scores),
    no_second_derivative,
    devices=_DEVICES,
)
path_groups = register(
    f"triton_path_groups({_INPUTS}, bool at_start, bool validate) -> (Tensor, Tensor)",
    _path_groups,
    _fake_groups,
    _groups_backward,
    _setup_groups,
    devices=_DEVICES,
)
path_groups_backward = register(
    f"triton_path_groups_backward(Tensor grad_share, Tensor grad_likelihood, {_INPUTS}, bool at_start) "
    "-> Tensor",
    _path_groups_backward,
    lambda grad_share, grad_likelihood, scores, *_: _fake_gradient(scores),
    no_second_derivative,
    devices=_DEVICES,
)
