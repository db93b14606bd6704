"""What benchmarks share: figures with a bar each, and the memory of a process."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

MEBIBYTE = 2**20


class Check(NamedTuple):
    what: str
    value: float
    bar: float
    at_most: bool

    @property
    def met(self) -> bool:
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"{'met   ' if self.met else 'MISSED'} {self.what}: {self.value:.2f} ({sign} {self.bar:g})"


def finish(checks: Sequence[Check], figures: dict[str, Any], json_file: str | None) -> None:
    """Says which bars are met, writes everything down, and ends the process: with 1 if one is missed."""
    for check in checks:
        print(check)
    missed = sum(not check.met for check in checks)
    print(f"\n{len(checks) - missed} of {len(checks)} bars met")
    write_figures(figures | {"checks": [check._asdict() | {"met": check.met} for check in checks]}, json_file)
    sys.exit(1 if missed else 0)


def write_figures(figures: Any, json_file: str | None) -> None:
    if json_file:
        with open(json_file, "w") as file:
            json.dump(figures, file, indent=2)


def memory_bytes(key: str) -> int:
    """Of this process, as Linux counts it: "VmRSS" now, "VmHWM" at the peak."""
    with open("/proc/self/status") as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


def peak_growth_bytes(call: Callable[[], object]) -> int:
    """By how much a call raises the peak above what is there before it."""
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")  # the peak starts anew
    before = memory_bytes("VmRSS")
    call()
    return memory_bytes("VmHWM") - before
