"""The transducer loss against every path, against the reference, and in float32 against float64."""

import contextlib
import itertools
import math
import os
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import brctc
from brctc import _native
from brctc.kernels import joint_cpu

BACKENDS = ["cpu", "reference"]
TOLERANCE = 1e-10


@pytest.fixture(autouse=True)
def poisoned_memory():
    """Whatever the core reads without having written it is NaN."""
    _native.poison_memory(True)
    yield
    _native.poison_memory(False)


class Batch(NamedTuple):
    logits: Tensor
    targets: Tensor
    logit_lengths: Tensor
    target_lengths: Tensor
    blank: int

    def loss(self, **options) -> Tensor:
        return brctc.transducer_loss(*self[:4], **{"reduction": "none", "blank": self.blank, **options})

    def loss_and_grad(self, upstream, **options):
        logits = self.logits.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        loss = self._replace(logits=logits).loss(**options)
        (grad,) = torch.autograd.grad(loss, logits, upstream.to(loss))
        return loss.detach(), grad


def random_batch(N, T, U, C, *, blank=0, spread=2.0, dtype=torch.double, seed=0) -> Batch:
    """Lengths vary, the first utterance is full; padding holds values that must not be read."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(N, T, U + 1, C, dtype=dtype, generator=generator)
    logit_lengths = torch.randint(1, T + 1, (N,), generator=generator)
    target_lengths = torch.randint(0, U + 1, (N,), generator=generator)
    logit_lengths[0], target_lengths[0] = T, U
    labels = torch.randint(0, C - 1, (N, U), generator=generator)
    labels += labels >= blank
    for n in range(N):
        labels[n, target_lengths[n] :] = -7
        logits[n, logit_lengths[n] :] = math.nan
        logits[n, :, target_lengths[n] + 1 :] = math.nan
    return Batch(logits, labels, logit_lengths, target_lengths, blank)


# ---- by the definition --------------------------------------------------------------------------


def enumerated_loss(logits: Tensor, target: list[int], blank: int) -> Tensor:
    """-log of the summed probability of all paths: T blanks, the last of them at the end, and the
    labels anywhere between. Knows nothing of lattices."""
    log_probs = logits.log_softmax(-1)
    frames, paths = len(logits), []
    for label_steps in itertools.combinations(range(frames + len(target) - 1), len(target)):
        t, u, terms = 0, 0, []
        for step in range(frames + len(target)):
            if step in label_steps:
                terms.append(log_probs[t, u, target[u]])
                u += 1
            else:
                terms.append(log_probs[t, u, blank])
                t += 1
        assert (t, u) == (frames, len(target))
        paths.append(torch.stack(terms).sum())
    return -torch.stack(paths).logsumexp(0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("frames", range(1, 5))
@pytest.mark.parametrize("target", [[], [1], [2], [1, 1], [2, 3], [1, 2, 1], [3, 3, 3]], ids=str)
def test_every_path(target, frames, backend):
    for blank, classes in ((0, 4), (4, 5)):
        results = []
        upstream = torch.randn((), dtype=torch.double)
        values = 2 * torch.randn(frames, len(target) + 1, classes, dtype=torch.double)
        for mine in (True, False):
            logits = values.clone().requires_grad_()
            if mine:
                labels = torch.tensor([target], dtype=torch.long)
                lengths = [frames], [len(target)]
                loss = brctc.transducer_loss(
                    logits[None], labels, *lengths, blank=blank, reduction="sum", backend=backend
                )
            else:
                loss = enumerated_loss(logits, target, blank)
            results.append((loss.detach(), torch.autograd.grad(loss, logits, upstream)[0]))
        (loss, grad), (expected, expected_grad) = results
        torch.testing.assert_close(loss, expected, rtol=TOLERANCE, atol=TOLERANCE)
        torch.testing.assert_close(grad, expected_grad, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck(backend):
    batch = random_batch(2, 3, 2, 3, seed=1)
    logits = batch.logits.nan_to_num().requires_grad_()
    run = lambda x: batch._replace(logits=x).loss(backend=backend)  # noqa: E731
    assert torch.autograd.gradcheck(run, (logits,))
    if backend == "reference":
        assert torch.autograd.gradgradcheck(run, (logits,))


def test_one_label_class_and_no_label_class():
    two = random_batch(2, 5, 3, 2)
    torch.testing.assert_close(two.loss(), two.loss(backend="reference"))
    for backend in BACKENDS:
        logits = torch.randn(2, 3, 1, 1, requires_grad=True)
        loss = brctc.transducer_loss(logits, torch.empty(2, 0).long(), [3, 2], [0, 0], backend=backend)
        assert abs(loss) < 1e-15
        assert (torch.autograd.grad(loss, logits)[0] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_reductions(backend):
    batch = random_batch(4, 6, 3, 5, seed=3)
    batch.target_lengths[2] = 0
    losses = batch.loss(backend=backend)
    torch.testing.assert_close(batch.loss(reduction="sum", backend=backend), losses.sum())
    mean = (losses / batch.target_lengths.clamp(min=1)).mean()
    torch.testing.assert_close(batch.loss(reduction="mean", backend=backend), mean)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_path_of_probability_zero(backend):
    batch = random_batch(3, 5, 2, 4, seed=4)
    logits = batch.logits.clone()
    logits[1, :, :, batch.blank] = -math.inf  # no path without a blank
    logits[0, 2, 0] = torch.tensor([-math.inf, 1.0, -2.0, -math.inf])  # a detour is left
    batch = batch._replace(logits=logits)
    upstream = torch.ones(3, dtype=torch.double)
    loss, grad = batch.loss_and_grad(upstream, backend=backend)
    assert loss[1] == math.inf
    assert loss[[0, 2]].isfinite().all()
    assert (grad[1] == 0).all()
    assert grad.isfinite().all()
    zeroed = batch.loss(zero_infinity=True, backend=backend)
    assert torch.equal(zeroed, loss.where(loss.isfinite(), 0.0))


# ---- by comparison ------------------------------------------------------------------------------


@st.composite
def batches(draw) -> Batch:
    C = draw(st.integers(2, 40))
    batch = random_batch(
        N=draw(st.integers(1, 5)),
        T=draw(st.integers(1, 20)),
        U=draw(st.integers(0, 12)),
        C=C,
        blank=draw(st.integers(0, C - 1)),
        spread=draw(st.sampled_from([0.0, 1.0, 5.0, 30.0, 300.0, 3000.0])),
        dtype=draw(st.sampled_from([torch.float32, torch.float64])),
        seed=draw(st.integers(0, 2**31)),
    )
    targets = batch.targets.to(draw(st.sampled_from([torch.int64, torch.int32])))
    logits = batch.logits
    memory = draw(st.sampled_from(["plain", "time-major", "strided", "class-major"]))
    if memory == "time-major":
        logits = logits.transpose(0, 1).contiguous().transpose(0, 1)
    elif memory == "strided":
        logits = torch.cat([logits, logits], -1)[..., : logits.shape[-1]]
    elif memory == "class-major":
        logits = logits.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    return batch._replace(targets=targets, logits=logits)


@settings(max_examples=100, deadline=None)
@given(batch=batches())
def test_native_equals_reference(batch):
    upstream = torch.randn(len(batch.logits), dtype=torch.double)
    exact = batch.logits.dtype == torch.float64
    loss, grad = batch.loss_and_grad(upstream, backend="cpu")
    in_double = batch._replace(logits=batch.logits.double())
    expected, expected_grad = in_double.loss_and_grad(upstream, backend="reference")
    tolerance = 1e-10 if exact else 2e-6
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=10 * tolerance)
    # padding holds NaN in the logits and must have gradient zero
    assert (grad[batch.logits.isnan()] == 0).all()
    for n in range(len(loss)):
        error = (grad[n].double() - expected_grad[n]).norm()
        assert error <= (1e-9 if exact else 2e-5) * (1 + expected_grad[n].norm())


def random_joint(batch: Batch, D: int, seed: int = 0) -> list[Tensor]:
    """Inputs of a joint network for the batch; what belongs to padding is NaN."""
    generator = torch.Generator().manual_seed(seed)
    N, T, rows, C = batch.logits.shape
    dtype = batch.logits.dtype
    encoder, prediction, weight, bias = (
        torch.randn(shape, dtype=dtype, generator=generator)
        for shape in ((N, T, D), (N, rows, D), (C, D), (C,))
    )
    for n in range(N):
        encoder[n, batch.logit_lengths[n] :] = math.nan
        prediction[n, batch.target_lengths[n] + 1 :] = math.nan
    return [encoder, prediction, weight, bias]


SIZES = joint_cpu._GROUP_SIZE, joint_cpu._PART_SIZE, joint_cpu._LEAST_ROWS


@contextlib.contextmanager
def set_sizes(sizes):
    """How the rows of a joint network are cut into groups and parts."""
    try:
        joint_cpu._GROUP_SIZE, joint_cpu._PART_SIZE, joint_cpu._LEAST_ROWS = sizes
        yield
    finally:
        joint_cpu._GROUP_SIZE, joint_cpu._PART_SIZE, joint_cpu._LEAST_ROWS = SIZES


@settings(max_examples=100, deadline=None)
@given(
    batch=batches(),
    D=st.integers(1, 70),
    reduction=st.sampled_from(["none", "mean", "sum"]),
    sizes=st.tuples(*(st.sampled_from([1, 100, 1000, size]) for size in SIZES)),
    seed=st.integers(0, 2**31),
)
def test_joint_equals_reference(batch, D, reduction, sizes, seed):
    """However the rows are cut into parts."""
    upstream = torch.randn(len(batch.logits) if reduction == "none" else (), dtype=torch.double)
    values = random_joint(batch, D, seed)
    results = []
    with set_sizes(sizes):
        for backend, dtype in (("cpu", batch.logits.dtype), ("reference", torch.double)):
            joint = [tensor.to(dtype, copy=True).requires_grad_() for tensor in values]
            loss = brctc.transducer_joint_loss(
                *joint, *batch[1:4], blank=batch.blank, reduction=reduction, backend=backend
            )
            results.append((loss.detach(), torch.autograd.grad(loss, joint, upstream.to(loss))))
    (loss, grads), (expected, expected_grads) = results
    exact = batch.logits.dtype == torch.float64
    tolerance = 1e-10 if exact else 5e-6
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=10 * tolerance)
    for value, grad, expected_grad in zip(values, grads, expected_grads, strict=True):
        padding = value.isnan()
        assert (grad[padding] == 0).all()
        error = (grad.double() - expected_grad)[~padding].norm()
        assert error <= (1e-9 if exact else 2e-5) * (1 + expected_grad[~padding].norm())


def test_joint_gradcheck():
    batch = random_batch(2, 3, 2, 4, seed=2)
    joint = [tensor.nan_to_num().requires_grad_() for tensor in random_joint(batch, 5)]
    for reduction in ("none", "mean"):
        run = lambda *x: brctc.transducer_joint_loss(*x, *batch[1:4], reduction=reduction)  # noqa: B023, E731
        assert torch.autograd.gradcheck(run, joint)


def test_joint_gradients_of_some_inputs_only():
    batch = random_batch(2, 5, 3, 6)
    values = [tensor.nan_to_num() for tensor in random_joint(batch, 5)]
    everything = [tensor.clone().requires_grad_() for tensor in values]
    run = lambda joint, reduction: brctc.transducer_joint_loss(*joint, *batch[1:4], reduction=reduction).sum()  # noqa: E731
    for reduction in ("mean", "none"):
        expected = torch.autograd.grad(run(everything, reduction), everything)
        for i in range(4):
            some = [tensor.clone().requires_grad_(i == j) for j, tensor in enumerate(values)]
            (grad,) = torch.autograd.grad(run(some, reduction), [some[i]])
            assert torch.equal(grad, expected[i])


def test_tanh_keeps_its_digits():
    """The joint network's tanh, seen through a loss that is linear in it."""
    size = torch.cat([torch.logspace(-30, 1.3, 2000), torch.zeros(1), torch.tensor([math.inf])])
    encoder = torch.cat([size, -size])[None, :, None]
    T = encoder.shape[1]
    weight, bias = torch.tensor([[1.0], [0.0]]), torch.zeros(2)
    weight.requires_grad_()
    encoder.requires_grad_()
    loss = brctc.transducer_joint_loss(
        encoder, torch.zeros(1, 1, 1), weight, bias, torch.empty(1, 0).long(), [T], [0], reduction="sum"
    )
    (grad,) = torch.autograd.grad(loss, encoder)
    h = encoder.detach().double().tanh()
    expected = -(1 - torch.sigmoid(h)) * (1 - h * h)
    torch.testing.assert_close(grad.double(), expected, rtol=1e-6, atol=2e-7)
    torch.testing.assert_close(loss.double(), torch.nn.functional.softplus(-h).sum(), rtol=1e-6, atol=0)


# ---- in float32 ---------------------------------------------------------------------------------


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
from tests.test_transducer import random_batch, random_joint
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

MEMORY = """
import sys, torch, brctc
torch.set_num_threads(1)
which, N, T, U, C, D = sys.argv[1], *map(int, sys.argv[2:])

def status(key):
    with open("/proc/self/status") as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))

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
with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")  # the peak starts anew
before = status("VmRSS")
step(tensors, labels)
print(status("VmHWM") - before)
"""


def peak_growth(which, *shape):
    command = [sys.executable, "-c", MEMORY, which, *map(str, shape)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


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
    working = 4 * joint_cpu._GROUP_SIZE + 8 * 2**20
    assert working < 0.5 * all_logits
    for which in ("mean", "none"):
        assert peak_growth(which, *shape) < working
