"""The criterion lives in torch: operators, compile, autocast, dtypes, layouts, devices."""

import copy
import math
import pickle

import numpy
import pytest
import torch

import brctc
from tests.batches import random_batch
from tests.paths import TableRisk

RISKS = [None, brctc.EarlyFinish(4.0), brctc.EarlyEmission(6.0), brctc.DelayPenalty(0.2)]
OWN = TableRisk(torch.linspace(-1, 1, 9), "each", "start")


def clean_batch(N=3, T=9, U=3, C=5, dtype=torch.float32):
    batch = random_batch(N, T, U, C, dtype=dtype)
    return batch._replace(scores=batch.scores.nan_to_num(), targets=batch.targets.clamp(min=0))


@pytest.mark.parametrize("concatenated", [False, True])
@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("risk", [0, 1, 2])
def test_opcheck_loss(risk, from_logits, concatenated):
    batch = clean_batch()
    targets = batch.targets
    if concatenated:
        targets = torch.cat([row[:u] for row, u in zip(targets, batch.target_lengths, strict=True)])
    for scores in (batch.scores, batch.scores.transpose(0, 1).contiguous().transpose(0, 1)):
        inputs = (scores.requires_grad_(), targets, *batch[2:4], 0, from_logits, False, risk, 3.0, True)
        torch.library.opcheck(torch.ops.brctc.loss_and_gradient.default, inputs)
        losses, gradient = torch.ops.brctc.loss_and_gradient(*inputs)
        backward = (torch.ones_like(losses), scores.detach(), gradient)
        torch.library.opcheck(torch.ops.brctc.weigh_gradient.default, backward)


