"""The transducer loss against every path, and against the reference."""

import contextlib
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import brctc
from brctc.kernels.transducer import cpu_joint
from tests.transducer_batches import BACKENDS, Batch, random_batch, random_joint

pytestmark = pytest.mark.usefixtures("poisoned_memory")
TOLERANCE = 1e-10


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


SIZES = cpu_joint._GROUP_SIZE, cpu_joint._PART_SIZE, cpu_joint._LEAST_ROWS


@contextlib.contextmanager
def set_sizes(sizes):
    """How the rows of a joint network are cut into groups and parts."""
    try:
        cpu_joint._GROUP_SIZE, cpu_joint._PART_SIZE, cpu_joint._LEAST_ROWS = sizes
        yield
    finally:
        cpu_joint._GROUP_SIZE, cpu_joint._PART_SIZE, cpu_joint._LEAST_ROWS = SIZES


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


def test_unchecked_an_utterance_with_something_wrong_is_nan_and_has_no_gradient():
    logits = torch.randn(3, 5, 3, 4)
    targets = torch.tensor([[1, 2], [3, 1], [2, 0]])
    lengths, counts = torch.tensor([5, 4, 5]), torch.tensor([2, 2, 1])
    expected = brctc.transducer_loss(logits, targets, lengths, counts, backend="reference", reduction="none")
    wrong = [
        (logits, torch.tensor([[1, 2], [3, 9], [2, 0]]), lengths, counts),
        (logits, targets, torch.tensor([5, 9, 5]), counts),
        (logits, targets, lengths, torch.tensor([2, 3, 1])),
        (logits.clone().index_fill_(0, torch.tensor([1]), math.nan), targets, lengths, counts),
    ]
    for values, *rest in wrong:
        scores = values.clone().requires_grad_()
        losses = brctc.transducer_loss(scores, *rest, backend="reference", reduction="none", validate=False)
        assert losses.isnan().tolist() == [False, True, False]
        torch.testing.assert_close(losses[::2], expected[::2])
        losses.nansum().backward()
        assert (scores.grad[1] == 0).all()
        assert scores.grad.isfinite().all()
