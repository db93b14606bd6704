"""What both criteria ask of the tensors that they are given, before they look at their values."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from brctc import _native

Lengths = Tensor | Sequence[int] | int
Nonfinite = Literal["raise", "nan"]
"""What scores that hold NaN or +inf do: raise an error, or make the loss of their utterance NaN."""

# A log-probability below this counts as probability zero; native/emissions.h has the same.
SMALLEST_LOG = -1e13

FULL = (torch.float32, torch.float64)
HALF_OR_FULL = (*FULL, torch.float16, torch.bfloat16)

_native.learn_tensors(Tensor, torch.nn.Parameter)


def check_floating(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {tensor.dtype}")
    check_strided(name, tensor)


def check_strided(name: str, tensor: Tensor) -> None:
    if tensor.is_nested:
        raise TypeError(f"{name} must be a padded tensor, got a nested one")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {tensor.layout}: call to_dense()")


def check_has_values(name: str, tensor: Tensor) -> None:
    if tensor.is_meta:
        raise ValueError(f"{name} is on the meta device: there are no values to compute with")


def check_blank(blank: int) -> None:
    if isinstance(blank, bool | float) or not hasattr(blank, "__index__"):
        raise TypeError(f"blank must be an int, got {type(blank).__name__}")


def integer_lengths(name: str, value: Lengths) -> Tensor:
    value = integers(name, value)
    return value if value.dim() == 1 else value.reshape(-1)


def integers(name: str, value: Tensor | Sequence[int] | int) -> Tensor:
    if isinstance(value, Tensor):
        check_strided(name, value)
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


def local_tensor(tensor: Tensor) -> Tensor:
    """Contiguous and on the CPU. Inside torch.func even an operator that changes nothing would wrap
    its result, so none is called without need."""
    return tensor if tensor.is_cpu and tensor.is_contiguous() else tensor.cpu().contiguous()


def is_nan_wanted(nonfinite: Nonfinite) -> bool:
    if nonfinite not in ("raise", "nan"):
        raise ValueError(f'nonfinite is {nonfinite!r}, expected "raise" or "nan"')
    return nonfinite == "nan"


def unreadable(from_logits: bool, t: int, n: int) -> str:
    """The error for scores that hold no numbers to compute with."""
    name = "logits hold NaN or +inf, or only -inf," if from_logits else "log_probs hold NaN or +inf"
    return f"{name} at frame {t} of utterance {n}"
