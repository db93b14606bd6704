"""nonfinite="nan": an overflow gives a NaN loss and gradient on every backend, and a scaler skips it."""

import math

import pytest
import torch
from torch import nn

import brctc
from tests.batches import random_batch
from tests.paths import TableRisk

CUSTOM = TableRisk(torch.ones(1), "each", "start")
RISKS = [None, brctc.EarlyFinish(4.0), brctc.EarlyEmission(6.0), brctc.DelayPenalty(0.3), CUSTOM]
BACKENDS = ["cpu", "reference", "triton"]
CASES = [(backend, risk) for backend in BACKENDS[:2] for risk in RISKS]
CASES += [("triton", None), ("triton", CUSTOM)]  # takes its time in the interpreter


def spoiled_batch(value=math.nan, at=(5, 1)):
    batch = random_batch(3, 8, 2, 4, seed=2, dtype=torch.float32)
    batch.input_lengths[1] = 7
    scores = batch.scores.nan_to_num()
    scores[at] = value
    return batch._replace(scores=scores.requires_grad_())


@pytest.mark.parametrize(("backend", "risk"), CASES, ids=str)
@pytest.mark.parametrize(("value", "from_logits"), [(math.nan, False), (math.inf, True)])
def test_one_bad_utterance_is_nan_and_the_others_are_as_ever(risk, backend, value, from_logits):
    batch, good = spoiled_batch(value), spoiled_batch(0.0)
    options = {"backend": backend, "from_logits": from_logits}
    with pytest.raises(ValueError, match="at frame 5 of utterance 1"):
        batch.loss(risk, **options)
    losses = batch.loss(risk, nonfinite="nan", **options)
    expected = good.loss(risk, **options)
    assert losses.isnan().tolist() == [False, True, False]
    torch.testing.assert_close(losses[::2], expected[::2])
    upstream = torch.tensor([0.5, 1.0, 2.0])
    (grad,) = torch.autograd.grad(losses, batch.scores, upstream, retain_graph=True)
    (wanted,) = torch.autograd.grad(expected, good.scores, upstream)
    assert grad[:7, 1].isnan().all()
    assert (grad[7:, 1] == 0).all()  # padding
    torch.testing.assert_close(grad[:, ::2], wanted[:, ::2])
    # who leaves the bad one out has a clean gradient
    (grad,) = torch.autograd.grad(losses[losses.isfinite()].sum(), batch.scores)
    (wanted,) = torch.autograd.grad(good.loss(risk, **options)[::2].sum(), good.scores)
    assert (grad[:, 1] == 0).all()
    torch.testing.assert_close(grad[:, ::2], wanted[:, ::2])


@pytest.mark.parametrize("backend", BACKENDS[:2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "batchmean"])
def test_a_reduced_loss_is_nan_and_so_is_its_gradient(backend, reduction):
    batch = spoiled_batch(math.inf)
    loss = batch.loss(
        brctc.EarlyEmission(3.0), nonfinite="nan", reduction=reduction, from_logits=True, backend=backend
    )
    loss.backward()
    assert loss.isnan()
    assert batch.scores.grad[:, 1].isnan().any()
    assert batch.scores.grad[:, ::2].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_labels_are_checked_all_the_same(backend):
    batch = spoiled_batch()
    batch.targets[0, 1] = 7
    with pytest.raises(ValueError, match="label 1 of utterance 0 is 7"):
        batch.loss(nonfinite="nan", backend=backend)


def test_compiled_too():
    batch = spoiled_batch(math.inf)
    run = torch.compile(
        lambda scores: batch._replace(scores=scores).loss(nonfinite="nan", from_logits=True),
        fullgraph=True,
        backend="aot_eager",
    )
    losses = run(batch.scores)
    assert losses.isnan().tolist() == [False, True, False]
    losses.sum().backward()
    assert batch.scores.grad[:7, 1].isnan().all()
    assert batch.scores.grad[:, ::2].isfinite().all()


def test_what_it_can_be():
    with pytest.raises(ValueError, match='nonfinite is \'skip\', expected "raise" or "nan"'):
        spoiled_batch().loss(nonfinite="skip")
    with pytest.raises(ValueError, match="nonfinite is True"):
        brctc.BayesRiskCTCLoss(nonfinite=True)


@pytest.mark.parametrize(
    ("backend", "risk"),
    [("cpu", None), ("cpu", CUSTOM), ("reference", None), ("reference", CUSTOM), ("triton", None)],
    ids=str,
)
def test_a_scaler_skips_a_real_overflow(backend, risk):
    """float16 ends at 65504. A step that overflows changes nothing but the scale; the next one learns."""
    torch.manual_seed(0)
    model = nn.Linear(8, 6)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    criterion = brctc.BayesRiskCTCLoss(risk, from_logits=True, nonfinite="nan", backend=backend)
    targets, lengths = torch.tensor([[1, 2], [3, 3]]), ([6, 5], [2, 2])
    features = torch.randn(6, 2, 8)
    losses, changed = [], []
    for scale in (1.0, 1e6, 1.0):
        before = model.weight.detach().clone()
        with torch.autocast("cpu", torch.float16):
            given = features.clone()
            given[4, 1] *= scale
            logits = model(given)
        assert logits.dtype == torch.float16
        assert logits.isfinite().all() == (scale == 1.0)
        loss = criterion(logits, targets, *lengths)
        optimiser.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        losses.append(loss.item())
        changed.append(not torch.equal(before, model.weight))
    assert [math.isnan(loss) for loss in losses] == [False, True, False]
    assert changed == [True, False, True]
    assert scaler.get_scale() == 32.0
    assert losses[2] < losses[0]
