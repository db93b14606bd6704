"""Launches the GPU kernels of the transducer loss."""

import torch
from torch import Tensor

from brctc.kernels import triton_launch
from brctc.kernels.transducer import triton_cells
from brctc.kernels.transducer.inputs import Labels, native_transducer
from brctc.kernels.triton_launch import Book, Sizes, on_device, power_of_two, prepare, raise_for, sizes_of


def _sizes(logits: Tensor) -> Sizes:
    N, T, W, C = logits.shape
    return sizes_of(N, T, W, C, logits.dtype)


def _row_block(sizes: Sizes) -> dict[str, int]:
    block = min(power_of_two(sizes.C), 1024)
    return {"BLOCK": block, "num_warps": min(max(block // 256, 1), 4)}


def loss(logits: Tensor, labels: Labels, gradient: bool, validate: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Losses (N), and what their gradient is made from: cells and book."""
    sizes = _sizes(logits)
    N, T, W, C, real = sizes
    device = logits.device
    with on_device(logits):
        status, book = prepare(
            labels.targets, labels.logit_lengths, labels.target_lengths, sizes, labels.blank, device
        )
        columns, _, frames, tokens = Book.of(book)
        em, ee = (torch.empty((2, N, T, W), dtype=d, device=device) for d in (real, sizes.integer))
        cells = torch.empty((4, N, T, W), dtype=real, device=device)
        largest = torch.empty((N, T, W), dtype=torch.float64, device=device)
        triton_launch.launch(
            triton_cells.cell_kernel, (T * W, N), logits, columns, frames, tokens, em, ee, cells, largest,
            *logits.stride()[:3], C, labels.blank, N, T, W, REAL=sizes.types["REAL"], **_row_block(sizes),
        )  # fmt: skip
        shape = (2, N, T, W) if gradient else (1,)
        masses_m, masses_e = (torch.empty(shape, dtype=d, device=device) for d in (real, sizes.integer))
        totals_m, totals_e = (torch.empty(N, dtype=d, device=device) for d in (real, sizes.integer))
        triton_launch.launch(
            triton_cells.diagonal_kernel, (N, 2 if gradient else 1), frames, tokens, em, ee,
            masses_m, masses_e, totals_m, totals_e, N, T, W, **sizes.types, KEEP=gradient, **sizes.lanes,
        )  # fmt: skip
        losses = torch.empty(N, dtype=real, device=device)
        triton_launch.launch(
            triton_cells.close_kernel, (N,), frames, tokens, totals_m, totals_e, largest, status, losses,
            T, W, sizes.budget, BLOCK=256, num_warps=2,
        )  # fmt: skip
        if validate:
            words = lambda: native_transducer(labels, tuple(logits.shape), real)  # noqa: E731
            raise_for(status, words, True, logits.dtype, nan=False)
        if not gradient:
            return losses, cells.new_empty(0), book
        triton_launch.launch(
            triton_cells.visit_kernel, (-(-T * W // 256), N), frames, tokens, em, ee, masses_m, masses_e,
            totals_m, totals_e, losses, cells, N, T, W, REAL=sizes.types["REAL"], BLOCK=256, num_warps=2,
        )  # fmt: skip
    return losses, cells, book


def gradient(weights: Tensor, logits: Tensor, blank: int, cells: Tensor, book: Tensor) -> Tensor:
    """The gradient by the logits, in their dtype, each utterance's multiplied by its weight."""
    sizes = _sizes(logits)
    N, T, W, C, real = sizes
    dense = torch.empty_like(logits, memory_format=torch.contiguous_format)
    with on_device(logits):
        triton_launch.launch(
            triton_cells.cell_gradient_kernel, (T * W, N), logits, Book.of(book).labels,
            weights.to(real).contiguous(), cells, dense, *logits.stride()[:3], C, blank, N, T, W,
            REAL=sizes.types["REAL"], **_row_block(sizes),
        )  # fmt: skip
    return dense
