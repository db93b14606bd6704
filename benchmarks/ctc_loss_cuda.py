"""ctc_loss.py's table on a GPU: run it as `python benchmarks/ctc_loss.py --device cuda`.

Forward and backward through autograd, CUDA events, medians of interleaved samples; the memory that a call
adds at its peak; and whether the gradient is bit-identical over runs. torch's CTC is measured both ways:
its own kernels, and cuDNN's where that takes the shape.
"""

import statistics
from collections.abc import Callable

import torch

import brctc
from brctc.check.speed import CALLS, Batch, Call, candidates, milliseconds

MEBIBYTE = 2**20
DEVICE = torch.device("cuda")


def added_memory(call: Call) -> float:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return (torch.cuda.max_memory_allocated() - before) / MEBIBYTE


def is_deterministic(call: Call) -> bool:
    first = call()
    return all(torch.equal(first, call()) for _ in range(5))


def report(
    shapes: list, make_batch: Callable[..., Batch], risks: dict[str, brctc.BayesRisk | None], samples: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Prints the table and returns its figures."""
    if not torch.cuda.is_available():
        raise SystemExit(f"--device cuda: there is no CUDA device here (backends: {brctc.backends()})")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, brctc {brctc.__version__}\n")
    print(f"{'N,T,U,C':>16} {'candidate':>20} {'ms':>9} {'of torch':>9} {'MB':>9}  deterministic")
    figures = {}
    for shape in shapes:
        calls = candidates(make_batch(shape), risks, DEVICE)
        for call in calls.values():  # compiles kernels, starts allocators
            call()
        times = {name: [] for name in calls}
        for _ in range(samples):
            for name, call in calls.items():
                times[name].append(milliseconds(call, CALLS, DEVICE))
        figures[str(shape)] = rows = {}
        for name, call in calls.items():
            ms = statistics.median(times[name])
            peer = "torch fused" if "fused" in name else "torch"
            rows[name] = {
                "ms": ms,
                "times_torch": statistics.median(times[peer]) / ms,
                "MB": added_memory(call),
                "deterministic": float(is_deterministic(call)),
            }
            row = rows[name]
            same = "yes" if row["deterministic"] else "no"
            print(f"{shape!s:>16} {name:>20} {ms:9.3f} {row['times_torch']:8.1f}x {row['MB']:9.1f}  {same}")
    return figures
