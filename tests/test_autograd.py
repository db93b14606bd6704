"""However a gradient is asked for, it is the same: twice, at once for many, in a compiled graph."""

import math

import pytest
import torch

import brctc
from tests.batches import random_batch
from tests.transducer_batches import random_batch as random_transducer
from tests.transducer_batches import random_joint

BACKENDS = ["cpu", "reference"]


class Early(brctc.BayesRisk):
    """Reads nothing that has a gradient."""

    def __init__(self, tokens):
        self.tokens = tokens

    def log_risk(self, groups):
        return -0.3 * (groups.frame - groups.peak_frame[:, :, None])


RISKS = [
    None,
    brctc.EarlyFinish(4.0),
    brctc.EarlyEmission(6.0),
    brctc.DelayPenalty(0.2),
    Early("each"),
    Early("last"),
]


class Sharp(brctc.BayesRisk):
    """Prefers what is probable: it reads the groups, so a gradient goes through it too."""

    def __init__(self, field, tokens="each"):
        self.field, self.tokens = field, tokens

    def log_risk(self, groups):
        values = getattr(groups, self.field)
        return -0.1 * groups.frame + 0.5 * (values - values.logsumexp(-1, keepdim=True))


OWN = [Sharp("log_share"), Sharp("log_posterior"), Sharp("log_posterior", "last")]


def gradient(batch, risk, **options):
    scores = batch.scores.clone().requires_grad_()
    loss = batch._replace(scores=scores).loss(risk, reduction="sum", from_logits=True, **options)
    return torch.autograd.grad(loss, scores)[0]


@pytest.mark.parametrize("risk", [*OWN, *RISKS[-2:]])
def test_a_risk_that_reads_the_groups(risk):
    batch = random_batch(4, 9, 3, 5)  # of different lengths: padding has no path
    found = gradient(batch, risk)
    assert found.isfinite().all()
    torch.testing.assert_close(found, gradient(batch, risk, backend="reference"))
    assert torch.autograd.gradcheck(
        lambda x: batch._replace(scores=x).loss(risk, from_logits=True, backend="reference"),
        batch.scores.nan_to_num().requires_grad_(),
    )


@pytest.mark.parametrize("risk", RISKS)
def test_a_negated_view_comes_back(risk):
    batch = random_batch(3, 9, 3, 5)
    scores = batch.scores.clone().requires_grad_()
    loss = batch._replace(scores=scores).loss(risk, reduction="mean", from_logits=True)
    minus_one = torch._neg_view(torch.tensor(1.0, dtype=loss.dtype))
    (found,) = torch.autograd.grad(loss, scores, minus_one, retain_graph=True)
    torch.testing.assert_close(found, -torch.autograd.grad(loss, scores)[0])


def test_the_gradient_of_the_groups_can_be_watched():
    class Watching(Early):
        def log_risk(self, groups):
            self.share = groups.log_share
            self.share.retain_grad()
            return super().log_risk(groups)

    batch = random_batch(3, 9, 3, 5)
    found = {}
    for backend in BACKENDS:
        risk = Watching("each")
        scores = batch.scores.clone().requires_grad_()
        batch._replace(scores=scores).loss(risk, backend=backend, reduction="mean").backward()
        found[backend] = risk.share.grad
    torch.testing.assert_close(found["cpu"], found["reference"])


def test_a_risk_with_a_forward_derivative_is_refused_not_forgotten():
    class Dual(Early):
        def log_risk(self, groups):
            factor = torch.autograd.forward_ad.make_dual(torch.tensor(0.3), torch.tensor(1.0))
            return -factor * groups.frame

    batch = random_batch(3, 9, 3, 5, dtype=torch.float32)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        batch.loss(Dual("each"))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("risk", RISKS)
def test_traced_graphs(risk):
    batch = random_batch(3, 9, 3, 5, dtype=torch.float32)
    run = lambda scores: batch._replace(scores=scores).loss(risk, reduction="sum", from_logits=True)  # noqa: E731
    traced = torch.jit.trace(run, (batch.scores,))
    other = batch.scores + 1
    torch.testing.assert_close(traced(other), run(other))


