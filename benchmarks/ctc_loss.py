"""How fast is the criterion, and how much memory does it take?

Prints a table of forward + backward through autograd beside torch.nn.CTCLoss on the same input, and
checks it against the project's bars. One thread, process CPU time, medians of interleaved samples: a
sample of each candidate is taken in turn, so that a noisy machine disturbs all alike.

    python benchmarks/ctc_loss.py                     # all shapes, about two minutes
    python benchmarks/ctc_loss.py --json result.json  # the figures, for a machine
    python benchmarks/ctc_loss.py --quick             # fewer samples; fast, less exact
    python benchmarks/ctc_loss.py --device cuda       # the same shapes on a GPU: ctc_loss_cuda.py
"""

import argparse
import gc
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import ctc_loss_cuda
import torch
import torch.nn.functional as F
from bars import MEBIBYTE, Check, finish, peak_growth_bytes, write_figures
from torch import Tensor

import brctc


class Shape(NamedTuple):
    N: int
    T: int
    U: int
    C: int

    def __str__(self) -> str:
        return f"{self.N},{self.T},{self.U},{self.C}"


SHAPES = [
    Shape(8, 100, 20, 500),
    Shape(16, 250, 40, 500),
    Shape(16, 250, 40, 5000),
    Shape(4, 1000, 150, 500),
    Shape(32, 150, 30, 4231),
    Shape(1, 2000, 300, 500),
]


class OwnRisk(brctc.BayesRisk):
    """EarlyEmission as a user would write it: the price of a risk in Python."""

    def log_risk(self, groups: brctc.PathGroups) -> Tensor:
        delay = groups.frame - groups.peak_frame[:, :, None]
        return -10.0 * delay / groups.input_lengths[:, None, None]


RISKS: dict[str, brctc.BayesRisk | None] = {
    "vanilla": None,
    "EarlyFinish": brctc.EarlyFinish(10.0),
    "EarlyEmission": brctc.EarlyEmission(10.0),
}


def make_batch(shape: Shape) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(shape.T, shape.N, shape.C, generator=generator)
    targets = torch.randint(1, shape.C, (shape.N, shape.U), generator=generator)
    lengths = torch.full((shape.N,), shape.T), torch.full((shape.N,), shape.U)
    return logits, (targets, *lengths)


def candidates(shape: Shape) -> tuple[dict[str, Callable[[], None]], list[Tensor]]:
    """What is compared, and the leaves whose gradients are cleared between calls."""
    logits, rest = make_batch(shape)
    log_probs = logits.log_softmax(-1).requires_grad_()
    logits.requires_grad_()
    upstream = torch.ones_like(logits)

    def ours(scores: Tensor, risk: brctc.BayesRisk | None) -> Callable[[], None]:
        fused = scores is logits
        return lambda: brctc.bayes_risk_ctc_loss(scores, *rest, risk, from_logits=fused).backward()

    calls: dict[str, Callable[[], None]] = {
        "torch": lambda: F.ctc_loss(log_probs, *rest).backward(),
        **{name: ours(log_probs, risk) for name, risk in RISKS.items()},
        "own risk": ours(log_probs, OwnRisk()),
        "torch fused": lambda: F.ctc_loss(logits.log_softmax(-1), *rest).backward(),
        "log_softmax": lambda: logits.log_softmax(-1).backward(upstream),
        **{f"{name} fused": ours(logits, risk) for name, risk in RISKS.items()},
    }
    return calls, [logits, log_probs]


def sample(call: Callable[[], None], leaves: list[Tensor], number: int, clock: Callable[[], float]) -> float:
    """Seconds per call over `number` calls in a row.

    Some calls before are not counted: they find caches and branch predictors full of another
    candidate. Nor is the clearing of the gradients.
    """
    for _ in range(min(number, 6)):
        call()
    total = 0.0
    for _ in range(number):
        for leaf in leaves:
            leaf.grad = None
        start = clock()
        call()
        total += clock() - start
    return total / number


