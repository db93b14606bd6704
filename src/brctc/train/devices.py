"""What devices compute in a second: what they could at most, and what a training gets of it."""

import difflib
from typing import Literal, NamedTuple

Precision = Literal["float32", "bf16"]

UTILISATION: dict[Precision, float] = {"float32": 0.5, "bf16": 0.25}
"""The share of a device's peak that a training step gets, everything included: an assumption until `brctc
gpu-check` has measured it. A GPU's plain float32 is slow beside its memory, and large products take most of
the time: half of the peak is usual. Its bfloat16 is up to 16 times as fast and its memory is not, so that
norms, softmaxes, short convolutions, Adam and the starting of kernels weigh as much as the products: the 0.3
to 0.4 that large language models report is more than a few hundred seconds of speech get."""


class Device(NamedTuple):
    """The makers' figures: dense, without sparsity."""

    title: str
    memory_gb: float | None
    peak_flops: dict[Precision, float]
    """Floating-point operations in a second, by precision; a precision that is not there it cannot compute.
    float32 is without TF32, which torch leaves off by default."""


DEVICES: dict[str, Device] = {
    "v100": Device("V100", 32, {"float32": 15.7e12}),
    "a100": Device("A100", 80, {"float32": 19.5e12, "bf16": 312e12}),
    "h100": Device("H100 SXM", 80, {"float32": 66.9e12, "bf16": 989e12}),
    "rtx-4090": Device("RTX 4090", 24, {"float32": 82.6e12, "bf16": 165e12}),
    # two fused multiply-adds of 8 numbers in a cycle (AVX2), 3 GHz
    "cpu-core": Device("one CPU core", None, {"float32": 96e9}),
}
"""By the names that the command line takes."""


def find_device(name: str, precision: Precision) -> Device:
    """A device by its name; refused if it is unknown, or cannot compute in the precision."""
    key = name.lower().replace(" ", "-").replace("_", "-")
    if key not in DEVICES:
        near = difflib.get_close_matches(key, DEVICES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(DEVICES)}"
        raise ValueError(f"there is no device {name!r}; {hint}")
    device = DEVICES[key]
    if precision not in device.peak_flops:
        raise ValueError(f"precision: a {device.title} has no {precision}")
    return device


def hours_on(device: Device, precision: Precision, flop: float, count: int = 1) -> float:
    """How long so many devices take; what they say to each other is not counted."""
    return flop / (device.peak_flops[precision] * UTILISATION[precision] * count) / 3600
