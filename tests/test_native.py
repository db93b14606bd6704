"""The native core against the reference and against torch, over random shapes and layouts."""

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import brctc
from brctc import _native
from brctc.kernels.ctc import cpu, reference
from tests.batches import batches, random_batch
from tests.parity import check_parity, loss_and_grad
from tests.paths import TableRisk

pytestmark = pytest.mark.usefixtures("poisoned_memory")
RISKS = [
    None,
    brctc.EarlyFinish(0.0),
    brctc.EarlyFinish(8.0),
    brctc.EarlyEmission(12.0),
    brctc.DelayPenalty(0.2),
    brctc.DelayPenalty(-3.0),
    TableRisk(torch.tensor(0.3), "last", "start"),
    TableRisk(torch.linspace(-1, 1, 1), "each", "start"),
]


@settings(max_examples=150, deadline=None)
@given(batch=batches(), risk=st.sampled_from(RISKS), from_logits=st.booleans())
def test_native_equals_reference(batch, risk, from_logits):
    check_parity(batch, risk, backend="cpu", from_logits=from_logits)


@settings(max_examples=60, deadline=None)
@given(batch=batches(), factory=st.sampled_from([brctc.EarlyFinish, brctc.EarlyEmission, brctc.DelayPenalty]))
def test_risk_factor_zero_is_torch_at_the_logits(batch, factory):
    scores = torch.nan_to_num(batch.scores.double())
    if batch.scores.abs().nan_to_num().max() > 100:
        scores = scores / 100  # torch's own float64 CTC loses digits beyond
    targets = batch.targets
    if targets.dim() == 2:
        targets = targets.clamp(min=0)  # torch reads padding
    upstream = torch.rand(scores.shape[1], dtype=torch.double)
    results = []
    for function in (
        lambda x: batch._replace(scores=x).loss(factory(0.0)),
        lambda x: F.ctc_loss(
            x, targets, batch.input_lengths, batch.target_lengths, batch.blank, "none", zero_infinity=True
        ),
    ):
        logits = scores.clone().requires_grad_()
        loss = function(logits.log_softmax(-1))
        (grad,) = torch.autograd.grad(loss, logits, upstream)
        results.append((loss.detach(), grad))
    (loss, grad), (expected, expected_grad) = results
    feasible = loss.isfinite()
    torch.testing.assert_close(loss[feasible], expected[feasible], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(grad[:, feasible], expected_grad[:, feasible], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_reductions_are_torchs(reduction, zero_infinity):
    batch = random_batch(4, 12, 4, 6, seed=3)
    batch.input_lengths[1], batch.target_lengths[1] = 2, 4  # infeasible
    batch.targets[1] = torch.tensor([1, 1, 2, 2])
    scores = batch.scores.nan_to_num().log_softmax(-1)
    expected = F.ctc_loss(
        scores,
        batch.targets.clamp(min=0),
        batch.input_lengths,
        batch.target_lengths,
        reduction=reduction,
        zero_infinity=zero_infinity,
    )
    for backend in ("cpu", "reference"):
        found = batch._replace(scores=scores.requires_grad_()).loss(
            reduction=reduction, zero_infinity=zero_infinity, backend=backend
        )
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        (grad,) = torch.autograd.grad(found.sum(), scores)
        assert grad.isfinite().all(), "an infeasible utterance must not spoil the batch's gradient"
        assert (grad[:, 1] == 0).all()


RISKS_TO_CHECK = [
    None,
    brctc.EarlyFinish(4.0),
    brctc.EarlyEmission(6.0),
    brctc.DelayPenalty(0.5),
    TableRisk(torch.ones(1), "each", "start"),
]


@pytest.mark.parametrize("risk", RISKS_TO_CHECK, ids=str)
@pytest.mark.parametrize("from_logits", [False, True])
def test_gradcheck(risk, from_logits):
    batch = random_batch(2, 7, 3, 4, seed=1)
    scores = batch.scores.nan_to_num().requires_grad_()
    for backend in ("cpu", "reference"):
        run = lambda x: batch._replace(scores=x).loss(risk, from_logits=from_logits, backend=backend)  # noqa: B023, E731
        assert torch.autograd.gradcheck(run, (scores,))
    assert torch.autograd.gradgradcheck(run, (scores,))  # the reference


def test_no_silent_second_derivative():
    batch = random_batch(2, 7, 3, 4)
    scores = batch.scores.nan_to_num().requires_grad_()
    for risk in (None, RISKS_TO_CHECK[-1]):
        loss = batch._replace(scores=scores).loss(risk, reduction="sum")
        (grad,) = torch.autograd.grad(loss, scores, create_graph=True)
        with pytest.raises(RuntimeError, match="backend='reference'"):
            grad.sum().backward()


@pytest.mark.parametrize("risk", RISKS_TO_CHECK, ids=str)
@pytest.mark.parametrize(("N", "U"), [(1, 60), (1, 120), (5, 60)])  # 120: too long for shares to be kept
def test_bit_identical_over_runs_and_threads(risk, N, U):
    batch = random_batch(N, 3000, U, 80, dtype=torch.float32, spread=3.0)
    upstream = torch.rand(N)
    results = []
    for threads in (1, 2, 3, 2, 1):
        torch.set_num_threads(threads)
        for from_logits in (False, True):
            results.append(loss_and_grad(batch, risk, upstream, from_logits=from_logits))
    torch.set_num_threads(1)
    for fused, (loss, grad) in enumerate(results[2:]):
        assert torch.equal(loss, results[fused % 2][0])
        assert torch.equal(grad, results[fused % 2][1])


def test_calls_from_several_threads_at_once():
    """Each call works with threads of its own, and gives what it gives alone."""
    found = [random_batch(N, 2000, 60, 80, dtype=torch.float32) for N in (1, 3, 1, 2)]
    alone = [batch.loss(from_logits=True) for batch in found]
    torch.set_num_threads(2)
    with ThreadPoolExecutor(4) as callers:
        for _ in range(5):
            together = list(callers.map(lambda batch: batch.loss(from_logits=True), found))
            assert all(map(torch.equal, together, alone))
    torch.set_num_threads(1)


def test_backward_twice_with_retained_graph():
    batch = random_batch(3, 30, 5, 9, dtype=torch.float32)
    scores = batch.scores.nan_to_num().requires_grad_()
    loss = batch._replace(scores=scores).loss(reduction="sum", from_logits=True)
    (first,) = torch.autograd.grad(loss, scores, retain_graph=True)
    (second,) = torch.autograd.grad(2 * loss, scores)
    torch.testing.assert_close(2 * first, second)


@pytest.fixture
def without_table():
    """As with an older torch, which has no table of DLPack's functions: Python asks the tensors then."""
    assert not _native.learn_tensors(None, None)
    yield
    _native.learn_tensors(torch.Tensor, torch.nn.Parameter)


def tied_shares(dtype):
    shares = torch.randint(-3, 0, (4, 6, 50), generator=torch.Generator().manual_seed(0)).to(dtype)
    shares[:, 1::2] += torch.linspace(0, 5e-5, 50, dtype=dtype)  # ties that rounding would break
    shares[2, :, 7:], shares[3, 3:] = -math.inf, -math.inf
    return brctc.PathGroups(shares, *[torch.zeros(4)] * 4, "end")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_peaks_are_the_first_of_ties(dtype, without_table):
    groups = tied_shares(dtype)
    expected = groups.peak_frame
    assert _native.learn_tensors(torch.Tensor, torch.nn.Parameter) == hasattr(
        torch.Tensor, "__dlpack_c_exchange_api__"
    )
    found = groups.peak_frame
    assert torch.equal(found, expected)
    assert found.max() > 1
    assert found[3, 3:].tolist() == [1, 1, 1]


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_torch_without_dlpacks_table_is_the_same(reduction, without_table):
    batch = random_batch(3, 30, 5, 9, dtype=torch.float32)
    batch = batch._replace(scores=batch.scores.nan_to_num().requires_grad_())
    results = []
    for _ in range(2):
        loss = batch.loss(brctc.EarlyEmission(3.0), reduction=reduction, from_logits=True)
        loss.sum().backward()
        results.append((loss.detach(), batch.scores.grad))
        batch.scores.grad = None
        with pytest.raises(ValueError, match="label 1 of utterance 0 is 9, expected 0 to 8"):
            brctc.bayes_risk_ctc_loss(batch.scores[:, :1], torch.tensor([[1, 9]]), [9], [2])
        _native.learn_tensors(torch.Tensor, torch.nn.Parameter)
    for without, with_table in zip(*results, strict=True):
        assert torch.equal(with_table, without)


def test_a_tensor_that_is_kept_nowhere():
    zeros = torch.ops.aten._efficientzerotensor([4, 1, 3])
    with pytest.raises(ValueError, match="scores is a tensor without memory"):
        brctc.bayes_risk_ctc_loss(zeros, torch.tensor([[1]]), [4], [1], from_logits=True)


def test_changed_scores_are_noticed():
    scores = torch.randn(10, 1, 5, requires_grad=True)
    doubled = scores * 2
    loss = brctc.bayes_risk_ctc_loss(doubled, torch.tensor([[1, 2]]), [10], [2])
    (first,) = torch.autograd.grad(loss, doubled, retain_graph=True)
    assert first.abs().sum() > 0
    doubled += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("isa", ["baseline", "x86_64_v3", "x86_64_v4"])
def test_instruction_sets_agree(isa):
    """Each build that this processor runs gives the same result up to rounding."""
    code = """
import sys, torch, brctc
from tests.batches import random_batch
batch = random_batch(3, 60, 9, 40, dtype=torch.float32)
for risk in (None, brctc.EarlyFinish(5.0), brctc.EarlyEmission(5.0), brctc.DelayPenalty(0.1)):
    for backend in ("cpu", "reference"):
        scores = batch.scores.clone().requires_grad_()
        own = batch._replace(scores=scores if backend == "cpu" else scores.double())
        loss = own.loss(risk, from_logits=True, backend=backend)
        grad, = torch.autograd.grad(loss.sum(), scores)
        if backend == "cpu":
            ours = grad
    kept = ~grad.isnan()
    assert (ours - grad)[kept].norm() < 1e-5, (risk, (ours - grad)[kept].norm())
print(brctc.backends()["cpu"])
"""
    environment = {**os.environ, "BRCTC_ISA": isa}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    if isa not in done.stdout:
        pytest.skip(f"this processor does not run {isa}: {done.stdout.strip()} was used")


def test_works_in_a_forked_worker():
    """A loss in a forked data worker, after the parent has used threads."""
    torch.set_num_threads(2)
    batch = random_batch(1, 3000, 60, 80, dtype=torch.float32)
    batch.loss()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if batch.loss().isfinite().all() else 1)
    torch.set_num_threads(1)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 4, 300), (3, 4, 1), (3, 1, 300), (1, 1, 1), (300,)])