def measure(
    calls: dict[str, Callable[[], None]],
    leaves: list[Tensor],
    samples: int,
    clock: Callable[[], float] = time.process_time,
    threads: dict[str, int] | None = None,
) -> dict[str, float]:
    """Median milliseconds of each candidate, sampled in turn, with one thread or as many as it says."""
    first = next(iter(calls.values()))
    first()
    number = max(3, math.ceil(0.06 / max(sample(first, leaves, 1, clock), 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.disable()
    for _ in range(samples):
        for name, call in calls.items():
            torch.set_num_threads(threads[name] if threads else 1)
            times[name].append(sample(call, leaves, number, clock))
        print(".", end="", flush=True, file=sys.stderr)
    gc.enable()
    torch.set_num_threads(1)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def two_threads(samples: int) -> dict[str, float]:
    """Wall-clock speed-up of two threads over one for a batch of one.

    The last figure is what the machine has to give at that time: two calls at once, on a thread each.
    """
    calls, leaves = candidates(Shape(1, 2000, 300, 500))
    others, other_leaves = candidates(Shape(1, 2000, 300, 500))
    found = {}
    with ThreadPoolExecutor(1) as second:
        second.submit(torch.set_num_threads, 1).result()

        def both() -> None:
            beside = second.submit(others["vanilla"])
            calls["vanilla"]()
            beside.result()

        for name in ("vanilla", "EarlyEmission", "vanilla fused"):
            rivals = {"one": calls[name], "two": calls[name]}
            if name == "vanilla":
                rivals["both"] = both
            threads = {"one": 1, "two": 2, "both": 1}
            found[name] = measure(rivals, leaves + other_leaves, samples, time.perf_counter, threads)
    speed_up = {name: times["one"] / times["two"] for name, times in found.items()}
    return speed_up | {"two calls at once": 2 * found["vanilla"]["one"] / found["vanilla"]["both"]}


def peak_growth(shape: Shape, risk: str) -> float:
    """Bytes by which a fused call raises the peak memory of a fresh process, gradient included."""
    command = [sys.executable, __file__, "--memory-of", str(shape), risk]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def report_own_growth(shape: Shape, risk: str) -> None:
    calls, _ = candidates(Shape(1, 50, 5, 50))
    calls[f"{risk} fused"]()  # load code, start allocators
    logits, rest = make_batch(shape)
    logits.requires_grad_()

    def call() -> None:
        brctc.bayes_risk_ctc_loss(logits, *rest, RISKS[risk], from_logits=True).backward()

    print(peak_growth_bytes(call))


def check_speed(shape: Shape, ms: dict[str, float]) -> list[Check]:
    checks = []
    for name, bar in (("vanilla", 12), ("EarlyFinish", 12), ("EarlyEmission", 9)):
        checks.append(Check(f"{shape} {name}, times torch", ms["torch"] / ms[name], bar, False))
        fused = ms["torch fused"] / ms[f"{name} fused"]
        checks.append(Check(f"{shape} {name} fused, times torch", fused, bar, False))
        if shape.C >= 4000:
            part = ms[f"{name} fused"] / ms["log_softmax"]
            checks.append(Check(f"{shape} {name} fused, of log_softmax", part, 0.35, True))
    own = ms["own risk"] / ms["EarlyEmission"]
    checks.append(Check(f"{shape} own risk, times EarlyEmission", own, 3, True))
    return checks


def check_memory(shape: Shape) -> list[Check]:
    gradient = 4 * shape.T * shape.N * shape.C
    checks = []
    for risk in RISKS:
        long_each = risk == "EarlyEmission" and shape.T >= 2000
        extra = (peak_growth(shape, risk) - gradient) / MEBIBYTE
        checks.append(
            Check(f"{shape} {risk} fused, MB beyond the gradient", extra, 46 if long_each else 32, True)
        )
    return checks


def print_table(rows: dict[str, dict[str, float]]) -> None:
    names = list(next(iter(rows.values())))
    print("\nmilliseconds per call, forward and backward; in brackets the factor over torch\n")
    print(f"{'N,T,U,C':>16}" + "".join(f"{name:>22}" for name in names))
    for shape, ms in rows.items():
        line = f"{shape:>16}"
        for name in names:
            peer = "torch fused" if "fused" in name else "torch"
            factor = (
                "" if name in ("torch", "torch fused", "log_softmax") else f" ({ms[peer] / ms[name]:.1f}x)"
            )
            line += f"{ms[name]:.2f}{factor}".rjust(22)
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="3 samples instead of 11")
    parser.add_argument("--json", metavar="FILE", help="write all figures here")
    parser.add_argument("--shape", metavar="N,T,U,C", help="measure this one shape only")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to run")
    parser.add_argument("--memory-of", nargs=2, metavar=("SHAPE", "RISK"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory_of:
        shape, risk = arguments.memory_of
        return report_own_growth(Shape(*map(int, shape.split(","))), risk)

    samples = 3 if arguments.quick else 11
    shapes = [Shape(*map(int, arguments.shape.split(",")))] if arguments.shape else SHAPES
    if arguments.device == "cuda":
        figures = ctc_loss_cuda.report(shapes, make_batch, RISKS, samples)
        return write_figures(figures, arguments.json)
    rows, checks = {}, []
    for shape in shapes:
        calls, leaves = candidates(shape)
        rows[str(shape)] = measure(calls, leaves, samples)
        checks += check_speed(shape, rows[str(shape)])
        del calls, leaves
        if sys.platform == "linux":
            checks += check_memory(shape)
    speed_up = {}
    if (os.cpu_count() or 1) >= 2:
        speed_up = two_threads(samples)
        checks.append(Check("batch of one, vanilla, two threads over one", speed_up["vanilla"], 1.5, False))

    print_table(rows)
    if speed_up:
        print("\ntwo threads over one, batch of one, wall clock: ", end="")
        print(", ".join(f"{name} {value:.2f}x" for name, value in speed_up.items()))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, backend {brctc.backends()['cpu']}"
    print(f"\n{machine}, torch {torch.__version__}, brctc {brctc.__version__}\n")
    figures = {"machine": machine, "milliseconds": rows, "two_threads": speed_up}
    return finish(checks, figures, arguments.json)


if __name__ == "__main__":
    main()
