"""Launches the GPU kernels of the CTC losses: what is allocated, and what runs after what."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from brctc.kernels import triton_launch
from brctc.kernels.ctc import triton_groups, triton_lattice, triton_rows
from brctc.kernels.ctc.closed_form import ClosedForm, RiskKind
from brctc.kernels.ctc.inputs import Inputs, check_values
from brctc.kernels.triton_launch import Book, Sizes, on_device, prepare, raise_for, sizes_of


def _sizes(scores: Tensor, W: int) -> Sizes:
    T, N, C = scores.shape
    return sizes_of(N, T, W, C, scores.dtype)


class Lattice(NamedTuple):
    """What the two chains leave behind."""

    book: Tensor
    rows: Tensor  # (2, N, T): each frame's shift and sum
    largest: Tensor
    status: Tensor
    states_m: Tensor
    states_e: Tensor
    totals_m: Tensor
    totals_e: Tensor


def run_lattice(inputs: Inputs, sizes: Sizes, boost: float, keep: bool) -> Lattice:
    """Checks the batch, makes the emissions and runs both chains."""
    scores = inputs.scores
    N, T, W, C, real = sizes
    device = scores.device
    status, book = prepare(*inputs[1:4], sizes, inputs.blank, device, least_frames=0)
    labels, _, frames, tokens = Book.of(book)
    em, ee = (torch.empty((N, T, W), dtype=dtype, device=device) for dtype in (real, sizes.integer))
    rows = torch.empty((2, N, T), dtype=real, device=device)
    largest = torch.empty((N, T), dtype=torch.float64, device=device)
    triton_launch.launch(
        triton_rows.emit_kernel, (T, N), scores, labels, frames, tokens, em, ee, rows[0], rows[1], largest,
        scores.stride(0), scores.stride(1), C, T, W, **sizes.types, LOGITS=inputs.from_logits, **sizes.block,
    )  # fmt: skip
    shape = (2, 2, N, T, W) if keep else (1,)
    states_m, states_e = (torch.empty(shape, dtype=dtype, device=device) for dtype in (real, sizes.integer))
    totals_m, totals_e = (torch.empty((2, N), dtype=dtype, device=device) for dtype in (real, sizes.integer))
    triton_launch.launch(
        triton_lattice.chain_kernel, (N, 2 if keep else 1), em, ee, labels, frames, tokens,
        states_m, states_e, totals_m, totals_e, boost, N, T, W,
        **sizes.types, BOOST=boost != 0, KEEP=keep, **sizes.lanes,
    )  # fmt: skip
    return Lattice(book, rows, largest, status, states_m, states_e, totals_m, totals_e)


def finish(
    inputs: Inputs, sizes: Sizes, lattice: Lattice, factor: float, objectives: Tensor | None, validate: bool
) -> tuple[Tensor, Tensor]:
    """Losses (N), and (N) whether there is a path and nothing wrong: 1 or 0, or NaN where the gradient is."""
    losses, possible = (lattice.totals_m.new_empty(sizes.N) for _ in range(2))
    _, _, frames, tokens = Book.of(lattice.book)
    triton_launch.launch(
        triton_groups.finish_kernel, (sizes.N,), frames, tokens, lattice.totals_m, lattice.totals_e,
        lattice.rows[1], lattice.largest, lattice.largest if objectives is None else objectives,
        lattice.status, losses, possible, factor, sizes.T, sizes.W, sizes.budget,
        EACH=objectives is not None, BLOCK=128, num_warps=1,
    )  # fmt: skip
    if validate:
        words = lambda: check_values(inputs)  # noqa: E731
        raise_for(lattice.status, words, inputs.from_logits, inputs.scores.dtype, inputs.nan)
    if inputs.nan:
        possible.masked_fill_(losses.isnan(), math.nan)
    return losses, possible


def loss(
    inputs: Inputs, form: ClosedForm, gradient: bool, validate: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Losses (N) and what their gradient is made from: occupancies, rows, possible and book."""
    sizes = _sizes(inputs.scores, inputs.targets.shape[1] + 1)
    each = form.kind is RiskKind.EARLY_EMISSION
    factor = 0.0 if form.kind is RiskKind.NONE else form.factor
    with on_device(inputs.scores):
        lattice = run_lattice(inputs, sizes, 0.0 if each else factor, keep=gradient or each)
        objectives, sources = weigh(sizes, lattice, factor) if each else (None, None)
        losses, possible = finish(inputs, sizes, lattice, factor, objectives, validate)
        occupancy = lattice.rows.new_empty(0)
        if gradient and sources is not None:
            occupancy = retreat(sizes, lattice, sources, None, at_start=False)
        elif gradient:
            occupancy = occupy(sizes, lattice)
    return losses, occupancy, lattice.rows, possible, lattice.book