@pytest.mark.parametrize("risk", OWN)
def test_create_graph_changes_nothing(risk):
    batch = random_batch(3, 9, 3, 5)
    scores = batch.scores.clone().requires_grad_()
    loss = batch._replace(scores=scores).loss(risk, reduction="sum", from_logits=True)
    (found,) = torch.autograd.grad(loss, scores, create_graph=True)
    torch.testing.assert_close(found.detach(), gradient(batch, risk))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("risk", RISKS)
def test_many_gradients_at_once(risk, reduction, backend):
    batch = random_batch(3, 9, 3, 5)
    batch.input_lengths[1], batch.target_lengths[1] = 2, 3  # cannot be aligned
    scores = batch.scores.clone().requires_grad_()
    options = {"reduction": reduction, "from_logits": True, "backend": backend, "zero_infinity": True}
    loss = batch._replace(scores=scores).loss(risk, **options)
    weights = torch.randn(4, *loss.shape, dtype=loss.dtype)
    expected = [torch.autograd.grad(loss, scores, weight, retain_graph=True)[0] for weight in weights]
    (found,) = torch.autograd.grad(loss, scores, weights, is_grads_batched=True, retain_graph=True)
    torch.testing.assert_close(found, torch.stack(expected))
    (found,) = torch.autograd.grad(loss, scores, weights, is_grads_batched=True, create_graph=True)
    torch.testing.assert_close(found.detach(), torch.stack(expected))
    if backend == "cpu":
        with pytest.raises(RuntimeError, match="the native backends have no second derivative"):
            found.sum().backward()


def test_many_gradients_at_once_of_a_reduced_joint_loss():
    batch = random_transducer(3, 6, 3, 5)
    joint = [tensor.requires_grad_() for tensor in random_joint(batch, 4)]
    loss = brctc.transducer_joint_loss(*joint, *batch[1:4])
    weights = torch.randn(4, dtype=loss.dtype)
    (expected,) = torch.autograd.grad(loss, joint[0], retain_graph=True)
    (found,) = torch.autograd.grad(loss, joint[0], weights, is_grads_batched=True)
    torch.testing.assert_close(found, weights[:, None, None, None] * expected)


def test_many_gradients_at_once_are_refused_where_they_cannot_be():
    batch, transducer = random_batch(3, 9, 3, 5), random_transducer(3, 6, 3, 5)
    scores, logits = batch.scores.clone().requires_grad_(), transducer.logits.clone().requires_grad_()
    joint = [tensor.requires_grad_() for tensor in random_joint(transducer, 4)]
    own = batch._replace(scores=scores).loss(Sharp("log_share"), from_logits=True)
    groups = brctc.path_groups(scores, *batch[1:4], from_logits=True)
    dense = brctc.transducer_loss(logits, *transducer[1:4], reduction="none")
    joined = brctc.transducer_joint_loss(*joint, *transducer[1:4], reduction="none")
    for losses, tensor in (
        (own, scores),
        (groups.log_likelihood, scores),
        (dense, logits),
        (joined, joint[0]),
    ):
        with pytest.raises(RuntimeError, match="pass backend='reference'"):
            torch.autograd.grad(losses, tensor, torch.eye(3).double(), is_grads_batched=True)


@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("which", [1, 2, 3])
def test_what_has_changed_since_the_loss_is_noticed(risk, which):
    batch = random_batch(2, 9, 3, 5)
    scores = batch.scores.clone().requires_grad_()
    loss = batch._replace(scores=scores).loss(risk, reduction="sum")
    batch[which].fill_(3)
    loss.backward(retain_graph=True)  # its gradient was found with the loss
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("risk", [*RISKS, OWN[0]])
def test_labels_and_lengths_of_inference_mode(risk):
    batch = random_batch(3, 9, 3, 5)
    with torch.inference_mode():
        labels = [each.clone() for each in batch[1:4]]
    scores = batch.scores.clone().requires_grad_()
    loss = brctc.bayes_risk_ctc_loss(scores, *labels, risk, reduction="sum", from_logits=True)
    (found,) = torch.autograd.grad(loss, scores, retain_graph=True)
    torch.testing.assert_close(found, gradient(batch, risk))
    torch.testing.assert_close(torch.autograd.grad(loss, scores)[0], found)


