"""Every GPU kernel compiles for NVIDIA's and AMD's devices, which need not be here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
ROOT = Path(__file__).parent.parent


def compile_kernels(tmp_path, *options):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, str(ROOT / "tests" / "compile_kernels.py"), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    return done.stdout.splitlines()[1:]


def check(lines):
    kernels = set()
    for line in lines:
        kernels.add(re.search(r"(\w+_kernel)\[", line)[1])
        uses = re.findall(r"(sm_80|sm_90|gfx942): +(\d+) (\d+) +(\d+)", line)
        assert len(uses) == 3, line
        for _, registers, stack, shared in uses:
            assert int(registers) <= 255, line
            assert int(stack) == 0, f"registers are spilled: {line}"
            assert int(shared) <= 48 * 1024, line
    return kernels


def kernels_in_the_source():
    files = (ROOT / "src" / "brctc" / "kernels").rglob("triton_*.py")
    return {name for file in files for name in re.findall(r"@kernel\ndef (\w+)", file.read_text())}


@pytest.mark.slow
def test_every_kernel_compiles(tmp_path):
    assert check(compile_kernels(tmp_path)) == kernels_in_the_source()


@pytest.mark.exhaustive
def test_every_kernel_compiles_for_every_dtype(tmp_path):
    check(compile_kernels(tmp_path, "--full"))


def test_the_benchmark_says_what_is_missing():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: run it")
    command = [sys.executable, str(ROOT / "benchmarks" / "ctc_loss.py"), "--device", "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "there is no CUDA device here" in done.stderr
