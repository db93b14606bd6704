"""All checks of a machine, and what is sent to who wants to know."""

import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from brctc.check.findings import Check, Finding, run_checks
from brctc.check.kernels import Shape, kernel_checks
from brctc.check.parallel import parallel_checks
from brctc.check.speed import speed_checks
from brctc.check.systems import Effort, system_checks
from brctc.files import to_plain, write_json
from brctc.kernels.backend import backends

FULL, SMALL = Shape(4, 150, 25, 500), Shape(2, 7, 3, 6)
SPEED_SHAPES = [Shape(16, 250, 40, 500), Shape(16, 250, 40, 5000), Shape(32, 150, 30, 4231)]
SMALL_SPEED_SHAPES = [Shape(4, 50, 10, 50)]
SHARE_OF_STEPS = 0.5
"""Of the time there is, in which the steps of all systems are counted; the rest makes and warms them."""


@dataclass(frozen=True)
class Report:
    """Everything that was found."""

    machine: dict[str, Any]
    findings: list[Finding]

    @property
    def failed(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict == "failed"]

    def save(self, path: Path) -> None:
        """As JSON."""
        content = {"machine": self.machine, "failed": len(self.failed), "checks": self.findings}
        write_json(path, to_plain(content))


def check_machine(
    recipes: Sequence[Path], minutes: float, show: Callable[[str, int, int], None] = lambda *_: None
) -> Report:
    """Kernels, speed, steps of the recipes' systems, and two processes beside one. On a machine without a GPU
    all of it is small, and says nothing about speed."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    checks = plan_checks(device, recipes, 60 * minutes)
    findings = []
    deadline = time.monotonic() + 60 * minutes
    for finding in run_checks(checks, deadline):
        findings.append(finding)
        show("checking", len(findings), len(checks))
    return Report(describe_machine(device), findings)


def plan_checks(device: torch.device, recipes: Sequence[Path], seconds: float) -> list[Check]:
    """What is short and most important comes first: the time may not suffice for all."""
    small = device.type == "cpu"
    systems = len([*system_checks(device, recipes, Effort(small, 0.0))])
    effort = Effort(small, 0.0 if small else SHARE_OF_STEPS * seconds / max(1, systems))
    return [
        *kernel_checks(device, SMALL if small else FULL),
        *parallel_checks(),
        *speed_checks(device, SMALL_SPEED_SHAPES if small else SPEED_SHAPES, 3 if small else 11),
        *system_checks(device, recipes, effort),
    ]


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Versions and devices."""
    gpus = []
    for index in range(torch.cuda.device_count() if device.type == "cuda" else 0):
        found = torch.cuda.get_device_properties(index)
        capability = f"{found.major}.{found.minor}"
        gpus.append({"name": found.name, "memory_bytes": found.total_memory, "capability": capability})
    cudnn = torch.backends.cudnn.version() if device.type == "cuda" else None
    return {
        "device": device.type,
        "small": device.type == "cpu",
        "gpus": gpus,
        "backends": backends(),
        "brctc": metadata.version("brctc"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": cudnn,
        "triton": _version("triton"),
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
