"""The transducer loss as torchaudio and warp_rnnt users call it: blank=-1, reductions, clamp, NaN."""

import math

import pytest
import torch

import brctc
from tests.test_transducer import enumerated_loss
from tests.transducer_batches import BACKENDS, random_batch


def by_enumeration(batch, logits):
    blank = batch.blank % logits.shape[3]
    return torch.stack(
        [
            enumerated_loss(logits[n, :t, : u + 1], batch.targets[n, :u].tolist(), blank)
            for n, (t, u) in enumerate(zip(batch.logit_lengths, batch.target_lengths, strict=True))
        ]
    )


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("backend", BACKENDS)
def test_rnnt_loss_by_enumeration(seed, backend):
    batch = random_batch(2, 3, 2, 4, blank=3, seed=seed)
    logits = batch.logits.nan_to_num()
    results = []
    for reduction in ("none", "mean", "sum"):
        ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
        found = brctc.functional.rnnt_loss(ours, *batch[1:4], -1, -1, reduction, backend=backend)
        expected = by_enumeration(batch, theirs)
        expected = {"none": expected, "mean": expected.mean(), "sum": expected.sum()}[reduction]
        upstream = torch.rand_like(expected)
        results.append((found, expected))
        grads = torch.autograd.grad(found, ours, upstream), torch.autograd.grad(expected, theirs, upstream)
        results.append((grads[0][0], grads[1][0]))
    for found, expected in results:
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_log_probabilities_are_taken_as_they_are():
    """Also unnormalised ones, and the gradient is the true one by them."""
    batch = random_batch(2, 3, 2, 4, seed=3)
    scores = (batch.logits.nan_to_num().log_softmax(-1) + 0.1).requires_grad_()
    found = brctc.functional.rnnt_loss(scores, *batch[1:4], 0, reduction="sum", fused_log_softmax=False)
    steps = (batch.logit_lengths + batch.target_lengths).sum()
    expected = by_enumeration(batch, scores.detach()).sum() - 0.1 * steps
    torch.testing.assert_close(found, expected)
    (grad,) = torch.autograd.grad(found, scores)
    torch.testing.assert_close(grad.sum(), -steps.double())
    with pytest.raises(ValueError, match="backend 'cpu' takes logits"):
        brctc.transducer_loss(scores, *batch[1:4], from_logits=False, backend="cpu")


@pytest.mark.parametrize("backend", BACKENDS)
def test_clamp_is_before_what_comes_back(backend):
    batch = random_batch(2, 4, 2, 4, seed=1)
    upstream = torch.tensor([3.0, -0.5], dtype=torch.double)
    _, plain = batch.loss_and_grad(torch.ones(2), backend=backend)
    loss, clamped = batch.loss_and_grad(upstream, backend=backend, clamp=0.05)
    expected = plain.clamp(-0.05, 0.05) * upstream[:, None, None, None]
    torch.testing.assert_close(clamped, expected, rtol=1e-10, atol=1e-12)
    assert (plain.abs() > 0.05).any()
    torch.testing.assert_close(loss, batch.loss(backend=backend))


def test_batchmean_and_mean():
    batch = random_batch(3, 4, 3, 5, seed=2)
    losses = batch.loss()
    torch.testing.assert_close(batch.loss(reduction="batchmean"), losses.mean())
    mean = (losses / batch.target_lengths.clamp(min=1)).mean()
    torch.testing.assert_close(batch.loss(reduction="mean"), mean)
    with pytest.raises(ValueError, match="reduction is 'batchmean'"):
        brctc.functional.rnnt_loss(*batch[:4], reduction="batchmean")
    with pytest.raises(ValueError, match="blank is -6, expected 0 to 4"):
        batch.loss(blank=-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_overflow_is_nan_if_wanted(backend):
    batch = random_batch(3, 4, 2, 5, seed=4)
    logits = batch.logits.nan_to_num()
    expected, wanted = batch._replace(logits=logits).loss_and_grad(torch.ones(3), backend=backend)
    logits = logits.clone()
    logits[0, 2, 1, 3] = math.inf
    bad = batch._replace(logits=logits)
    with pytest.raises(ValueError, match="at frame 2 of utterance 0"):
        bad.loss(backend=backend)
    losses, grad = bad.loss_and_grad(torch.ones(3), backend=backend, nonfinite="nan")
    assert losses.isnan().tolist() == [True, False, False]
    torch.testing.assert_close(losses[1:], expected[1:])
    assert grad[0].isnan().all()
    torch.testing.assert_close(grad[1:], wanted[1:])
    _, grad = bad.loss_and_grad(torch.tensor([0.0, 1, 1]), backend=backend, nonfinite="nan")
    assert (grad[0] == 0).all()
