"""Compiles every GPU kernel for devices that need not be there, and prints what each takes of them.

    python tests/compile_kernels.py            # float32 logits, some shapes
    python tests/compile_kernels.py --full     # all dtypes and the largest shape

Run by test_triton_compile.py, in a process of its own: Triton's interpreter must be off.
"""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from brctc.kernels import triton_launch
from brctc.kernels.ctc import triton_run as ctc_run
from brctc.kernels.ctc.closed_form import ClosedForm, RiskKind
from brctc.kernels.ctc.inputs import Inputs
from brctc.kernels.transducer import triton_run as transducer_run
from brctc.kernels.transducer.inputs import Labels

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
TYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int32: "i32",
    torch.int64: "i64",
}
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class Launch(NamedTuple):
    """A kernel as it would be launched."""

    kernel: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    num_warps: int

    @classmethod
    def of(cls, kernel, arguments, options) -> "Launch":
        options = dict(options)
        warps = options.pop("num_warps", 4)
        named = dict(zip(kernel.arg_names, arguments, strict=False)) | options
        assert list(named) == kernel.arg_names, kernel.fn.__name__
        types = {name: cls.type_of(kernel, name, value) for name, value in named.items()}
        constants = {name: value for name, value in named.items() if types[name] == "constexpr"}
        return cls(kernel, tuple(types.items()), tuple(constants.items()), warps)

    @staticmethod
    def type_of(kernel, name, value) -> str:
        annotation = str(kernel.fn.__annotations__.get(name, ""))
        if isinstance(value, torch.Tensor):
            return "*" + TYPES[value.dtype]
        if annotation == "fp64":
            return "fp64"
        return "constexpr" if "constexpr" in annotation else "i32"

    def compile(self, target: str) -> "Use":
        source = ASTSource(self.kernel, dict(self.signature), dict(self.constants))
        compiled = triton.compile(source, target=TARGETS[target], options={"num_warps": self.num_warps})
        if TARGETS[target].backend == "cuda":
            return Use(*resources(compiled.asm["cubin"]), compiled.metadata.shared)
        text = compiled.asm["amdgcn"]
        registers = int(re.search(r"\.vgpr_count:\s+(\d+)", text)[1])
        spilled = int(re.search(r"\.vgpr_spill_count:\s+(\d+)", text)[1])
        return Use(registers, 4 * spilled, compiled.metadata.shared)

    def __str__(self) -> str:
        constants = ", ".join(f"{name}={value}" for name, value in self.constants)
        return f"{self.kernel.fn.__name__}[{self.num_warps} warps; {constants}]"


class Use(NamedTuple):
    registers: int
    stack_bytes: int
    shared_bytes: int


def resources(cubin: bytes) -> tuple[int, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [CUOBJDUMP, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return int(re.search(r"REG:(\d+)", text)[1]), int(re.search(r"STACK:(\d+)", text)[1])


def launches(N, T, U, C, dtype, from_logits) -> list[Launch]:
    """Everything that is launched for all criteria: what the host does, with nothing run."""
    found: dict[Launch, None] = {}
    triton_launch.launch = lambda kernel, grid, *arguments, **options: found.setdefault(
        Launch.of(kernel, arguments, options)
    )
    scores = torch.zeros(T, N, C, dtype=dtype)
    lengths = torch.full((N,), T), torch.full((N,), U)
    inputs = Inputs(scores, torch.ones((N, U), dtype=torch.int64), *lengths, 0, from_logits, False)
    for kind in (RiskKind.NONE, RiskKind.EARLY_FINISH, RiskKind.EARLY_EMISSION):
        form = ClosedForm(kind, 2.0)
        ctc_run.loss(inputs, form, False, False)
        losses, *saved = ctc_run.loss(inputs, form, True, False)
        occupancy, rows, possible, book = saved
        ctc_run.gradient(losses, scores, from_logits, occupancy, rows, possible, possible, book)
    for at_start in (False, True):
        share, likelihood = ctc_run.path_groups(inputs, at_start, False)
        ctc_run.path_groups_backward(share, likelihood, inputs, at_start)
    logits = torch.zeros(1, 2, U + 1, 7, dtype=dtype)
    labels = Labels(*(x[:1] for x in inputs[1:4]), 0)
    transducer_run.loss(logits, labels, False, False)
    losses, cells, book = transducer_run.loss(logits, labels, True, False)
    transducer_run.gradient(losses, logits, 0, cells, book)
    return list(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--targets", nargs="*", default=list(TARGETS))
    arguments = parser.parse_args()
    found = dict.fromkeys(launches(2, 4, 40, 500, torch.float32, True))
    if arguments.full:
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            for from_logits in (True, False):
                found |= dict.fromkeys(launches(2, 4, 40, 500, dtype, from_logits))
        found |= dict.fromkeys(launches(2, 4, 1000, 5000, torch.float32, True))
    print(f"{len(found)} kernels; registers, bytes of stack and of shared memory for each target")
    for launch in found:
        uses = {target: launch.compile(target) for target in arguments.targets}
        columns = [f"{name}: {r:3} {st} {sh:5}" for name, (r, st, sh) in uses.items()]
        print("  ".join(columns), launch, flush=True)


if __name__ == "__main__":
    main()