def weigh(sizes: Sizes, lattice: Lattice, factor: float) -> tuple[Tensor, Tensor]:
    N, T, W = sizes[:3]
    sources = lattice.rows.new_empty(N, T, W)
    objectives = torch.empty((N, W), dtype=torch.float64, device=sources.device)
    labels, _, frames, tokens = Book.of(lattice.book)
    triton_launch.launch(
        triton_groups.weigh_kernel, (N, -(-W // sizes.tile["BU"])), labels, frames, tokens,
        *lattice[4:], sources, objectives, factor, N, T, W, **sizes.types, **sizes.tile,
    )  # fmt: skip
    return objectives, sources


def occupy(sizes: Sizes, lattice: Lattice) -> Tensor:
    N, T, W = sizes[:3]
    occupancy = lattice.rows.new_empty(N, T, W)
    labels, _, frames, tokens = Book.of(lattice.book)
    triton_launch.launch(
        triton_lattice.occupy_kernel, (T, N), labels, frames, tokens, lattice.states_m, lattice.states_e,
        occupancy, N, T, W, REAL=sizes.types["REAL"], **sizes.lanes,
    )  # fmt: skip
    return occupancy


def retreat(sizes: Sizes, lattice: Lattice, sources: Tensor, extra: Tensor | None, at_start: bool) -> Tensor:
    N, T, W = sizes[:3]
    occupancy = lattice.rows.new_empty(2, N, T, W)
    labels, _, frames, tokens = Book.of(lattice.book)
    triton_launch.launch(
        triton_lattice.retreat_kernel, (N, 2), labels, frames, tokens, lattice.states_m, lattice.states_e,
        sources, sources if extra is None else extra, occupancy, N, T, W,
        **sizes.types, START=at_start, EXTRA=extra is not None, **sizes.lanes,
    )  # fmt: skip
    return occupancy


def gradient(
    weights: Tensor,
    scores: Tensor,
    from_logits: bool,
    occupancy: Tensor,
    rows: Tensor,
    possible: Tensor,
    mass: Tensor,
    book: Tensor,
) -> Tensor:
    """The gradient by the scores, in their dtype, each utterance's multiplied by its weight. Its
    occupancies add up to its mass in every frame."""
    sizes = _sizes(scores, occupancy.shape[-1])
    dense = torch.empty_like(scores, memory_format=torch.contiguous_format)
    with on_device(scores):
        triton_launch.launch(
            triton_rows.gradient_kernel, (sizes.T, sizes.N), scores, *Book.of(book), possible, mass,
            weights.to(sizes.real).contiguous(), rows[0], rows[1], occupancy, dense,
            scores.stride(0), scores.stride(1), dense.stride(0), dense.stride(1),
            sizes.C, sizes.N, sizes.T, sizes.W, REAL=sizes.types["REAL"], LOGITS=from_logits,
            TWO=occupancy.dim() == 4, **sizes.block,
        )  # fmt: skip
    return dense


def path_groups(inputs: Inputs, at_start: bool, validate: bool) -> tuple[Tensor, Tensor]:
    """log_share (N, U, T) and log_likelihood (N)."""
    sizes = _sizes(inputs.scores, inputs.targets.shape[1] + 1)
    N, T, W = sizes[:3]
    with on_device(inputs.scores):
        lattice = run_lattice(inputs, sizes, 0.0, keep=True)
        losses, _ = finish(inputs, sizes, lattice, 0.0, None, validate)
        log_share = losses.new_empty(N, W - 1, T)
        labels, _, frames, tokens = Book.of(lattice.book)
        triton_launch.launch(
            triton_groups.groups_kernel, _tiles(sizes), labels, frames, tokens, *lattice[4:], log_share,
            N, T, W, START=at_start, **sizes.tile,
        )  # fmt: skip
    return log_share, -losses


def path_groups_backward(
    grad_share: Tensor, grad_likelihood: Tensor, inputs: Inputs, at_start: bool
) -> Tensor:
    """Runs the lattice again: that costs less than to keep it."""
    sizes = _sizes(inputs.scores, inputs.targets.shape[1] + 1)
    N, T, W = sizes[:3]
    with on_device(inputs.scores):
        lattice = run_lattice(inputs, sizes, 0.0, keep=True)
        _, possible = finish(inputs, sizes, lattice, 0.0, None, validate=False)
        sources = lattice.rows.new_empty(N, T, W)
        last_share = lattice.rows.new_zeros(N, T)
        labels, _, frames, tokens = Book.of(lattice.book)
        triton_launch.launch(
            triton_groups.sources_kernel, _tiles(sizes), labels, frames, tokens, *lattice[4:],
            grad_share.to(sizes.real).contiguous(), sources, last_share,
            N, T, W, START=at_start, **sizes.tile,
        )  # fmt: skip
        # what is left for all paths is spread over the groups of the last token: they hold every path once
        rest = grad_likelihood.double() - sources.sum((1, 2), dtype=torch.float64)
        extra = rest.to(sizes.real)[:, None] * last_share
        occupancy = retreat(sizes, lattice, sources, extra, at_start)
    mass = grad_likelihood.to(sizes.real).contiguous()
    weights = torch.full_like(mass, -1)  # as of a loss, where occupancies count negative
    if inputs.nan:
        weights.masked_fill_(possible.isnan() & (mass == 0), 0)
    rows, book = lattice.rows, lattice.book
    return gradient(weights, inputs.scores, inputs.from_logits, occupancy, rows, possible, mass, book)


def _tiles(sizes: Sizes) -> tuple[int, int, int]:
    return sizes.N, -(-sizes.T // sizes.tile["BT"]), -(-sizes.W // sizes.tile["BU"])
