"""What a CTC loss is given, brought into one shape and checked. All backends start from here.

Axes everywhere: T frames, N utterances, C classes, U labels of a target.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from brctc import _native
from brctc.kernels.operators import outside_graphs
from brctc.kernels.tensors import (
    FULL,
    HALF_OR_FULL,
    Lengths,
    check_blank,
    check_floating,
    check_has_values,
    integer_lengths,
    integers,
    local_tensor,
)


class Inputs(NamedTuple):
    """A batch as every kernel takes it."""

    scores: Tensor  # (T, N, C) float32 or float64 (or half, for Triton): log_probs, or logits if from_logits
    targets: Tensor  # int64: (N, U) padded, or all labels one after the other
    input_lengths: Tensor  # (N) int64
    target_lengths: Tensor  # (N) int64
    blank: int
    from_logits: bool
    nan: bool  # scores that cannot be read: NaN in the loss and in its gradient, instead of an error

    def with_scores(self, scores: Tensor) -> "Inputs":
        return Inputs(scores, *self[1:])  # _replace takes three times as long


def prepare_inputs(
    scores: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int,
    from_logits: bool,
    nan: bool = False,
    keep_half: bool = False,
) -> tuple[Inputs, bool]:
    """Brings CTCLoss's layouts into one; also says whether there was a batch axis.

    Tensors are looked into here (0.3 us), and again by the native call: between the two, operators and
    autograd may have made others of them.
    """
    given: tuple[Tensor, Any, Any, Any, int] = (scores, targets, input_lengths, target_lengths, blank)
    if (
        not torch.compiler.is_compiling()
        and _native.are_plain(*given)
        and not (given[1].is_inference() or given[2].is_inference() or given[3].is_inference())
    ):  # nearly always: there is nothing to bring anywhere
        return Inputs(*given, from_logits, nan), True
    check_floating("log_probs", scores)
    if scores.dim() not in (2, 3):
        raise ValueError(f"log_probs must be (T, N, C) or (T, C), got {tuple(scores.shape)}")
    check_blank(blank)
    batched = scores.dim() == 3
    targets = integers("targets", targets)
    if not batched:
        scores = scores.unsqueeze(1)
        if targets.dim() == 2 and targets.shape[0] != 1:
            raise ValueError(
                f"unbatched log_probs take targets of shape (U) or (1, U), got {tuple(targets.shape)}"
            )
    inputs = Inputs(
        scores,
        targets,
        integer_lengths("input_lengths", input_lengths),
        integer_lengths("target_lengths", target_lengths),
        blank,
        from_logits,
        nan,
    )
    if not keep_half or scores.dtype not in HALF_OR_FULL:
        inputs = in_full_precision(inputs)
    check_shapes(inputs, HALF_OR_FULL)
    return inputs, batched


def in_full_precision(inputs: Inputs) -> Inputs:
    """For kernels that do not read half precision themselves."""
    return inputs if inputs.scores.dtype in FULL else inputs.with_scores(inputs.scores.float())


def check_shapes(inputs: Inputs, dtypes: tuple[torch.dtype, ...] = FULL) -> None:
    """Raises for shapes that do not fit together. Needs no values, so it also holds in a trace."""
    scores, targets, input_lengths, target_lengths, blank, *_ = inputs
    shape = scores.shape
    if len(shape) != 3:
        raise ValueError(f"log_probs must be (T, N, C), got {tuple(shape)}")
    if scores.dtype not in dtypes:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"scores must be one of {names} here, got {scores.dtype}")
    frames, batch, classes = shape
    if frames == 0 or batch == 0 or classes == 0:
        raise ValueError(f"log_probs of shape {tuple(shape)} are empty: (T, N, C) all need 1")
    if not 0 <= blank < classes:
        raise ValueError(f"blank is {blank}, expected 0 to {classes - 1}: log_probs have {classes} classes")
    for name, lengths in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        if lengths.dtype != torch.int64:
            raise TypeError(f"{name} must be int64 here, got {lengths.dtype}")
        if lengths.shape != (batch,):
            raise ValueError(
                f"{name} has {lengths.numel()} values for {batch} utterances "
                f"(log_probs {tuple(shape)} is (T, N, C))"
            )
    if targets.dtype != torch.int64:
        raise TypeError(f"targets must be int64 here, got {targets.dtype}")
    rows = targets.shape
    if len(rows) not in (1, 2):
        raise ValueError(f"targets must be (N, U) or concatenated (sum U), got {tuple(rows)}")
    if len(rows) == 2 and rows[0] != batch:
        raise ValueError(f"targets hold {rows[0]} rows for {batch} utterances")


def native_batch(inputs: Inputs, with_scores: bool = True) -> _native.Input:
    """What the native core takes; raises for lengths and labels out of range. It holds addresses: the
    scores, on the CPU and with classes side by side, must outlive it. Labels and lengths are copied. Without
    scores it does nothing but check."""
    scores, targets, input_lengths, target_lengths, blank, from_logits, nan = inputs
    frames, batch, classes = scores.shape
    tensors = list(inputs._asdict().items())[:4]
    for name, tensor in tensors if with_scores else tensors[1:]:
        if tensor.numel() and not tensor.data_ptr():  # torch has tensors of zeros that are kept nowhere
            raise ValueError(f"{name} is a tensor without memory")
    return _native.Input(
        scores=scores.data_ptr() if with_scores else 0,
        is_double=scores.dtype == torch.float64,
        T=frames,
        N=batch,
        C=classes,
        stride_t=scores.stride(0),
        stride_n=scores.stride(1),
        labels=targets.data_ptr(),
        label_count=targets.numel(),
        label_stride=targets.shape[1] if targets.dim() == 2 else -1,
        input_lengths=input_lengths.data_ptr(),
        target_lengths=target_lengths.data_ptr(),
        blank=int(blank),
        from_logits=from_logits,
        nan=nan,
        threads=torch.get_num_threads(),
    )


def local_labels(inputs: Inputs) -> Inputs:
    """The same inputs with labels and lengths contiguous and on the CPU."""
    labels = inputs[1:4]
    for name, tensor in zip(inputs._fields[1:4], labels, strict=True):
        check_has_values(name, tensor)
    targets, input_lengths, target_lengths = map(local_tensor, labels)
    return Inputs(inputs.scores, targets, input_lengths, target_lengths, *inputs[4:])


@outside_graphs
def check_values(inputs: Inputs) -> None:
    """Raises for lengths and labels out of range, naming the utterance and the value."""
    native_batch(local_labels(inputs), with_scores=False)


def pad_targets(inputs: Inputs) -> Inputs:
    """The same inputs with (N, U) targets; concatenated ones are laid out in rows."""
    if inputs.targets.dim() == 2:
        return inputs
    check_values(inputs)  # before rows are cut by lengths that may not fit
    rows = list(torch.split(inputs.targets, inputs.target_lengths.tolist()))
    return inputs._replace(targets=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True))
