"""The implementations behind the one door: which there are, and which one a tensor gets."""

import functools
import os
import warnings
from types import ModuleType

import torch

from brctc import _native
from brctc.kernels import (
    cpu,
    reference,
    transducer_cpu,
    transducer_reference,
    transducer_triton,
    triton,
)

_BY_NAME = {"cpu": cpu, "triton": triton, "reference": reference}
# the same backends' transducer losses
TRANSDUCERS = {cpu: transducer_cpu, triton: transducer_triton, reference: transducer_reference}

_OLDEST_TRITON = (3, 4)


def backends() -> dict[str, str]:
    """What can run here: each backend's name with "ok" or the reason why not."""
    return {"cpu": f"ok ({_native.instruction_set()})", "triton": _triton_state(), "reference": "ok"}


def _triton_state() -> str:
    return _find_triton()


# what torch.compiler.assume_constant_result does, which would import the compiler
setattr(_triton_state, "_dynamo_marked_constant", True)  # noqa: B010


@functools.cache
def _find_triton() -> str:
    try:
        from triton import __version__ as version
    except ImportError:
        return "triton is not installed"
    if tuple(map(int, version.split(".")[:2])) < _OLDEST_TRITON:
        return f"triton {version} is too old, 3.4 is needed"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "ok (interpreter: right, on any tensor, and very slow)"
    if torch.cuda.is_available():
        return f"ok ({torch.cuda.get_device_name()})"
    return "no CUDA device"


def backend_of(name: str | None, scores: torch.Tensor) -> ModuleType:
    """The named backend, or without a name the best one for the tensor. Asks for no device where it can: a
    device costs 5 us."""
    return cpu if name is None and scores.is_cpu else choose_backend(name, scores.device)


def choose_backend(name: str | None, device: torch.device) -> ModuleType:
    """The named backend, or without a name the best one for the device."""
    if name is None:
        if device.type == "cpu":
            return cpu
        if device.type == "cuda" and _triton_state().startswith("ok"):
            return triton
        if device.type != "meta":  # only shapes are asked for there
            _warn_fallback(device.type)
        return reference
    if name not in _BY_NAME:
        raise ValueError(f"unknown backend {name!r}, expected one of {sorted(_BY_NAME)} or None")
    if name == "cpu" and device.type != "cpu":
        raise ValueError(f"backend 'cpu' needs CPU tensors, got {device}")
    if name == "triton":
        state = _triton_state()
        if not state.startswith("ok"):
            raise ValueError(f"backend 'triton' cannot run here: {state}")
        if device.type != "cuda" and not (device.type == "cpu" and "interpreter" in state):
            raise ValueError(f"backend 'triton' needs CUDA or ROCm tensors, got {device}")
    return _BY_NAME[name]


@functools.cache
def _warn_fallback(device_type: str) -> None:
    warnings.warn(
        f"brctc has no native kernels for {device_type!r} tensors"
        f"{f' ({_triton_state()})' if device_type == 'cuda' else ''}: "
        "the reference implementation runs, right but slow",
        stacklevel=4,
    )
