"""The float32 gradient against float64, for posteriors that break other implementations."""

import math
import sys
from pathlib import Path

import pytest
import torch

import brctc
from tests.batches import random_batch

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import exactness


@pytest.mark.parametrize("frames", exactness.FRAMES)
@pytest.mark.parametrize("kind", exactness.KINDS)
def test_gradient_error_in_float32(kind, frames):
    errors = exactness.measure(kind, frames)
    for name, bar in exactness.BARS.items():
        assert errors[name] <= bar, (name, errors)


def test_the_float64_core_is_a_fair_judge():
    """It agrees with the reference where that can still be run."""
    for kind in exactness.KINDS:
        targets = torch.randint(1, 50, (8,), generator=torch.Generator().manual_seed(1))
        logits = exactness.make_logits(kind, 60, 8, 50, targets).double()
        for risk in (None, brctc.EarlyFinish(100.0), brctc.EarlyEmission(100.0), brctc.DelayPenalty(0.5)):
            native, reference = (
                torch.autograd.grad(
                    brctc.bayes_risk_ctc_loss(
                        leaf, targets[None], [60], [8], risk, from_logits=True, backend=backend
                    ),
                    leaf,
                )[0]
                for backend in ("cpu", "reference")
                for leaf in [logits.clone().requires_grad_()]
            )
            assert exactness.error(native, reference) < 1e-9, (kind, risk)


def test_large_losses_are_right():
    """A loss of 100000 nats, and a step in it, come out to float precision."""
    batch = random_batch(1, 1000, 100, 50, spread=300.0, dtype=torch.float32)
    for risk in (None, brctc.EarlyFinish(5.0), brctc.EarlyEmission(5.0), brctc.DelayPenalty(0.5)):
        loss = batch.loss(risk)
        expected = batch._replace(scores=batch.scores.double()).loss(risk)
        assert expected.abs() > 1e4
        torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)


def test_exponents_beyond_float_fall_back_to_double():
    """Scores so small that float32's exponents would not hold the paths."""
    batch = random_batch(2, 50, 8, 9, spread=3e7, dtype=torch.float32)
    for risk in (None, brctc.EarlyFinish(5.0), brctc.EarlyEmission(5.0), brctc.DelayPenalty(0.5)):
        scores = batch.scores.clone().requires_grad_()
        loss = batch._replace(scores=scores).loss(risk, from_logits=True)
        exact = batch.scores.double().requires_grad_()
        expected = batch._replace(scores=exact).loss(risk, from_logits=True, backend="reference")
        torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
        (grad,) = torch.autograd.grad(loss.sum(), scores)
        (expected_grad,) = torch.autograd.grad(expected.sum(), exact)
        kept = ~expected_grad.isnan()
        assert exactness.error(grad[kept].double(), expected_grad[kept]) < 1e-5


def test_risk_factors_beyond_float_fall_back_to_double():
    batch = random_batch(2, 30, 4, 7, dtype=torch.float32)
    for factor in (200.0, 900.0, -500.0, 5000.0):
        scores = batch.scores.clone().requires_grad_()
        loss = batch._replace(scores=scores).loss(brctc.EarlyEmission(factor))
        exact = batch.scores.double()
        expected = batch._replace(scores=exact).loss(brctc.EarlyEmission(factor), backend="reference")
        torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-4)


def test_short_utterances_in_a_batch_get_their_own_last_group():
    """Shorter in frames and labels than the batch's longest: the risk still reaches the gradient."""
    batch = random_batch(8, 40, 9, 12, seed=11)
    for n in range(8):
        frames, labels = int(batch.input_lengths[n]), int(batch.target_lengths[n])
        alone = brctc.bayes_risk_ctc_loss(
            batch.scores[:frames, n],
            batch.targets[n, :labels],
            frames,
            labels,
            brctc.EarlyFinish(9.0),
            reduction="sum",
        )
        torch.testing.assert_close(batch.loss(brctc.EarlyFinish(9.0))[n], alone)
        if labels:
            assert not math.isclose(alone.item(), batch.loss()[n].item(), rel_tol=1e-3)


def test_gradient_noise_does_not_grow_with_the_risk_factor():
    batch = random_batch(1, 300, 30, 40, dtype=torch.float32)
    for make in (brctc.EarlyFinish, brctc.EarlyEmission):
        for factor in (1.0, 10.0, 50.0, 100.0):
            errors = []
            for dtype in (torch.float32, torch.float64):
                scores = batch.scores.to(dtype).requires_grad_()
                loss = batch._replace(scores=scores).loss(make(factor))
                errors.append(torch.autograd.grad(loss.sum(), scores)[0].double())
            assert exactness.error(*errors) < 2e-6, (make, factor)


@pytest.mark.parametrize("kind", exactness.KINDS)
def test_delay_penalty_in_float32(kind):
    """Weights of up to 50,000 nats beside one another leave the gradient its digits."""
    targets = torch.randint(1, 50, (100,), generator=torch.Generator().manual_seed(1))
    logits = exactness.make_logits(kind, 1000, 100, 50, targets)
    for penalty in (0.01, 0.1, 1.0):
        risk = brctc.DelayPenalty(penalty)
        found, exact = (exactness.gradient(x, targets, risk, True) for x in (logits, logits.double()))
        assert exactness.error(found, exact) <= exactness.BARS["last"]


def test_factors_that_nothing_holds_are_refused():
    batch = random_batch(2, 30, 4, 7)
    with pytest.raises(ValueError, match="risk factor of utterance 0 are too large"):
        batch.loss(brctc.EarlyFinish(1e300))
    with pytest.raises(ValueError, match="risk factor of utterance 0 are too large"):
        batch.loss(brctc.DelayPenalty(1e300))
