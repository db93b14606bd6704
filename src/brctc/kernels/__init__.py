"""The implementations behind the one door: which there are, and which one a tensor gets."""

import functools
import warnings
from types import ModuleType

import torch

from brctc import _native
from brctc.kernels import cpu, reference, transducer_cpu, transducer_reference

_BY_NAME = {"cpu": cpu, "reference": reference}
TRANSDUCERS = {cpu: transducer_cpu, reference: transducer_reference}  # the same backends' transducer losses


def backends() -> dict[str, str]:
    """What can run here: each backend's name with "ok" or the reason why not."""
    return {"cpu": f"ok ({_native.instruction_set()})", "reference": "ok"}


def choose_backend(name: str | None, device: torch.device) -> ModuleType:
    """The named backend, or without a name the best one for the device."""
    if name is None:
        if device.type == "cpu":
            return cpu
        _warn_fallback(device.type)
        return reference
    if name not in _BY_NAME:
        raise ValueError(f"unknown backend {name!r}, expected one of {sorted(_BY_NAME)} or None")
    if name == "cpu" and device.type != "cpu":
        raise ValueError(f"backend 'cpu' needs CPU tensors, got {device}")
    return _BY_NAME[name]


@functools.cache
def _warn_fallback(device_type: str) -> None:
    warnings.warn(
        f"brctc has no native kernels for {device_type!r} tensors: "
        "the reference implementation runs, right but slow",
        stacklevel=4,
    )