def test_weighed_loss_equals_the_reference(shape, dtype):
    torch.manual_seed(len(shape))
    share = (torch.randn(3, 4, 300, dtype=dtype) * 40).log_softmax(-1)
    share[0, 1, 10:200] = -math.inf  # groups without a path
    share[2, 2] = -math.inf  # a token without one: nothing is learnt from its utterance
    tokens = torch.tensor([4, 2, 3])
    risk = torch.randn(shape, dtype=dtype) * 30
    if risk.shape[-1] > 1:
        risk.view(-1)[:7] = -math.inf  # groups that the risk forbids
    likelihood, upstream = torch.randn(2, 3, dtype=dtype)
    results = []
    for backend in (cpu, reference):
        leaves = [leaf.clone().requires_grad_() for leaf in (share, risk, likelihood)]
        losses = backend.weighed_loss(*leaves, tokens)
        assert losses.isinf().tolist() == [False, False, True]
        results.append((losses, *torch.autograd.grad(losses, leaves, upstream)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5 if dtype == torch.float32 else 1e-12)


def test_weighed_loss_marks_bad_risks_where_there_are_paths():
    share = torch.zeros(4, 1, 4).log_softmax(-1)
    share[2, 0, 1] = -math.inf
    risk = torch.zeros(4, 1, 4)
    risk[0, 0, 3], risk[1, 0, 0], risk[2, 0, 1], risk[3] = math.nan, math.inf, math.nan, math.nan
    tokens = torch.tensor([1, 1, 1, 0])
    for backend in (cpu, reference):
        losses = backend.weighed_loss(share, risk, torch.zeros(4), tokens)
        assert losses.isnan().tolist() == [True, True, False, False]


def test_a_learnt_risk_can_be_differentiated_twice():
    """The lattice has no second derivative here, but the risk's own parameters need none of it."""

    class Learnt(brctc.BayesRisk):
        def __init__(self, slope):
            self.slope = slope

        def log_risk(self, groups):
            return -self.slope * groups.frame

    seconds = []
    for backend in ("cpu", "reference"):
        torch.manual_seed(1)
        slope = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        log_probs = torch.randn(12, 2, 5, dtype=torch.float64).log_softmax(-1)
        loss = brctc.bayes_risk_ctc_loss(
            log_probs, torch.tensor([[1, 2, 2], [3, 4, 1]]), [12, 9], [3, 3], Learnt(slope), backend=backend
        )
        (first,) = torch.autograd.grad(loss, slope, create_graph=True)
        seconds.append(torch.autograd.grad(first, slope)[0])
    assert seconds[0].abs() > 1e-3
    torch.testing.assert_close(*seconds)
