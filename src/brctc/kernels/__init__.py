"""The implementations behind the one door: which there are, and which one a tensor gets."""

import functools
import warnings
from types import ModuleType

import torch

from brctc.kernels import reference

try:
    from brctc.kernels import cpu

    _cpu_problem = None
except ImportError as error:  # a broken build; the reference still works
    cpu = None
    _cpu_problem = f"the native extension does not load: {error}"


def backends() -> dict[str, str]:
    """What can run here: each backend's name with "ok" or the reason why not."""
    return {"cpu": _cpu_problem or "ok", "reference": "ok"}


def choose_backend(name: str | None, device: torch.device) -> ModuleType:
    """The named backend, or without a name the best one for the device."""
    if name is None:
        if device.type == "cpu" and cpu is not None:
            return cpu
        _warn_fallback(device.type)
        return reference
    if name == "reference":
        return reference
    if name == "cpu":
        if cpu is None:
            raise RuntimeError(f"backend 'cpu' is not available: {_cpu_problem}")
        if device.type != "cpu":
            raise ValueError(f"backend 'cpu' needs CPU tensors, got {device}")
        return cpu
    raise ValueError(f"unknown backend {name!r}, expected one of {sorted(backends())} or None")


@functools.cache
def _warn_fallback(device_type: str) -> None:
    warnings.warn(
        f"brctc has no native kernels for {device_type!r} tensors: "
        "the reference implementation runs, right but slow",
        stacklevel=4,
    )
