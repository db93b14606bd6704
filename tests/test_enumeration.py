"""Loss, gradient, groups and best path against every path, for all small sizes."""

import itertools
import math

import pytest
import torch

import brctc
from tests.paths import Enumeration, TableRisk

BACKENDS = ["cpu", "reference"]
TARGETS = [[], [1], [1, 2], [1, 1], [2, 1, 2], [1, 1, 2], [2, 1, 1], [3, 3, 3], [1, 2, 3]]
CLASSES = 4
TOLERANCE = 1e-10


def scores_of(frames: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 100 * frames)
    return 2 * torch.randn(frames, CLASSES, dtype=torch.double, generator=generator)


def compare(loss_of, expected_of, frames, from_logits):
    """Both losses and their gradients, under the same random upstream gradient."""
    upstream = torch.randn((), dtype=torch.double)
    results = []
    for function, normalise in ((loss_of, False), (expected_of, from_logits)):
        scores = scores_of(frames).requires_grad_()
        loss = function(scores.log_softmax(-1) if normalise else scores)
        grad = torch.autograd.grad(loss, scores, upstream)[0] if loss.requires_grad else None
        results.append((loss.detach(), grad))
    (loss, grad), (expected, expected_grad) = results
    if expected.isinf():
        assert loss == math.inf
        assert (grad == 0).all(), "what cannot be aligned has no gradient"
        return
    torch.testing.assert_close(loss, expected, rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(grad, expected_grad, rtol=TOLERANCE, atol=TOLERANCE)


def call(scores, target, risk, backend, from_logits=False):
    labels = torch.tensor(target, dtype=torch.long)
    return brctc.bayes_risk_ctc_loss(
        scores,
        labels,
        len(scores),
        len(target),
        risk,
        reduction="sum",
        backend=backend,
        from_logits=from_logits,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("frames", range(1, 7))
@pytest.mark.parametrize("from_logits", [False, True], ids=["log_probs", "logits"])
def test_closed_forms(frames, target, backend, from_logits):
    cases = [(None, lambda e: e.loss())]
    cases += [(brctc.EarlyFinish(f), lambda e, f=f: e.early_finish(f)) for f in (0.0, 3.7, 40.0, -2.0)]
    cases += [(brctc.EarlyEmission(f), lambda e, f=f: e.early_emission(f)) for f in (0.0, 5.0, 60.0, -3.0)]
    cases += [(brctc.DelayPenalty(f), lambda e, f=f: e.delay_penalty(f)) for f in (0.0, 0.3, 20.0, -1.5)]
    for risk, expected in cases:
        compare(
            lambda scores, risk=risk: call(scores, target, risk, backend, from_logits),
            lambda scores, expected=expected: expected(Enumeration(scores, target)),
            frames,
            from_logits,
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("frames", range(1, 7))
def test_own_risks(frames, target, backend):
    for tokens, event in itertools.product(("last", "each"), ("end", "start")):
        table = torch.randn(len(target), frames, dtype=torch.double)
        if frames > 3 and target:
            table[:, 1] = -math.inf  # a forbidden frame
        risk = TableRisk(table[None], tokens, event)
        compare(
            lambda scores, risk=risk: call(scores, target, risk, backend),
            lambda scores, tokens=tokens, event=event, table=table: Enumeration(scores, target).loss(
                tokens, event, table
            ),
            frames,
            False,
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("event", ["end", "start"])
@pytest.mark.parametrize("target", TARGETS[1:], ids=str)
def test_path_groups(target, event, backend):
    for frames in range(1, 7):
        upstream = torch.randn(len(target), frames, dtype=torch.double)
        results = []
        for mine in (True, False):
            scores = scores_of(frames).requires_grad_()
            if mine:
                groups = brctc.path_groups(
                    scores, torch.tensor(target), frames, len(target), event, backend=backend
                )
                table = groups.log_posterior[0]
            else:
                table = Enumeration(scores, target).log_groups(event)
            possible = table > -math.inf
            loss = (torch.where(possible, table, 0) * upstream).sum()
            grad = torch.autograd.grad(loss, scores, allow_unused=True)[0] if possible.any() else None
            results.append((table.detach(), grad))
        (table, grad), (expected, expected_grad) = results
        torch.testing.assert_close(table, expected.double(), rtol=TOLERANCE, atol=TOLERANCE)
        if expected_grad is not None:
            torch.testing.assert_close(grad, expected_grad, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("frames", range(1, 7))
def test_best_path(frames, target):
    log_probs = scores_of(frames).log_softmax(-1)
    every = Enumeration(log_probs, target)
    labels = torch.tensor(target, dtype=torch.long)
    found = brctc.best_path(log_probs, labels, frames, len(target))
    if len(every.paths) == 0:
        assert found.score == -math.inf
        assert (found.path == -1).all()
        return
    best = int(every.log_p.argmax())
    torch.testing.assert_close(found.score, every.log_p[best])
    assert found.path.tolist() == every.paths[best].tolist()
    if target:
        assert (found.start + 1).tolist() == every.start[best].tolist()
        assert found.end.tolist() == every.end[best].tolist()
    from_logits = brctc.best_path(scores_of(frames), labels, frames, len(target), from_logits=True)
    torch.testing.assert_close(from_logits.score, found.score)


@pytest.mark.parametrize("backend", BACKENDS)
def test_appendix_b(backend):
    """The paper's example: paths AB-, ABB, AAB, A-B, -AB with probabilities .3 .1 .2 0 .1, risks
    1.0 and 0.8 for B ending at frame 2 and 3: the objective is 0.62. The last frame's scores are
    not normalised, as no softmax gives these probabilities; the loss takes them as they are."""
    scores = torch.tensor([[1 / 3, 2 / 3, 0], [0, 2 / 3, 1 / 3], [1.35, 0, 0.45]], dtype=torch.double).log()
    every = Enumeration(scores, [1, 2])
    assert sorted(every.log_p.exp().tolist()) == pytest.approx([0, 0.1, 0.1, 0.2, 0.3])
    log_risk = torch.tensor([0, 1.0, 0.8], dtype=torch.double).log()
    loss = call(scores, [1, 2], TableRisk(log_risk, "last", "end"), backend)
    assert math.exp(-loss) == pytest.approx(0.62, abs=1e-12)
