"""How GPU kernels are launched: sizes, labels as kernels read them, and errors as they report them."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from brctc.kernels import triton_labels
from brctc.kernels.tensors import unreadable

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
        """What the exponents of an utterance may add up to: native/numbers.h has the same."""
        return 2.0**59 if self.real == torch.float64 else 2.0**27


def sizes_of(N: int, T: int, W: int, C: int, dtype: torch.dtype) -> Sizes:
    if T > MOST_FRAMES or W - 1 > MOST_LABELS:
        raise ValueError(
            f"backend 'triton' takes up to {MOST_FRAMES} frames and {MOST_LABELS} labels, got {T} and "
            f"{W - 1}: pass backend='reference', or CPU tensors"
        )
    return Sizes(N, T, W, C, torch.float64 if dtype == torch.float64 else torch.float32)


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


def on_device(tensor: Tensor) -> Any:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def prepare(
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    sizes: Sizes,
    blank: int,
    device: torch.device,
    least_frames: int = 1,
) -> tuple[Tensor, Tensor]:
    """The status of each utterance, (N), and the book."""
    N, T, W, C, _ = sizes
    given = [x.to(device, non_blocking=True).contiguous() for x in (targets, input_lengths, target_lengths)]
    status = torch.empty(N, dtype=torch.int32, device=device)
    book = torch.empty((N, 2 * W + 2), dtype=torch.int32, device=device)
    labels, links, frames, tokens = Book.of(book)
    launch(
        triton_labels.prepare_kernel, (N,), *given, status, frames, tokens, labels, links,
        W - 1, least_frames, T, W, C, blank, **sizes.lanes,
    )  # fmt: skip
    return status, book


def raise_for(
    status: Tensor,
    check_values: Callable[[], object],
    from_logits: bool,
    dtype: torch.dtype,
    nan: bool,
) -> None:
    """Raises for the first utterance with something wrong; with `nan`, not for its scores. Waits for the
    device."""
    if status.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a CUDA graph cannot wait for the checks of its input: pass validate=False")
    codes = status.tolist()
    if triton_labels.BAD_LABELS.value in codes:
        check_values()  # has the words
    if nan:
        return
    for n, code in enumerate(codes):
        if code > 0:
            raise ValueError(unreadable(from_logits, code - 1, n))
        if code == triton_labels.OUT_OF_RANGE.value:
            raise ValueError(
                f"the scores or the risk factor of utterance {n} are too large to be computed with in {dtype}"
            )
