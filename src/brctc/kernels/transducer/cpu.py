"""The transducer losses on the CPU, by the native core: eager calls through autograd Functions, traced ones
through registered operators. This file has dense logits, cpu_joint.py those of a joint network.

The native core keeps four numbers per cell of the lattice: no copy of the softmax waits for the
backward pass, which finds it again from the logits. Values are always validated, as for CTC.
"""

from typing import Any

import torch
from torch import Tensor

from brctc import _native
from brctc.kernels.operators import (
    needs_operators,
    no_second_derivative,
    outside_graphs,
    register,
    wants_operator,
)
from brctc.kernels.transducer.cpu_joint import joint_loss
from brctc.kernels.transducer.inputs import NUMBERS_PER_CELL, Labels, check_labels, native_transducer

__all__ = ["joint_loss", "losses"]


def losses(logits: Tensor, labels: Labels, validate: bool) -> Tensor:
    """-log P(targets) of every utterance, (N)."""
    gradient = torch.is_grad_enabled() and logits.requires_grad
    if needs_operators(logits):
        return loss_and_cells(logits, *labels, gradient)[0]
    return _Losses.apply(logits, labels, gradient)


# ---- the native calls -----------------------------------------------------------------------


def _laid_out(logits: Tensor) -> Tensor:
    return logits if logits.stride(3) == 1 and not logits.is_neg() else logits.resolve_neg().contiguous()


def _address(logits: Tensor) -> tuple[int, int, int, int]:
    return logits.data_ptr(), logits.stride(0), logits.stride(1), logits.stride(2)


def _checked(logits: Tensor, labels: Labels) -> _native.Transducer:
    if logits.dim() != 4:
        raise ValueError(f"logits must be (N, T, U + 1, C), got {tuple(logits.shape)}")
    if logits.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"logits must be float32 or float64 here, got {logits.dtype}")
    check_labels(labels, tuple(logits.shape))
    return native_transducer(labels, tuple(logits.shape), logits.dtype)


def _cell_numbers(logits: Tensor) -> int:
    batch, frames, rows, _ = logits.shape
    return NUMBERS_PER_CELL * batch * frames * rows


def _native_losses(native: _native.Transducer, logits: Tensor, cells: Tensor, gradient: bool) -> Tensor:
    logits = _laid_out(logits)
    native.read(*_address(logits), cells.data_ptr())
    found = torch.empty(logits.shape[0], dtype=torch.float64, device="cpu")
    native.lattice(0, logits.shape[0], cells.data_ptr(), found.data_ptr(), gradient)
    return found.to(logits.dtype)


def _native_gradient(native: _native.Transducer, grad: Tensor, logits: Tensor, cells: Tensor) -> Tensor:
    logits = _laid_out(logits)
    weights = grad.detach().double().contiguous()
    return native.gradient(*_address(logits), cells.data_ptr(), weights.data_ptr())


# ---- autograd -------------------------------------------------------------------------------


class _Losses(torch.autograd.Function):
    """An eager call: the registered operators below cost 150 us more."""

    @staticmethod
    @outside_graphs
    def forward(ctx: Any, logits: Tensor, labels: Labels, gradient: bool) -> Tensor:
        native = native_transducer(labels, tuple(logits.shape), logits.dtype)
        cells = logits.new_empty(_cell_numbers(logits))
        found = _native_losses(native, logits, cells, gradient)
        if gradient:
            targets, logit_lengths, target_lengths, ctx.blank = labels
            ctx.save_for_backward(logits, targets, logit_lengths, target_lengths, cells)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets, logit_lengths, target_lengths, cells = ctx.saved_tensors
        labels = Labels(targets, logit_lengths, target_lengths, ctx.blank)
        backward = losses_backward if wants_operator(grads[0]) else _transducer_loss_backward
        return backward(grads[0], logits, *labels, cells), None, None


# ---- operators: what a tracer sees ----------------------------------------------------------


@outside_graphs
def _transducer_loss(logits: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Losses (N), and the cells of the lattice for the backward pass."""
    *labels, gradient = arguments
    native = _checked(logits, Labels(*labels))
    # as an operator's output, cells must have no unwritten places
    cells = logits.new_zeros(_cell_numbers(logits))
    found = _native_losses(native, logits, cells, gradient)
    return found, cells if gradient else logits.new_empty(0)


@outside_graphs
def _transducer_loss_backward(grad_losses: Tensor, logits: Tensor, *arguments: Any) -> Tensor:
    *labels, cells = arguments
    native = _checked(logits, Labels(*labels))
    # anyone can call this operator: what was saved must fit
    if grad_losses.shape != logits.shape[:1] or not grad_losses.is_floating_point():
        found = f"{grad_losses.dtype} {tuple(grad_losses.shape)}"
        raise ValueError(f"grad_losses is {found}, expected {logits.shape[0]} floating-point values")
    size = _cell_numbers(logits)
    if cells.dtype != logits.dtype or cells.shape != (size,) or not cells.is_contiguous():
        found = f"{cells.dtype} {tuple(cells.shape)}"
        raise ValueError(f"cells is {found}, expected {size} contiguous {logits.dtype} values")
    return _native_gradient(native, grad_losses, logits, cells)


_INPUTS = "Tensor logits, Tensor targets, Tensor logit_lengths, Tensor target_lengths, SymInt blank"


def _fake_loss(logits: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    gradient = arguments[-1]
    return logits.new_empty(logits.shape[0]), logits.new_empty(_cell_numbers(logits) if gradient else 0)


def _setup_loss(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:4], output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.blank, ctx.has_gradient = inputs[4:]


def _loss_backward(ctx: Any, grad_losses: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    if not ctx.has_gradient:
        raise RuntimeError("brctc::transducer_loss was called with gradient=False and has none")
    *inputs, cells = ctx.saved_tensors
    dense = losses_backward(grad_losses, *inputs, ctx.blank, cells)
    return (dense, *[None] * 5)


loss_and_cells = register(
    f"transducer_loss({_INPUTS}, bool gradient) -> (Tensor, Tensor)",
    _transducer_loss,
    _fake_loss,
    _loss_backward,
    _setup_loss,
)
losses_backward = register(
    f"transducer_loss_backward(Tensor grad_losses, {_INPUTS}, Tensor cells) -> Tensor",
    _transducer_loss_backward,
    lambda grad_losses, logits, *_: torch.empty_like(logits, memory_format=torch.contiguous_format),
    no_second_derivative,
)