@pytest.mark.parametrize("at_start", [False, True])
def test_opcheck_groups_and_path(at_start):
    batch = clean_batch()
    inputs = (batch.scores.requires_grad_(), *batch[1:4], 0, False, False)
    # groups hold -inf, which opcheck's gradient sum would turn into NaN: the schema is what matters
    torch.library.opcheck(
        torch.ops.brctc.path_groups.default,
        (*inputs, at_start),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    share, likelihood = torch.ops.brctc.path_groups(*inputs, at_start)
    grads = torch.zeros_like(share), torch.ones_like(likelihood)
    detached = (batch.scores.detach(), *inputs[1:])
    torch.library.opcheck(torch.ops.brctc.path_groups_backward.default, (*grads, *detached, at_start))
    torch.library.opcheck(torch.ops.brctc.best_path.default, (*detached, None, 1.0))


def run_steps(function, dtype=torch.float32):
    """Loss and gradient for three shapes, so that dynamic shapes are really dynamic."""
    results = []
    for N, T, U in ((2, 9, 3), (3, 12, 4), (4, 9, 2)):
        batch = clean_batch(N, T, U, dtype=dtype)
        logits = batch.scores.clone().requires_grad_()
        loss = function(logits, *batch[1:4])
        (grad,) = torch.autograd.grad(loss, logits)
        results += [loss.detach(), grad]
    return results


class Slope(brctc.BayesRisk):
    """A risk with a parameter, as a user would write it."""

    tokens, event = "each", "start"

    def log_risk(self, groups):
        return -3.0 * groups.frame / groups.input_lengths[:, None, None]


@pytest.mark.slow
@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("risk", [*RISKS, Slope()], ids=lambda risk: type(risk).__name__)
def test_compile_fullgraph_dynamic(risk, from_logits):
    criterion = brctc.BayesRiskCTCLoss(risk, from_logits=from_logits, zero_infinity=True)

    def step(logits, targets, input_lengths, target_lengths):
        scores = logits * 2 if from_logits else (logits * 2).log_softmax(-1)
        return criterion(scores, targets, input_lengths, target_lengths)

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for found, expected in zip(run_steps(compiled), run_steps(step), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_compile_inductor():
    """Once with the real compiler behind it."""

    def step(logits, *rest):
        return brctc.bayes_risk_ctc_loss(logits * 2, *rest, brctc.EarlyFinish(3.0), from_logits=True)

    torch._dynamo.reset()
    for found, expected in zip(run_steps(torch.compile(step, fullgraph=True)), run_steps(step), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float(dtype):
    batch = clean_batch()
    scores = batch.scores.to(dtype).requires_grad_()
    loss = batch._replace(scores=scores).loss(brctc.EarlyFinish(3.0), from_logits=True)
    assert loss.dtype == torch.float32
    exact = scores.detach().double().requires_grad_()
    expected = batch._replace(scores=exact).loss(brctc.EarlyFinish(3.0), from_logits=True)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
    loss.sum().backward()
    expected.sum().backward()
    assert scores.grad.dtype == dtype
    torch.testing.assert_close(scores.grad.double(), exact.grad, rtol=1e-2, atol=1e-3)


def test_autocast():
    layer = torch.nn.Linear(8, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = layer(torch.randn(9, 2, 8))
        loss = brctc.bayes_risk_ctc_loss(
            logits, torch.tensor([[1, 2], [3, 3]]), [9, 8], [2, 2], from_logits=True
        )
    assert logits.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    loss.backward()
    assert layer.weight.grad.isfinite().all()


def test_no_grad_and_inference_mode():
    batch = clean_batch()
    expected = batch.loss()
    scores = batch.scores.clone().requires_grad_()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            loss = batch._replace(scores=scores).loss()
            assert not loss.requires_grad
            torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("risk", [*RISKS, OWN], ids=str)
def test_unbatched_equals_a_batch_of_one(risk):
    scores = torch.randn(9, 5)
    targets = torch.tensor([1, 2, 2])
    single = brctc.bayes_risk_ctc_loss(scores, targets, 9, 3, risk, reduction="none")
    assert single.shape == ()
    expected = brctc.bayes_risk_ctc_loss(scores[:, None], targets[None], [9], [3], risk, reduction="none")
    torch.testing.assert_close(single, expected[0])
    zero_d = brctc.bayes_risk_ctc_loss(
        scores, targets, torch.tensor(9), torch.tensor(3), risk, reduction="none"
    )
    assert torch.equal(single, zero_d)


@pytest.mark.parametrize("risk", [*RISKS, OWN], ids=str)
def test_layouts_of_targets_agree(risk):
    batch = clean_batch(4, 9, 4, 6)
    concatenated = torch.cat([row[:u] for row, u in zip(batch.targets, batch.target_lengths, strict=True)])
    expected = batch.loss(risk)
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64):
        torch.testing.assert_close(batch._replace(targets=batch.targets.to(dtype)).loss(risk), expected)
        torch.testing.assert_close(batch._replace(targets=concatenated.to(dtype)).loss(risk), expected)


def test_gradient_has_the_layout_of_the_scores():
    batch = clean_batch()
    batch_major = batch.scores.transpose(0, 1).contiguous().requires_grad_()
    scores = batch_major.transpose(0, 1)
    (grad,) = torch.autograd.grad(batch._replace(scores=scores).loss().sum(), scores)
    assert grad.stride() == scores.stride()


def test_other_devices_take_the_reference():
    """With a warning, once; on the meta device only shapes are asked for, and there is none."""
    from brctc.kernels.backend import CPU, REFERENCE, choose_backend

    assert choose_backend(None, torch.device("cpu")) is CPU
    with pytest.warns(UserWarning, match="'mps' tensors: the reference"):
        assert choose_backend(None, torch.device("mps")) is REFERENCE
    assert choose_backend(None, torch.device("mps")) is REFERENCE
    on_meta = [x.to("meta") for x in clean_batch()[:4]]
    for risk in (None, brctc.EarlyEmission(2.0)):
        assert brctc.bayes_risk_ctc_loss(*on_meta, risk, reduction="none").shape == (3,)
    with pytest.raises(ValueError, match=r"backend 'triton' (needs CUDA or ROCm tensors|cannot run here)"):
        choose_backend("triton", torch.device("meta"))
    with pytest.raises(ValueError, match="needs CPU tensors, got cuda"):
        choose_backend("cpu", torch.device("cuda"))
    with pytest.raises(ValueError, match="unknown backend 'gpu'"):
        choose_backend("gpu", torch.device("cpu"))


def test_module_is_a_drop_in():
    batch = clean_batch()
    ours, theirs = brctc.BayesRiskCTCLoss(blank=0), torch.nn.CTCLoss(blank=0)
    log_probs = batch.scores.log_softmax(-1)
    torch.testing.assert_close(ours(log_probs, *batch[1:4]), theirs(log_probs, *batch[1:4]))
    assert "EarlyFinish(factor=10.0)" in repr(brctc.BayesRiskCTCLoss(brctc.EarlyFinish(10.0)))
    again = pickle.loads(pickle.dumps(brctc.BayesRiskCTCLoss(brctc.EarlyEmission(3.0))))
    assert again.risk == copy.deepcopy(again.risk) == brctc.EarlyEmission(3.0)


def test_risk_with_a_learnt_parameter():
    """The gradient reaches a risk's own parameters, and flows through the groups it looks at."""

    class Learnt(brctc.BayesRisk, torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.double))

        def log_risk(self, groups):
            centre = (groups.log_share.exp() * groups.frame).sum(-1, keepdim=True)
            return -self.rate * (groups.frame - centre) / groups.input_lengths[:, None, None]

    risk = Learnt()
    batch = clean_batch(dtype=torch.double)
    scores = batch.scores.requires_grad_()
    found, expected = (
        torch.autograd.grad(batch._replace(scores=scores).loss(risk, backend=b).sum(), (scores, risk.rate))
        for b in ("cpu", "reference")
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert found[1] != 0


def test_minus_infinity_is_probability_zero():
    scores = torch.randn(8, 1, 5).log_softmax(-1)
    scores[:, :, 4] = -math.inf
    ok = brctc.bayes_risk_ctc_loss(scores, torch.tensor([[1, 2]]), [8], [2])
    assert ok.isfinite()
    scores.requires_grad_()
    impossible = brctc.bayes_risk_ctc_loss(scores, torch.tensor([[1, 4]]), [8], [2])
    assert impossible == math.inf
    (grad,) = torch.autograd.grad(impossible, scores)
    assert (grad == 0).all()


@pytest.mark.parametrize("risk", RISKS, ids=str)
def test_masked_logits_have_no_gradient(risk):
    logits = torch.randn(8, 2, 6)
    logits[:, :, 5] = -math.inf
    logits.requires_grad_()
    loss = brctc.bayes_risk_ctc_loss(
        logits, torch.tensor([[1, 2], [3, 3]]), [8, 8], [2, 2], risk, from_logits=True
    )
    (grad,) = torch.autograd.grad(loss, logits)
    assert grad.isfinite().all()
    assert (grad[:, :, 5] == 0).all()
    torch.testing.assert_close(grad.sum(-1), torch.zeros(8, 2), atol=1e-6, rtol=0)


def test_risk_factor_can_change_every_step():
    """A schedule builds a new risk per step; nothing is cached on the way."""
    batch = clean_batch()
    losses = [batch.loss(brctc.EarlyFinish(float(f))).sum() for f in range(4)]
    assert losses == sorted(losses)


def test_targets_and_lengths_elsewhere():
    """Targets and lengths may be on another device than the scores; none that has no values."""
    batch = clean_batch()
    for name in ("targets", "input_lengths", "target_lengths"):
        with pytest.raises(ValueError, match=f"{name} is on the meta device"):
            batch._replace(**{name: getattr(batch, name).to("meta")}).loss()


def test_default_device_does_not_matter():
    batch = clean_batch()
    scores = batch.scores.requires_grad_()
    expected = batch._replace(scores=scores).loss(reduction="mean")
    torch.set_default_device("meta")
    try:
        loss = brctc.bayes_risk_ctc_loss(
            scores, batch.targets, batch.input_lengths.tolist(), batch.target_lengths
        )
        (grad,) = torch.autograd.grad(loss, scores)
        path = brctc.best_path(scores, *batch[1:4])
    finally:
        torch.set_default_device(None)
    assert torch.equal(loss, expected)
    assert grad.device.type == path.start.device.type == "cpu"


def test_best_path_of_transposed_targets():
    batch = clean_batch(4, 12, 4, 6)
    transposed = batch._replace(targets=batch.targets.t().contiguous().t())
    assert torch.equal(brctc.best_path(*transposed[:4]).start, brctc.best_path(*batch[:4]).start)


def test_make_fx_sees_the_operator():
    from torch.fx.experimental.proxy_tensor import make_fx

    batch = clean_batch()
    run = lambda x: batch._replace(scores=x).loss()  # noqa: E731
    graph = make_fx(run)(batch.scores)
    torch.testing.assert_close(graph(2 * batch.scores), run(2 * batch.scores))


def test_torch_func_takes_the_reference():
    batch = clean_batch()
    run = lambda x, backend=None: batch._replace(scores=x).loss(reduction="sum", backend=backend)  # noqa: E731
    scores = batch.scores.clone().requires_grad_()
    (expected,) = torch.autograd.grad(run(scores), scores)
    with pytest.raises(RuntimeError, match="pass backend='reference'"):
        torch.func.grad(run)(batch.scores)
    torch.testing.assert_close(torch.func.grad(run)(batch.scores, "reference"), expected)


def test_labels_changed_behind_torchs_back():
    buffer = numpy.array([[1, 2]])
    scores = torch.randn(6, 1, 4, requires_grad=True)
    loss = brctc.bayes_risk_ctc_loss(scores, torch.from_numpy(buffer), [6], [2])
    buffer[:] = 10**9
    loss.backward(retain_graph=True)  # its gradient was found with the loss
    with pytest.raises(ValueError, match="label 0 of utterance 0 is 1000000000"):
        loss.backward()


def test_negated_views_are_read_right():
    batch = clean_batch()
    torch.testing.assert_close(
        batch._replace(scores=torch._neg_view(batch.scores)).loss(),
        batch._replace(scores=-batch.scores).loss(),
    )


def test_numpy_numbers_are_numbers():
    batch = clean_batch()
    expected = batch.loss(brctc.EarlyFinish(3.0))
    torch.testing.assert_close(
        batch.loss(brctc.EarlyFinish(numpy.float32(3)), blank=numpy.int64(0)), expected
    )


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_risk_of_another_precision(backend):
    class Double(brctc.BayesRisk):
        def log_risk(self, groups):
            return -0.1 * groups.frame.double()

    batch = clean_batch()
    assert batch.loss(Double(), backend=backend).dtype == torch.float32
    empty = batch._replace(
        targets=batch.targets[:, :0], target_lengths=torch.zeros_like(batch.target_lengths)
    )
    assert empty.loss(Double(), backend=backend).dtype == torch.float32


@pytest.mark.parametrize("field", ["log_share", "log_likelihood", "targets", "input_lengths"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_risk_that_writes_into_the_groups_is_refused(field, backend):
    class Vandal(brctc.BayesRisk):
        def log_risk(self, groups):
            getattr(groups, field).detach().fill_(1)
            return 0.0 * groups.frame

    with pytest.raises(ValueError, match=rf"Vandal\.log_risk has changed groups\.{field} in place"):
        clean_batch().loss(Vandal(), backend=backend)


def test_shapes_without_values():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    batch = clean_batch()
    for risk in (*RISKS, OWN, Slope()):
        run = lambda x: batch._replace(scores=x).loss(risk)  # noqa: B023, E731
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert run(mode.from_tensor(batch.scores)).shape == (3,)
        torch.testing.assert_close(make_fx(run)(batch.scores)(2 * batch.scores), run(2 * batch.scores))


def test_values_are_looked_at_wherever_there_are_some():
    from torch.utils.flop_counter import FlopCounterMode

    class Nothing(brctc.BayesRisk):
        def log_risk(self, groups):
            return groups.frame * math.nan

    class Subclass(torch.Tensor):
        pass

    batch = clean_batch()
    with pytest.raises(ValueError, match=r"Nothing\.log_risk"):
        batch._replace(scores=batch.scores.as_subclass(Subclass)).loss(Nothing())
    with FlopCounterMode(display=False), pytest.raises(ValueError, match=r"Nothing\.log_risk"):
        batch.loss(Nothing())
