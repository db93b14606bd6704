"""Launches the GPU kernels of the CTC losses: what is allocated, and what runs after what."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from brctc.kernels import triton_groups, triton_lattice, triton_rows
from brctc.kernels.inputs import Inputs, check_values, unreadable

NONE, EARLY_FINISH, EARLY_EMISSION = 0, 1, 2  # closed forms, as kernels/cpu.py numbers them

MOST_FRAMES, MOST_LABELS = 8000, 1000


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """All launches pass here: tests compile them for devices that they do not have."""
    kernel[grid](*arguments, **options)


def power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


class Sizes(NamedTuple):
    """Axes of a batch and the constants that its kernels are compiled for."""

    N: int
    T: int
    W: int  # U + 1: the blank and the labels
    C: int
    real: torch.dtype

    @property
    def integer(self) -> torch.dtype:
        return torch.int64 if self.real == torch.float64 else torch.int32

    @property
    def types(self) -> dict[str, Any]:
        if self.real == torch.float64:
            return {"REAL": tl.float64, "INT": tl.int64}
        return {"REAL": tl.float32, "INT": tl.int32}

    @property
    def lanes(self) -> dict[str, int]:
        """A program that holds all labels of an utterance."""
        K = power_of_two(self.W)
        return {"K": K, "num_warps": min(max(K // 64, 1), 8)}

    @property
    def block(self) -> dict[str, int]:
        """And goes over the classes of a frame."""
        BLOCK = min(power_of_two(self.C), 1024)
        K = power_of_two(self.W)
        return {"K": K, "BLOCK": BLOCK, "num_warps": min(max(BLOCK // 256, K // 256, 1), 4)}

    @property
    def tile(self) -> dict[str, int]:
        return {"BT": 16, "BU": min(power_of_two(self.W), 32)}

    @property
    def budget(self) -> float:
        """What the exponents of an utterance may add up to: native/simd.h has the same."""
        return 2.0**59 if self.real == torch.float64 else 2.0**27


def sizes_of(N: int, T: int, W: int, C: int, dtype: torch.dtype) -> Sizes:
    if T > MOST_FRAMES or W - 1 > MOST_LABELS:
        raise ValueError(
            f"backend 'triton' takes up to {MOST_FRAMES} frames and {MOST_LABELS} labels, got {T} and "
            f"{W - 1}: pass backend='reference', or CPU tensors"
        )
    return Sizes(N, T, W, C, torch.float64 if dtype == torch.float64 else torch.float32)


def _sizes(scores: Tensor, W: int) -> Sizes:
    T, N, C = scores.shape
    return sizes_of(N, T, W, C, scores.dtype)


class Book(NamedTuple):
    """Lengths and labels as the kernels read them, in one tensor of integers."""

    labels: Tensor
    links: Tensor
    frames: Tensor
    tokens: Tensor

    @classmethod
    def of(cls, book: Tensor) -> "Book":
        N, width = book.shape[0], book.shape[1] // 2 - 1
        flat = book.view(-1)
        return cls(*flat.split([N * width, N * width, N, N]))


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


def on_device(tensor: Tensor) -> Any:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def prepare(
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    sizes: Sizes,
    blank: int,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """The status of each utterance, (N), and the book."""
    N, T, W, C, _ = sizes
    given = [x.to(device, non_blocking=True).contiguous() for x in (targets, input_lengths, target_lengths)]
    status = torch.empty(N, dtype=torch.int32, device=device)
    book = torch.empty((N, 2 * W + 2), dtype=torch.int32, device=device)
    labels, links, frames, tokens = Book.of(book)
    launch(
        triton_rows.prepare_kernel, (N,), *given, status, frames, tokens, labels, links,
        W - 1, T, W, C, blank, **sizes.lanes,
    )  # fmt: skip
    return status, book


def run_lattice(inputs: Inputs, sizes: Sizes, boost: float, keep: bool) -> Lattice:
    """Checks the batch, makes the emissions and runs both chains."""
    scores = inputs.scores
    N, T, W, C, real = sizes
    device = scores.device
    status, book = prepare(*inputs[1:4], sizes, inputs.blank, device)
    labels, _, frames, tokens = Book.of(book)
    em, ee = (torch.empty((N, T, W), dtype=dtype, device=device) for dtype in (real, sizes.integer))
    rows = torch.empty((2, N, T), dtype=real, device=device)
    largest = torch.empty((N, T), dtype=torch.float64, device=device)
    launch(
        triton_rows.emit_kernel, (T, N), scores, labels, frames, tokens, em, ee, rows[0], rows[1], largest,
        scores.stride(0), scores.stride(1), C, T, W, **sizes.types, LOGITS=inputs.from_logits, **sizes.block,
    )  # fmt: skip
    shape = (2, 2, N, T, W) if keep else (1,)
    states_m, states_e = (torch.empty(shape, dtype=dtype, device=device) for dtype in (real, sizes.integer))
    totals_m, totals_e = (torch.empty((2, N), dtype=dtype, device=device) for dtype in (real, sizes.integer))
    launch(
        triton_lattice.chain_kernel, (N, 2 if keep else 1), em, ee, labels, frames, tokens,
        states_m, states_e, totals_m, totals_e, boost, N, T, W,
        **sizes.types, BOOST=boost != 0, KEEP=keep, **sizes.lanes,
    )  # fmt: skip
    return Lattice(book, rows, largest, status, states_m, states_e, totals_m, totals_e)


def finish(
    inputs: Inputs, sizes: Sizes, lattice: Lattice, factor: float, objectives: Tensor | None, validate: bool
) -> tuple[Tensor, Tensor]:
    """Losses (N), and (N) whether there is a path and nothing wrong: 1 or 0."""
    losses, possible = (lattice.totals_m.new_empty(sizes.N) for _ in range(2))
    _, _, frames, tokens = Book.of(lattice.book)
    launch(
        triton_groups.finish_kernel, (sizes.N,), frames, tokens, lattice.totals_m, lattice.totals_e,
        lattice.rows[1], lattice.largest, lattice.largest if objectives is None else objectives,
        lattice.status, losses, possible, factor, sizes.T, sizes.W, sizes.budget,
        EACH=objectives is not None, BLOCK=128, num_warps=1,
    )  # fmt: skip
    if validate:
        raise_for(lattice.status, lambda: check_values(inputs), inputs.from_logits, inputs.scores.dtype)
    return losses, possible


def raise_for(
    status: Tensor, check_values: Callable[[], object], from_logits: bool, dtype: torch.dtype
) -> None:
    """Raises for the first utterance with something wrong. Waits for the device."""
    if status.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a CUDA graph cannot wait for the checks of its input: pass validate=False")
    codes = status.tolist()
    if triton_rows.BAD_LABELS.value in codes:
        check_values()  # has the words
    for n, code in enumerate(codes):
        if code > 0:
            raise ValueError(unreadable(from_logits, code - 1, n))
        if code == triton_rows.OUT_OF_RANGE.value:
            raise ValueError(
                f"the scores or the risk factor of utterance {n} are too large to be computed with in {dtype}"
            )


def loss(
    inputs: Inputs, risk: int, factor: float, gradient: bool, validate: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Losses (N) and what their gradient is made from: occupancies, rows, possible and book."""
    sizes = _sizes(inputs.scores, inputs.targets.shape[1] + 1)
    each = risk == EARLY_EMISSION
    factor = 0.0 if risk == NONE else factor
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
    launch(
        triton_groups.weigh_kernel, (N, -(-W // sizes.tile["BU"])), labels, frames, tokens,
        *lattice[4:], sources, objectives, factor, N, T, W, **sizes.types, **sizes.tile,
    )  # fmt: skip
    return objectives, sources


def occupy(sizes: Sizes, lattice: Lattice) -> Tensor:
    N, T, W = sizes[:3]
    occupancy = lattice.rows.new_empty(N, T, W)
    labels, _, frames, tokens = Book.of(lattice.book)
    launch(
        triton_lattice.occupy_kernel, (T, N), labels, frames, tokens, lattice.states_m, lattice.states_e,
        occupancy, N, T, W, REAL=sizes.types["REAL"], **sizes.lanes,
    )  # fmt: skip
    return occupancy


def retreat(sizes: Sizes, lattice: Lattice, sources: Tensor, extra: Tensor | None, at_start: bool) -> Tensor:
    N, T, W = sizes[:3]
    occupancy = lattice.rows.new_empty(2, N, T, W)
    labels, _, frames, tokens = Book.of(lattice.book)
    launch(
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
        launch(
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
        launch(
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
        launch(
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
    rows, book = lattice.rows, lattice.book
    return gradient(weights, inputs.scores, inputs.from_logits, occupancy, rows, possible, mass, book)


def _tiles(sizes: Sizes) -> tuple[int, int, int]:
    return sizes.N, -(-sizes.T // sizes.tile["BT"]), -(-sizes.W // sizes.tile["BU"])
