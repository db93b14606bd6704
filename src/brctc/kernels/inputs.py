"""What a loss is given, brought into one shape and checked. All backends start from here.

Axes everywhere: T frames, N utterances, C classes, U labels of a target.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from brctc import _native
from brctc.kernels.operators import outside_graphs

Lengths = Tensor | Sequence[int] | int

# A log-probability below this counts as probability zero; native/emissions.h has the same.
SMALLEST_LOG = -1e13

_native.learn_tensors(Tensor, torch.nn.Parameter)

FULL = (torch.float32, torch.float64)
HALF_OR_FULL = (*FULL, torch.float16, torch.bfloat16)


class Inputs(NamedTuple):
    """A batch as every kernel takes it."""

    scores: Tensor  # (T, N, C) float32 or float64 (or half, for Triton): log_probs, or logits if from_logits
    targets: Tensor  # int64: (N, U) padded, or all labels one after the other
    input_lengths: Tensor  # (N) int64
    target_lengths: Tensor  # (N) int64
    blank: int
    from_logits: bool


def prepare_inputs(
    scores: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int,
    from_logits: bool,
    keep_half: bool = False,
) -> tuple[Inputs, bool]:
    """Brings CTCLoss's layouts into one; also says whether there was a batch axis."""
    given: tuple[Tensor, Any, Any, Any, int] = (scores, targets, input_lengths, target_lengths, blank)
    if (
        not torch.compiler.is_compiling()
        and _native.are_plain(*given)
        and not (given[1].is_inference() or given[2].is_inference() or given[3].is_inference())
    ):  # nearly always: there is nothing to bring anywhere
        return Inputs(*given, from_logits), True
    if not isinstance(scores, Tensor):
        raise TypeError(f"log_probs must be a tensor, got {type(scores).__name__}")
    if not scores.is_floating_point():
        raise TypeError(f"log_probs must be floating point, got {scores.dtype}")
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
    )
    if not keep_half or scores.dtype not in HALF_OR_FULL:
        inputs = in_full_precision(inputs)
    check_shapes(inputs, HALF_OR_FULL)
    return inputs, batched


def in_full_precision(inputs: Inputs) -> Inputs:
    """For kernels that do not read half precision themselves."""
    return inputs if inputs.scores.dtype in FULL else inputs._replace(scores=inputs.scores.float())


def check_blank(blank: int) -> None:
    if isinstance(blank, bool | float) or not hasattr(blank, "__index__"):
        raise TypeError(f"blank must be an int, got {type(blank).__name__}")


def integer_lengths(name: str, value: Lengths) -> Tensor:
    value = integers(name, value)
    return value if value.dim() == 1 else value.reshape(-1)


def integers(name: str, value: Tensor | Sequence[int] | int) -> Tensor:
    if isinstance(value, Tensor):
        if not torch.compiler.is_compiling() and value.is_inference():
            value = value.clone()  # or autograd would not keep it
        if value.dtype == torch.int64:  # nearly always: nothing else to ask
            return value
    else:
        try:
            value = torch.tensor(value, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            hint = "integers in a tensor (rows of different length are padded or concatenated)"
            raise TypeError(f"{name} must be {hint}, got {value!r}") from error
        if value.numel() == 0:
            value = value.long()
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, got {value.dtype}")
    return value if value.dtype == torch.int64 else value.long()


def check_shapes(inputs: Inputs, dtypes: tuple[torch.dtype, ...] = FULL) -> None:
    """Raises for shapes that do not fit together. Needs no values, so it also holds in a trace."""
    scores, targets, input_lengths, target_lengths, blank, _ = inputs
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
    tensors, contiguous and on the CPU, must outlive it. Without scores it does nothing but check."""
    scores, targets, input_lengths, target_lengths, blank, from_logits = inputs
    frames, batch, classes = scores.shape
    tensors = list(inputs._asdict().items())[:4]
    for name, tensor in tensors if with_scores else tensors[1:]:
        if tensor.numel() and not tensor.data_ptr():  # torch has tensors of zeros that are kept nowhere
            raise ValueError(f"{name} is a tensor without memory")
    return _native.Input(
        scores.data_ptr() if with_scores else 0,
        scores.dtype == torch.float64,
        frames,
        batch,
        classes,
        scores.stride(0),
        scores.stride(1),
        targets.data_ptr(),
        targets.numel(),
        targets.shape[1] if targets.dim() == 2 else -1,
        input_lengths.data_ptr(),
        target_lengths.data_ptr(),
        int(blank),
        from_logits,
        torch.get_num_threads(),
    )


def local_tensor(tensor: Tensor) -> Tensor:
    """Contiguous and on the CPU. Inside torch.func even an operator that changes nothing would wrap
    its result, so none is called without need."""
    return tensor if tensor.is_cpu and tensor.is_contiguous() else tensor.cpu().contiguous()


@outside_graphs
def check_values(inputs: Inputs) -> None:
    """Raises for lengths and labels out of range, naming the utterance and the value."""
    local = inputs._replace(
        targets=local_tensor(inputs.targets),
        input_lengths=local_tensor(inputs.input_lengths),
        target_lengths=local_tensor(inputs.target_lengths),
    )
    native_batch(local, with_scores=False)


def unreadable(from_logits: bool, t: int, n: int) -> str:
    """What is said of scores that are none."""
    name = "logits hold NaN or +inf, or only -inf," if from_logits else "log_probs hold NaN or +inf"
    return f"{name} at frame {t} of utterance {n}"


def pad_targets(inputs: Inputs) -> Inputs:
    """The same inputs with (N, U) targets; concatenated ones are laid out in rows."""
    if inputs.targets.dim() == 2:
        return inputs
    check_values(inputs)  # before rows are cut by lengths that may not fit
    rows = list(torch.split(inputs.targets, inputs.target_lengths.tolist()))
    return inputs._replace(targets=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True))
