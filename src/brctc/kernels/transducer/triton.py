"""The transducer losses by Triton kernels, as operators of torch, for CUDA and ROCm tensors."""

from typing import Any

import torch
from torch import Tensor

from brctc.kernels.operators import no_second_derivative, register
from brctc.kernels.reduction import Reduction, reduce_losses
from brctc.kernels.tensors import HALF_OR_FULL
from brctc.kernels.transducer.inputs import Joint, Labels, check_labels
from brctc.kernels.transducer.reference import joint_logits


def losses(logits: Tensor, labels: Labels, validate: bool) -> Tensor:
    """-log P(targets) of every utterance, (N)."""
    gradient = torch.is_grad_enabled() and logits.requires_grad
    return loss_and_cells(logits, *labels, gradient, validate)[0]


def joint_loss(joint: Joint, labels: Labels, reduction: Reduction, validate: bool) -> Tensor:
    """Makes all logits."""
    found = losses(joint_logits(joint, labels), labels, validate)
    lengths = labels.target_lengths.to(found.device, non_blocking=True)
    return reduce_losses(found, lengths, reduction)


def _checked(logits: Tensor, labels: Labels) -> Tensor:
    if logits.dim() != 4:
        raise ValueError(f"logits must be (N, T, U + 1, C), got {tuple(logits.shape)}")
    if logits.dtype not in HALF_OR_FULL:
        raise TypeError(f"logits must be floating point, got {logits.dtype}")
    check_labels(labels, tuple(logits.shape))
    return logits if logits.stride(3) == 1 and not logits.is_neg() else logits.resolve_neg().contiguous()


def _loss(logits: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    from brctc.kernels.transducer import triton_run

    *values, gradient, validate = arguments
    labels = Labels(*values)
    return triton_run.loss(_checked(logits, labels), labels, gradient, validate)


def _backward(grad_losses: Tensor, logits: Tensor, blank: int, cells: Tensor, book: Tensor) -> Tensor:
    from brctc.kernels.transducer import triton_run

    N, T, W, _ = logits.shape
    if grad_losses.shape != (N,) or not grad_losses.is_floating_point():
        found = f"{grad_losses.dtype} {tuple(grad_losses.shape)}"
        raise ValueError(f"grad_losses is {found}, expected {N} floating-point values")
    # anyone can call this operator: what was saved must fit
    if cells.shape != (4, N, T, W) or book.shape != (N, 2 * W + 2):
        raise ValueError(f"what was kept of the loss does not fit logits of shape {tuple(logits.shape)}")
    logits = logits if logits.stride(3) == 1 and not logits.is_neg() else logits.resolve_neg().contiguous()
    return triton_run.gradient(grad_losses, logits, blank, cells, book)


def _fake_loss(logits: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    N, T, W, _ = logits.shape
    real = torch.float64 if logits.dtype == torch.float64 else torch.float32
    cells = (4, N, T, W) if arguments[-2] else (0,)
    book = logits.new_empty((N, 2 * W + 2), dtype=torch.int32)
    return logits.new_empty(N, dtype=real), logits.new_empty(cells, dtype=real), book


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[0], *output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.blank, ctx.has_gradient = inputs[4:6]


def _loss_backward(ctx: Any, grad_losses: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    if not ctx.has_gradient:
        raise RuntimeError("brctc::triton_transducer_loss was called with gradient=False and has none")
    logits, cells, book = ctx.saved_tensors
    dense = loss_gradient(grad_losses, logits, ctx.blank, cells, book)
    return (dense, *[None] * 6)


loss_and_cells = register(
    "triton_transducer_loss(Tensor logits, Tensor targets, Tensor logit_lengths, Tensor target_lengths, "
    "SymInt blank, bool gradient, bool validate) -> (Tensor, Tensor, Tensor)",
    _loss,
    _fake_loss,
    _loss_backward,
    _setup,
    devices=("CUDA", "CPU"),
)
loss_gradient = register(
    "triton_transducer_gradient(Tensor grad_losses, Tensor logits, SymInt blank, Tensor cells, Tensor book) "
    "-> Tensor",
    _backward,
    lambda grad_losses, logits, *_: torch.empty_like(logits, memory_format=torch.contiguous_format),
    no_second_derivative,
    devices=("CUDA", "CPU"),
)
