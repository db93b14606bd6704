"""The adapters of `brctc.integrations` against the losses that they stand for, as those are published."""

import pytest
import torch
import torch.nn.functional as F

import brctc
from brctc.integrations import (
    NeMoCTCLoss,
    NeMoTransducerLoss,
    TransformersCTCLoss,
    speechbrain_ctc_loss,
)

N, T, U, C = 4, 30, 6, 11
LENGTHS, COUNTS = torch.tensor([30, 25, 18, 30]), torch.tensor([6, 4, 1, 5])
RISKS = [None, brctc.EarlyEmission(5.0), brctc.EarlyFinish(3.0)]


@pytest.fixture
def logits():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N, T, C, dtype=torch.float64, generator=generator, requires_grad=True)


@pytest.fixture
def targets():
    return torch.randint(1, C - 1, (N, U), generator=torch.Generator().manual_seed(1))


def same(found, expected, logits):
    """In value, and in gradient for random upstream ones."""
    torch.testing.assert_close(found, expected)
    upstream = torch.rand_like(found)
    gradients = [torch.autograd.grad(loss, logits, upstream, retain_graph=True) for loss in (found, expected)]
    torch.testing.assert_close(*gradients)


def ours(logits, targets, risk, **options):
    """The criterion itself, in torch's shapes."""
    return brctc.bayes_risk_ctc_loss(
        logits.transpose(0, 1), targets, LENGTHS, COUNTS, risk, from_logits=True, **options
    )


@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("padding", [-100, 0])
def test_transformers(logits, targets, risk, reduction, padding):
    """Labels that are no labels may stand anywhere: the first one of each text does."""
    labels = torch.full((N, U + 1), padding)
    for n, count in enumerate(COUNTS):
        labels[n, 1 : 1 + count] = targets[n, :count]
    found = TransformersCTCLoss(risk)(
        logits, labels, logit_lengths=LENGTHS, blank_token_id=0, reduction=reduction, num_items_in_batch=4
    )
    same(found, ours(logits, targets, risk, reduction=reduction), logits)


def test_transformers_with_no_label_at_all(logits):
    labels = torch.full((N, 3), -100)
    found = TransformersCTCLoss()(logits, labels, LENGTHS, 0, "sum")
    log_probs = logits.log_softmax(-1).transpose(0, 1)
    none = torch.zeros(N, dtype=torch.long)
    same(found, F.ctc_loss(log_probs, labels.clamp(min=1), LENGTHS, none, reduction="sum"), logits)


@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize(
    ("reduction", "kind"), [("mean", "mean"), ("sum", "sum"), ("batch", "none"), ("batchmean", "batchmean")]
)
def test_speechbrain(logits, targets, risk, reduction, kind):
    """Lengths are shares of the longest; the blank is where its recipes have it."""
    shares = LENGTHS / T, COUNTS / U
    found = speechbrain_ctc_loss(logits.log_softmax(-1), targets, *shares, 0, reduction, risk)
    same(found, ours(logits, targets, risk, reduction=kind), logits)


@pytest.mark.parametrize("risk", RISKS)
def test_nemo(logits, targets, risk):
    """The blank is behind all classes."""
    losses = ours(logits, targets, risk, blank=C - 1, reduction="none")
    reduced = {
        "mean_batch": losses.mean(),
        "mean_volume": losses.sum() / COUNTS.sum(),
        "mean": (losses / COUNTS).mean(),
        "sum": losses.sum(),
        "none": losses,
    }
    for reduction, expected in reduced.items():
        criterion = NeMoCTCLoss(C - 1, reduction=reduction, risk=risk)
        found = criterion(
            log_probs=logits.log_softmax(-1),
            targets=targets,
            input_lengths=LENGTHS,
            target_lengths=COUNTS,
        )
        same(found, expected, logits)


def test_nemo_transducer(targets):
    """NeMo takes single losses, and reduces them itself."""
    acts = torch.randn(N, 8, U + 1, C, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([8, 7, 5, 8])
    criterion = NeMoTransducerLoss(blank=C - 1)
    found = criterion(acts=acts, labels=targets, act_lens=lengths, label_lens=COUNTS)
    expected = brctc.transducer_loss(acts, targets, lengths, COUNTS, blank=C - 1, reduction="none")
    same(found, expected, acts)
    criterion.reduction = "mean_batch"
    same(criterion(acts, targets, lengths, COUNTS), expected.mean(), acts)


def test_a_reduction_that_is_none(logits, targets):
    with pytest.raises(ValueError, match="reduction is 'avg', expected one of mean_batch"):
        NeMoCTCLoss(3, reduction="avg")
    with pytest.raises(ValueError, match="reduction is 'avg', expected one of mean"):
        speechbrain_ctc_loss(logits, targets, LENGTHS / T, COUNTS / U, 0, "avg")