def test_nothing_is_kept_after_the_backward_pass():
    batch, transducer = random_batch(3, 9, 3, 5), random_transducer(3, 6, 3, 5)
    joint = [tensor.requires_grad_() for tensor in random_joint(transducer, 4)]
    scores = batch.scores.clone().requires_grad_()
    losses = [batch._replace(scores=scores).loss(risk, from_logits=True) for risk in (*RISKS, OWN[0])]
    losses.append(brctc.transducer_joint_loss(*joint, *transducer[1:4], reduction="sum"))
    for loss in losses:
        loss.sum().backward()
        kept = [value for value in vars(loss.grad_fn).values() if isinstance(value, torch.Tensor)]
        assert all(value.numel() <= 3 for value in kept)
        with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
            _ = loss.grad_fn.saved_tensors


@pytest.mark.parametrize("backend", BACKENDS)
def test_infinite_transducer_losses_have_no_gradient(backend):
    batch = random_transducer(3, 6, 3, 5)
    logits = batch.logits.clone()
    logits[1, :, :, 0] = -math.inf  # no blank, so no path
    logits.requires_grad_()
    losses = brctc.transducer_loss(logits, *batch[1:4], reduction="none", backend=backend)
    assert losses.isinf().tolist() == [False, True, False]
    (found,) = torch.autograd.grad((losses**2).sum(), logits)
    assert found.isfinite().all()
    assert not found[1].any()
    assert found[0].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_infinite_joint_losses_have_no_gradient(backend):
    batch = random_transducer(3, 6, 3, 5)
    encoder, prediction, weight, bias = random_joint(batch, 4)
    bias[0] = -math.inf
    joint = [tensor.requires_grad_() for tensor in (encoder, prediction, weight, bias)]
    losses = brctc.transducer_joint_loss(*joint, *batch[1:4], reduction="none", backend=backend)
    assert losses.isinf().all()
    for found in torch.autograd.grad((losses**2).sum(), joint):
        assert not found.any()


# ---- compilers: a graph that breaks must not free what native code still reads -------------------


@pytest.mark.slow
@pytest.mark.parametrize("risk", [*RISKS, OWN[0]])
def test_compiled_autograd(risk):
    batch = random_batch(3, 9, 3, 5)
    expected = gradient(batch, risk)
    scores = batch.scores.clone().requires_grad_()
    weights = torch.randn(3, dtype=torch.double)
    for _ in range(2):
        loss = batch._replace(scores=scores).loss(risk, from_logits=True)
        expected = torch.autograd.grad(loss, scores, weights, retain_graph=True)[0]
        scores.grad = None
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            loss.backward(weights)
        torch.testing.assert_close(scores.grad, expected)


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_compiled_autograd_of_transducers(reduction):
    batch = random_transducer(3, 6, 3, 5)
    joint = [tensor.requires_grad_() for tensor in random_joint(batch, 4)]
    logits = batch.logits.clone().requires_grad_()
    for tensor, loss in (
        (logits, brctc.transducer_loss(logits, *batch[1:4], reduction=reduction)),
        (joint[0], brctc.transducer_joint_loss(*joint, *batch[1:4], reduction=reduction)),
    ):
        (expected,) = torch.autograd.grad(loss.sum(), tensor, retain_graph=True)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            loss.sum().backward()
        torch.testing.assert_close(tensor.grad, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "concatenated"), [("cpu", True), ("reference", False)])
def test_compiled_with_lengths_that_must_be_copied(backend, concatenated):
    batch = random_batch(3, 9, 3, 5)
    lengths = torch.stack([batch.input_lengths, batch.target_lengths], 1)
    rows = [row[:length] for row, length in zip(batch.targets, batch.target_lengths, strict=True)]
    batch = batch._replace(
        targets=torch.cat(rows) if concatenated else batch.targets,
        input_lengths=lengths[:, 0],
        target_lengths=lengths[:, 1],
    )
    run = lambda scores: batch._replace(scores=scores).loss(OWN[0], backend=backend)  # noqa: E731
    compiled = torch.compile(run, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(compiled(batch.scores), run(batch.scores))
    feasible = lambda targets: brctc.check_feasible(targets, lengths[:, 0], lengths[:, 1])  # noqa: E731
    assert torch.compile(feasible, backend="eager")(batch.targets) == feasible(batch.targets)
    torch._dynamo.reset()
