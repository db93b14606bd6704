"""The transducer loss in float32 against float64, over threads and processors, and its memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import brctc
from brctc.kernels.transducer import cpu_joint
from tests.transducer_batches import BACKENDS, Batch, random_batch, random_joint

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def make_logits(kind: str, T: int, U: int, C: int, targets: Tensor) -> Tensor:
    """Logits (T, U + 1, C) of one utterance, as models make them at some time of their training."""
    generator = torch.Generator().manual_seed(5)
    if kind == "flat":
        return 0.1 * torch.randn(T, U + 1, C, generator=generator)
    if kind == "random":
        return 3 * torch.randn(T, U + 1, C, generator=generator)
    if kind == "extreme":
        return 300 * torch.randn(T, U + 1, C, generator=generator)
    logits = torch.randn(T, U + 1, C, generator=generator)
    if kind == "blank-dominated":
        logits[:, :, 0] += 12
        return logits
    # a model that knows when each label comes, or (mismatched) is sure of the wrong frames
    start = torch.linspace(0, T - 1, U + 2).long()[1:-1]
    for u in range(U + 1):
        logits[:, u, 0] += 14
        if u < U:
            emits = range(int(start[u]), T) if kind == "peaky" else range(int(start[u]) // 2)
            for t in emits:
                logits[t, u, 0] -= 14
                logits[t, u, targets[u]] += 14
    return logits


KINDS = ["flat", "random", "peaky", "mismatched", "blank-dominated", "extreme"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("T", [60, 500])
def test_gradient_error_in_float32(kind, T):
    U, C = 60, 30
    targets = torch.randint(1, C, (U,), generator=torch.Generator().manual_seed(1))
    logits = make_logits(kind, T, U, C, targets)
    results = []
    for dtype in (torch.float32, torch.float64):
        leaf = logits.to(dtype)[None].requires_grad_()
        loss = brctc.transducer_loss(leaf, targets[None], [T], [U], reduction="sum")
        results.append((loss.detach().double(), torch.autograd.grad(loss, leaf)[0].double()))
    (loss, grad), (expected, expected_grad) = results
    torch.testing.assert_close(loss, expected, rtol=2e-7, atol=1e-8)
    error = (grad - expected_grad).norm() / expected_grad.norm()
    assert error < 5e-7, error


@pytest.mark.parametrize("kind", KINDS)
def test_the_float64_core_is_a_fair_judge(kind):
    """It agrees with the reference where that can still be run."""
    targets = torch.randint(1, 20, (8,), generator=torch.Generator().manual_seed(1))
    logits = make_logits(kind, 40, 8, 20, targets).double()[None]
    batch = Batch(logits, targets[None], torch.tensor([40]), torch.tensor([8]), 0)
    one = torch.ones(1, dtype=torch.double)
    (loss, grad), (expected, expected_grad) = (batch.loss_and_grad(one, backend=b) for b in BACKENDS)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    assert (grad - expected_grad).norm() < 1e-9 * expected_grad.norm()


def test_large_losses_are_right():
    batch = random_batch(2, 300, 40, 20, spread=1e6, dtype=torch.float32)
    expected = batch._replace(logits=batch.logits.double()).loss()
    assert (expected > 1e6).all()
    torch.testing.assert_close(batch.loss().double(), expected, rtol=1e-6, atol=0)


# ---- by repetition ------------------------------------------------------------------------------


@pytest.mark.parametrize("N", [1, 5])
def test_bit_identical_over_runs_and_threads(N):
    batch = random_batch(N, 150, 30, 100, dtype=torch.float32)
    upstream = torch.rand(N)
    results = []
    for threads in (1, 2, 3, 2, 1):
        torch.set_num_threads(threads)
        results.append(batch.loss_and_grad(upstream))
    torch.set_num_threads(1)
    for loss, grad in results[1:]:
        assert torch.equal(loss, results[0][0])
        assert torch.equal(grad, results[0][1])


def test_joint_with_threads():
    """Matrix products are torch's, which may round differently with more threads."""
    batch = random_batch(5, 80, 20, 40, dtype=torch.float32)
    joint = [tensor.requires_grad_() for tensor in random_joint(batch, 200)]
    results = []
    for threads in (1, 3, 1):
        torch.set_num_threads(threads)
        loss = brctc.transducer_joint_loss(*joint, *batch[1:4])
        results.append([loss.detach(), *torch.autograd.grad(loss, joint)])
    torch.set_num_threads(1)
    for one, three, again in zip(*results, strict=True):
        torch.testing.assert_close(one, three)
        assert torch.equal(one, again)


@pytest.mark.parametrize("isa", ["baseline", "x86_64_v3", "x86_64_v4"])
def test_instruction_sets_agree(isa):
    code = """
import torch, brctc
from tests.transducer_batches import random_batch, random_joint
batch = random_batch(3, 40, 9, 37, dtype=torch.float32)
upstream = torch.ones(3)
_, grad = batch.loss_and_grad(upstream)
_, expected = batch._replace(logits=batch.logits.double()).loss_and_grad(upstream, backend="reference")
assert (grad - expected).norm() < 1e-5, (grad - expected).norm()
grads = []
for backend, dtype in (("cpu", torch.float32), ("reference", torch.float64)):
    joint = [tensor.nan_to_num().to(dtype).requires_grad_() for tensor in random_joint(batch, 21)]
    loss = brctc.transducer_joint_loss(*joint, *batch[1:4], backend=backend)
    grads.append(torch.autograd.grad(loss, joint))
for found, expected in zip(*grads):
    assert (found - expected).norm() < 2e-6 * (1 + expected.norm()), (found - expected).norm()
print(brctc.backends()["cpu"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "BRCTC_ISA": isa},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if isa not in done.stdout:
        pytest.skip(f"this processor does not run {isa}: {done.stdout.strip()} was used")


# ---- memory -------------------------------------------------------------------------------------

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
MEMORY = """
import sys, torch, brctc
from bars import peak_growth_bytes
torch.set_num_threads(1)
which, N, T, U, C, D = sys.argv[1], *map(int, sys.argv[2:])

def inputs(N, T, U, C, D):
    labels = torch.randint(1, C, (N, U)), [T] * N, [U] * N
    if which == "dense":
        return [torch.randn(N, T, U + 1, C, requires_grad=True)], labels
    sizes = (N, T, D), (N, U + 1, D), (C, D), (C,)
    return [torch.randn(size, requires_grad=True) for size in sizes], labels

def step(tensors, labels):
    function = brctc.transducer_loss if which == "dense" else brctc.transducer_joint_loss
    function(*tensors, *labels, reduction="none" if which == "none" else "mean").sum().backward()

step(*inputs(2, 10, 3, C, D))  # load code, start allocators
tensors, labels = inputs(N, T, U, C, D)
print(peak_growth_bytes(lambda: step(tensors, labels)))
"""


def peak_growth(which, *shape):
    command = [sys.executable, "-c", MEMORY, which, *map(str, shape)]
    done = subprocess.run(command, cwd=BENCHMARKS, check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer takes memory of its own"
)
def test_memory():
    """The dense loss needs its gradient and little more; the joint loss never holds N T U C numbers."""
    shape = N, T, U, C, _ = 8, 100, 30, 1000, 64
    all_logits = 4 * N * T * (U + 1) * C  # 99 MB
    assert all_logits < peak_growth("dense", *shape) < 1.2 * all_logits
    working = 4 * cpu_joint._GROUP_SIZE + 8 * 2**20
    assert working < 0.5 * all_logits
    for which in ("mean", "none"):
        assert peak_growth(which, *shape) < working
