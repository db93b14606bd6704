"""Risks as values: sums, windows, weights of tokens; how they compare, print and are loaded."""

import io
import math
import warnings

import pytest
import torch
from torch import nn

import brctc
import brctc.loss
from tests.batches import random_batch
from tests.paths import Enumeration, TableRisk

BACKENDS = ["cpu", "reference"]


def small_batch(seed=0):
    batch = random_batch(3, 6, 3, 3, seed=seed)
    return batch._replace(scores=batch.scores.nan_to_num().log_softmax(-1).requires_grad_())


def utterances(batch):
    for n, (frames, labels) in enumerate(zip(batch.input_lengths, batch.target_lengths, strict=True)):
        yield n, batch.scores[:frames, n], batch.targets[n, :labels].tolist()


def window_table(first, last, factor, frames):
    tau = torch.arange(1, frames + 1, dtype=torch.double)
    outside = (first[:, None] - tau).clamp(min=0) + (tau - last[:, None]).clamp(min=0)
    return torch.where(outside > 0, -factor * outside, 0.0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("factor", [math.inf, 0.7])
@pytest.mark.parametrize("event", ["end", "start"])
def test_within_by_enumeration(factor, event, backend):
    batch = small_batch()
    first = torch.tensor([[1, 2, 3], [1, 1, 2], [1, 2, 2]])
    risk = brctc.Within(first, first + 2, factor, event)
    losses = batch.loss(risk, backend=backend)
    for n, scores, target in utterances(batch):
        used = first[n, : len(target)].double()
        table = window_table(used, used + 2, factor, len(scores))
        expected = Enumeration(scores, target).loss("each", event, table)
        torch.testing.assert_close(losses[n], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sum_adds_log_risks(backend):
    batch = small_batch(1)
    tables = torch.randn(2, 3, 3, 6, dtype=torch.double)
    parts = [TableRisk(table, "each", "end") for table in tables]
    whole = TableRisk(tables.sum(0), "each", "end")
    found, expected = batch.loss(parts[0] + parts[1], backend=backend), batch.loss(whole, backend=backend)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    three = brctc.EarlyEmission(4.0) + parts[0] + parts[1]
    assert len(three.risks) == 3
    assert not torch.equal(batch.loss(three, backend=backend), found)
    early = brctc.EarlyFinish(3.0) + brctc.EarlyFinish(2.0)
    torch.testing.assert_close(batch.loss(early), batch.loss(brctc.EarlyFinish(5.0)))


def test_what_does_not_add_up_is_refused():
    with pytest.raises(ValueError, match=r"EarlyFinish\(factor=1.0\) \(tokens 'last', event 'end'\) and"):
        brctc.EarlyFinish(1.0) + brctc.EarlyEmission(1.0)
    with pytest.raises(ValueError, match="event must agree"):
        brctc.EarlyEmission(1.0) + brctc.Within(1, 5, event="start")
    with pytest.raises(ValueError, match=r"DelayPenalty\(factor=0.1\) weighs whole paths"):
        brctc.DelayPenalty(0.1) + brctc.Within(1, 5)
    with pytest.raises(TypeError, match="unsupported operand"):
        brctc.EarlyFinish(1.0) + 2.0  # pyright: ignore[reportOperatorIssue]

    class Learnt(nn.Module, brctc.BayesRisk):
        def log_risk(self, groups):
            return groups.frame

    with pytest.raises(TypeError, match="Learnt is a module, whose parameters a sum would hide"):
        brctc.EarlyEmission(1.0) + Learnt()
    with pytest.raises(ValueError, match="factor must be 0 or more"):
        brctc.Within(1, 2, -1.0)


def test_they_compare_and_print():
    window = torch.tensor([[1, 2]])
    assert brctc.EarlyFinish(3.0) == brctc.EarlyFinish(3.0) != brctc.EarlyFinish(4.0)
    assert brctc.EarlyFinish(3.0) != brctc.EarlyEmission(3.0)
    assert brctc.Within(window, window + 3) == brctc.Within(window.clone(), window + 3)
    assert brctc.Within(window, window + 3) != brctc.Within(window, window + 2)
    assert brctc.Within(1, 3) != brctc.Within(window, 3)
    assert len({brctc.Within(1, 3), brctc.Within(1, 3)}) == 1
    a = brctc.EarlyEmission(8.0) + brctc.Within(1, 9)
    assert a == brctc.EarlyEmission(8.0) + brctc.Within(1, 9) != brctc.Within(1, 9) + brctc.EarlyEmission(8.0)
    assert repr(a).startswith("EarlyEmission(factor=8.0) + Within(first=1, last=9, factor=inf")


def test_they_are_loaded_as_weights_are():
    """torch.load makes no other objects by default."""
    kept = [
        brctc.EarlyFinish(3.0),
        brctc.EarlyEmission(2.0),
        brctc.DelayPenalty(0.1),
        brctc.EarlyEmission(1.0) + brctc.Within(torch.tensor([[1, 2]]), 9),
    ]
    file = io.BytesIO()
    torch.save({"risks": kept}, file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["risks"] == kept


class Weighed(TableRisk):
    def __init__(self, table, weights, event="end"):
        super().__init__(table, "each", event)
        self.weights = weights

    def token_weights(self, groups):
        return self.weights


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("learnt", [False, True])
def test_token_weights_by_enumeration(learnt, backend):
    batch = small_batch(2)
    table = torch.randn(3, 3, 6, dtype=torch.double)
    weights = torch.rand(3, 3, dtype=torch.double)
    weights[0, 1] = 0.0
    weights.requires_grad_(learnt)
    losses = batch.loss(Weighed(table, weights), backend=backend)
    upstream = torch.rand(3, dtype=torch.double)
    wanted = [batch.scores, weights] if learnt else [batch.scores]
    found = torch.autograd.grad(losses, wanted, upstream)
    expected = []
    for n, scores, target in utterances(batch):
        paths = Enumeration(scores, target)
        own = [
            paths.loss("last", "end", table[n, [u] * len(target), : len(scores)])
            if u == len(target) - 1
            else -(paths.log_p + table[n, u, paths.end[:, u] - 1]).logsumexp(0)
            for u in range(len(target))
        ]
        used = weights[n, : len(target)]
        expected.append((used * torch.stack(own)).sum() if own else paths.loss())
    expected = torch.stack(expected)
    torch.testing.assert_close(losses, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found, torch.autograd.grad(expected, wanted, upstream), rtol=1e-9, atol=1e-10)


def test_weights_of_one_over_u_change_nothing():
    batch = small_batch(3)
    table = torch.randn(3, 3, 6, dtype=torch.double)
    weights = 1 / batch.target_lengths.clamp(min=1).double()[:, None]
    found, expected = batch.loss(Weighed(table, weights)), batch.loss(TableRisk(table, "each", "end"))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_subclass_weighs_the_tokens_of_early_emission():
    class FirstTwice(brctc.EarlyEmission):
        def token_weights(self, groups):
            first = torch.arange(groups.targets.shape[1]) == 0
            return torch.where(first, 2.0, 1.0) / (groups.target_lengths[:, None] + 1)

    batch = small_batch()
    assert (batch.loss(FirstTwice(5.0)) != batch.loss(brctc.EarlyEmission(5.0)))[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_bad_weights_are_named(backend):
    batch, table = small_batch(), torch.zeros(1)
    weights = torch.ones(3, 3)
    weights[0, 2] = -1.0
    with pytest.raises(ValueError, match=r"Weighed.token_weights is -1.0 for token 2 of utterance 0"):
        batch.loss(Weighed(table, weights), backend=backend)
    with pytest.raises(
        ValueError, match=r"returned shape \(2, 3\), not broadcastable to \(N, U\) = \(3, 3\)"
    ):
        batch.loss(Weighed(table, torch.ones(2, 3)), backend=backend)
    with pytest.raises(TypeError, match="floating-point tensor, got list"):
        batch.loss(Weighed(table, [1.0]), backend=backend)
    last = Weighed(table, torch.ones(1))
    last.tokens = "last"
    with pytest.raises(ValueError, match='tokens is "last": only one is weighed'):
        batch.loss(last, backend=backend)
    both = Weighed(table, torch.ones(1)) + Weighed(table, torch.ones(1))
    with pytest.raises(ValueError, match=r"2 risks of .* have token_weights: one can"):
        batch.loss(both, backend=backend)


def test_logits_are_noticed_once(monkeypatch):
    monkeypatch.setattr(brctc.loss._Warned, "unnormalised", False)
    logits = torch.randn(5, 2, 8)
    arguments = torch.tensor([[1], [2]]), [5, 5], [1, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        brctc.bayes_risk_ctc_loss(logits, *arguments, from_logits=True)
        brctc.bayes_risk_ctc_loss(logits.log_softmax(-1), *arguments)
        brctc.bayes_risk_ctc_loss(logits.bfloat16().log_softmax(-1), *arguments)
    with pytest.warns(UserWarning, match="log_probs are not normalised: .* pass from_logits=True") as found:
        brctc.bayes_risk_ctc_loss(logits, *arguments)
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        brctc.bayes_risk_ctc_loss(logits, *arguments)


@pytest.mark.parametrize("backend", [*BACKENDS, "triton"])
@pytest.mark.parametrize("risk", [None, brctc.EarlyEmission(3.0), TableRisk(torch.ones(1), "each", "end")])
def test_no_frames_are_as_torch_has_them(backend, risk):
    scores = torch.randn(4, 3, 5).log_softmax(-1).requires_grad_()
    targets, frames, labels = torch.tensor([[1, 2], [3, 4], [4, 1]]), [0, 4, 0], [2, 2, 0]
    losses = brctc.bayes_risk_ctc_loss(
        scores, targets, frames, labels, risk, reduction="none", backend=backend
    )
    theirs = nn.functional.ctc_loss(
        scores, targets, torch.tensor(frames), torch.tensor(labels), reduction="none"
    )
    assert losses[[0, 2]].tolist() == theirs[[0, 2]].tolist() == [math.inf, 0.0]
    (grad,) = torch.autograd.grad(losses[1:].sum(), scores)
    assert (grad[:, [0, 2]] == 0).all()
    assert grad[:, 1].abs().sum() > 0


def test_torchs_positional_order():
    scores, targets = torch.randn(6, 2, 5), torch.tensor([[1, 2], [3, 4]])
    log_probs, lengths = scores.log_softmax(-1), (torch.tensor([6, 5]), torch.tensor([2, 1]))
    for reduction in ("none", "mean", "sum"):
        theirs = nn.functional.ctc_loss(log_probs, targets - 1, *lengths, 4, reduction, True)
        ours = brctc.functional.ctc_loss(log_probs, targets - 1, *lengths, 4, reduction, True)
        torch.testing.assert_close(ours, theirs)
    with_risk = brctc.functional.ctc_loss(log_probs, targets, *lengths, risk=brctc.EarlyFinish(4.0))
    assert with_risk == brctc.bayes_risk_ctc_loss(log_probs, targets, *lengths, brctc.EarlyFinish(4.0))
    total = brctc.functional.ctc_loss(log_probs, targets, *lengths, reduction="sum")
    mean = brctc.functional.ctc_loss(log_probs, targets, *lengths, reduction="batchmean")
    torch.testing.assert_close(mean, total / 2)
