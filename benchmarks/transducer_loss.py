"""How fast is the transducer loss, and how much memory does it take?

Forward + backward through autograd. From logits: beside log_softmax and the lattice in torch operators
(the reference backend), and beside log_softmax alone. From the joint network's inputs: beside torch
making all logits, with the loss in torch operators or in ours. One thread, process CPU time, medians
of interleaved samples; memory is the peak of a fresh process, gradients included.

    python benchmarks/transducer_loss.py              # a few minutes
    python benchmarks/transducer_loss.py --quick      # fewer samples
    python benchmarks/transducer_loss.py --shape 16,100,10,12,128
"""

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
from bars import MEBIBYTE, peak_growth_bytes
from ctc_loss import measure
from torch import Tensor

import brctc


class Shape(NamedTuple):
    N: int
    T: int
    U: int
    C: int
    D: int

    def __str__(self) -> str:
        return ",".join(map(str, self))


SHAPES = [
    Shape(16, 25, 3, 12, 128),
    Shape(16, 50, 6, 12, 128),
    Shape(16, 100, 10, 12, 128),
    Shape(8, 100, 20, 500, 256),
    Shape(1, 100, 20, 5000, 256),
]


def make_labels(shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    targets = torch.randint(1, shape.C, (shape.N, shape.U), generator=torch.Generator().manual_seed(0))
    return targets, torch.full((shape.N,), shape.T), torch.full((shape.N,), shape.U)


def make_inputs(name: str, shape: Shape) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    N, T, U, C, D = shape
    sizes = [(N, T, U + 1, C)] if name in DENSE else [(N, T, D), (N, U + 1, D), (C, D), (C,)]
    return [torch.randn(size, generator=generator).requires_grad_() for size in sizes]


def joint_logits(encoder: Tensor, prediction: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (encoder[:, :, None] + prediction[:, None]).tanh() @ weight.t() + bias


Loss = Callable[[list[Tensor], tuple[Tensor, Tensor, Tensor]], Tensor]
DENSE: dict[str, Loss] = {
    "log_softmax": lambda tensors, labels: tensors[0].log_softmax(-1).sum(),
    "torch": lambda tensors, labels: brctc.transducer_loss(tensors[0], *labels, backend="reference"),
    "ours": lambda tensors, labels: brctc.transducer_loss(tensors[0], *labels),
}
JOINT: dict[str, Loss] = {
    "joint, torch": lambda t, labels: brctc.transducer_loss(joint_logits(*t), *labels, backend="reference"),
    "joint, our loss": lambda t, labels: brctc.transducer_loss(joint_logits(*t), *labels),
    "joint, ours": lambda t, labels: brctc.transducer_joint_loss(t[0], t[1], t[2], t[3], *labels),
}
PEERS = {name: "torch" if name in DENSE else "joint, torch" for name in (*DENSE, *JOINT)}


def time_of(shape: Shape, samples: int) -> dict[str, float]:
    labels = make_labels(shape)
    leaves: list[Tensor] = []

    def call(name: str, loss: Loss) -> Callable[[], None]:
        tensors = make_inputs(name, shape)
        leaves.extend(tensors)
        return lambda: loss(tensors, labels).backward()

    calls = {name: call(name, loss) for name, loss in (DENSE | JOINT).items()}
    return measure(calls, leaves, samples)


def memory_of(name: str, shape: Shape) -> float:
    """MB by which a call raises the peak memory of a fresh process."""
    command = [sys.executable, __file__, "--memory-of", name, str(shape)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / MEBIBYTE


def report_own_growth(name: str, shape: Shape) -> None:
    loss = (DENSE | JOINT)[name]
    small = Shape(1, 5, 2, 10, 8)
    loss(make_inputs(name, small), make_labels(small)).backward()  # load code, start allocators
    tensors, labels = make_inputs(name, shape), make_labels(shape)

    print(peak_growth_bytes(lambda: loss(tensors, labels).backward()))


def print_table(title: str, rows: dict[str, dict[str, float]], digits: int, factors: bool) -> None:
    names = list(next(iter(rows.values())))
    print(f"\n{title}\n\n{'N,T,U,C,D':>18}" + "".join(f"{name:>21}" for name in names))
    for shape, values in rows.items():
        line = f"{shape:>18}"
        for name in names:
            factor = f" ({values[PEERS[name]] / values[name]:.1f}x)" if factors else ""
            line += f"{values[name]:.{digits}f}{factor}".rjust(21)
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="3 samples instead of 7")
    parser.add_argument("--shape", metavar="N,T,U,C,D", help="measure this one shape only")
    parser.add_argument("--memory-of", nargs=2, metavar=("NAME", "SHAPE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory_of:
        name, shape = arguments.memory_of
        return report_own_growth(name, Shape(*map(int, shape.split(","))))
    shapes = [Shape(*map(int, arguments.shape.split(",")))] if arguments.shape else SHAPES
    times = {str(shape): time_of(shape, 3 if arguments.quick else 7) for shape in shapes}
    print_table("milliseconds per call, forward and backward; in brackets torch's over it", times, 2, True)
    if sys.platform == "linux":
        peaks = {str(shape): {name: memory_of(name, shape) for name in DENSE | JOINT} for shape in shapes}
        for shape in shapes:
            peaks[str(shape)]["all logits"] = 4 * shape.N * shape.T * (shape.U + 1) * shape.C / MEBIBYTE
        print_table("MB at the peak, beyond the inputs", peaks, 1, False)
    print(f"\n{platform.machine()}, {os.cpu_count()} cores, backend {brctc.backends()['cpu']}, ", end="")
    print(f"torch {torch.__version__}, brctc {brctc.__version__}")


if __name__ == "__main__":
    main()
