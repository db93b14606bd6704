"""Whether Triton runs here, and on which devices."""

import functools
import os

import torch

_OLDEST_TRITON = (3, 4)
_LEAST_CAPABILITY = (8, 0)


def triton_state() -> str:
    """ "ok" with what Triton runs on, or the reason why it cannot run at all."""
    return _find_triton()


def device_problem(index: int) -> str | None:
    """Why Triton's kernels cannot run on this CUDA or ROCm device, or None."""
    return _find_device_problem(index)


# what torch.compiler.assume_constant_result does, which would import the compiler
for _function in (triton_state, device_problem):
    setattr(_function, "_dynamo_marked_constant", True)  # noqa: B010


def capability_problem(capability: tuple[int, int], is_rocm: bool) -> str | None:
    """Why a GPU of this compute capability is not supported, or None. ROCm numbers its GPUs differently."""
    if is_rocm or capability >= _LEAST_CAPABILITY:
        return None
    found, least = (".".join(map(str, numbers)) for numbers in (capability, _LEAST_CAPABILITY))
    return f"compute capability {found} is below {least}"


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
    if not torch.cuda.is_available():
        return "no CUDA device"
    devices = range(torch.cuda.device_count())
    supported = [index for index in devices if _find_device_problem(index) is None]
    if not supported:
        return f"{torch.cuda.get_device_name(0)}: {_find_device_problem(0)}"
    return f"ok ({torch.cuda.get_device_name(supported[0])})"


@functools.cache
def _find_device_problem(index: int) -> str | None:
    capability = torch.cuda.get_device_capability(index)
    return capability_problem(capability, torch.version.hip is not None)
