"""The transducer loss of the GPU kernels against the reference, as test_triton.py has the CTC losses."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import brctc
from tests.test_triton import DEVICE, poisoned_memory, pytestmark
from tests.transducer_batches import random_batch

__all__ = ["poisoned_memory", "pytestmark"]


def check_parity(batch):
    N = batch.logits.shape[0]
    upstream = torch.randn(N, dtype=torch.double)
    exact = batch.logits.dtype == torch.float64
    loss, grad = batch._replace(logits=batch.logits.to(DEVICE)).loss_and_grad(upstream, backend="triton")
    in_double = batch._replace(logits=batch.logits.double())
    expected, expected_grad = in_double.loss_and_grad(upstream, backend="reference")
    tolerance = 1e-10 if exact else 2e-6
    torch.testing.assert_close(loss.double().cpu(), expected, rtol=tolerance, atol=10 * tolerance)
    for n in range(N):
        T, rows = batch.logit_lengths[n], batch.target_lengths[n] + 1
        found = grad[n].double().cpu()
        assert (found[T:] == 0).all()
        assert (found[:, rows:] == 0).all()
        error = (found[:T, :rows] - expected_grad[n, :T, :rows]).norm()
        assert error <= (1e-9 if exact else 1e-5) * (1 + expected_grad[n, :T, :rows].norm())


@st.composite
def batches(draw, most_frames, most_labels):
    C = draw(st.integers(2, 9))
    return random_batch(
        draw(st.integers(1, 3)),
        draw(st.integers(1, most_frames)),
        draw(st.integers(0, most_labels)),
        C,
        blank=draw(st.integers(0, C - 1)),
        spread=draw(st.sampled_from([0.0, 2.0, 30.0, 300.0])),
        dtype=draw(st.sampled_from([torch.float32, torch.float64])),
        seed=draw(st.integers(0, 2**31)),
    )


@settings(max_examples=8, deadline=None)
@given(batch=batches(4, 3))
def test_parity(batch):
    check_parity(batch)


@pytest.mark.exhaustive
@settings(max_examples=100, deadline=None)
@given(batch=batches(20, 12))
def test_parity_on_many_shapes(batch):
    check_parity(batch)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    batch = random_batch(1, 3, 2, 5, dtype=torch.float32)
    half = batch._replace(logits=batch.logits.to(dtype))
    loss, grad = half._replace(logits=half.logits.to(DEVICE)).loss_and_grad(torch.ones(1), backend="triton")
    assert (loss.dtype, grad.dtype) == (torch.float32, dtype)
    expected, expected_grad = half._replace(logits=half.logits.float()).loss_and_grad(torch.ones(1))
    torch.testing.assert_close(loss.cpu(), expected)
    assert (grad.float().cpu() - expected_grad).norm() <= 1e-2 * expected_grad.norm()


def test_joint_network():
    torch.manual_seed(0)
    leaves = [torch.randn(shape, dtype=torch.double) for shape in ((1, 3, 4), (1, 3, 4), (5, 4), (5,))]
    results = []
    for backend in ("triton", "reference"):
        moved = [x.to(DEVICE if backend == "triton" else "cpu").requires_grad_() for x in leaves]
        loss = brctc.transducer_joint_loss(*moved, torch.tensor([[1, 2]]), [3], [2], backend=backend)
        results.append([loss.detach().cpu(), *(g.cpu() for g in torch.autograd.grad(loss, moved))])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("what", "index", "value"), [(1, (1, 0), 9), (2, 1, 5), (0, (1, 0, 0, 2), math.nan)])
def test_bad_values_raise_one_error_or_spoil_one_loss(what, index, value):
    values = [torch.randn(2, 2, 2, 4), torch.tensor([[1], [2]]), torch.tensor([2, 2]), torch.tensor([1, 1])]
    values[what][index] = value
    with pytest.raises(ValueError, match=r"\w") as of_the_cpu:
        brctc.transducer_loss(*values, backend="cpu")
    values = [value.to(DEVICE) for value in values]
    with pytest.raises(ValueError, match=r"\w") as found:
        brctc.transducer_loss(*values, backend="triton")
    assert str(found.value) == str(of_the_cpu.value)
    values[0].requires_grad_()
    loss = brctc.transducer_loss(*values, backend="triton", reduction="none", validate=False)
    (grad,) = torch.autograd.grad(loss.nansum(), values[0])
    assert loss.isnan().tolist() == [False, True]
    assert (grad[1] == 0).all()
    assert grad[0].abs().sum() > 0


def test_opcheck():
    batch = random_batch(1, 2, 1, 3)
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor")
    inputs = [x.to(DEVICE) for x in batch[:4]]
    inputs[0].requires_grad_()
    arguments = (*inputs, 0, True, True)
    torch.library.opcheck(torch.ops.brctc.triton_transducer_loss.default, arguments, test_utils=utilities)
    losses, cells, book = torch.ops.brctc.triton_transducer_loss(*arguments)
    backward = (losses.detach(), inputs[0].detach(), 0, cells, book)
    torch.library.opcheck(torch.ops.brctc.triton_transducer_gradient.default, backward, test_utils=utilities)
