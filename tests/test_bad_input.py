"""Bad input gets an error that names the culprit; nothing crashes, whatever is passed."""

import math
import random

import pytest
import torch

import brctc
from tests.paths import TableRisk

BACKENDS = ["cpu", "reference"]
T, N, C = 8, 3, 5


def arguments(**changes):
    good = {
        "log_probs": torch.randn(T, N, C),
        "targets": torch.tensor([[1, 2], [3, 4], [4, 1]]),
        "input_lengths": torch.tensor([8, 7, 6]),
        "target_lengths": torch.tensor([2, 2, 1]),
    }
    return good | changes


def with_value(tensor, index, value):
    tensor = tensor.clone()
    tensor[index] = value
    return tensor


TARGETS = arguments()["targets"]
CONCATENATED = torch.tensor([1, 2, 3, 4, 4])
SCORES = torch.randn(T, N, C)

CASES = [
    # what is wrong, what the error must name
    ({"targets": with_value(TARGETS, (1, 0), -2)}, ValueError, "label 0 of utterance 1 is -2"),
    ({"targets": with_value(TARGETS, (1, 1), 5)}, ValueError, "label 1 of utterance 1 is 5, expected 0 to 4"),
    ({"targets": with_value(TARGETS, (2, 0), 0)}, ValueError, "label 0 of utterance 2 is 0, the blank"),
    ({"targets": with_value(CONCATENATED, 3, 9)}, ValueError, "label 1 of utterance 1 is 9"),
    ({"targets": CONCATENATED[:4]}, ValueError, "ask for 5 or more concatenated targets, but there are 4"),
    ({"targets": torch.cat([CONCATENATED, CONCATENATED])}, ValueError, "ask for 5 concatenated targets"),
    ({"targets": TARGETS[:2]}, ValueError, "targets hold 2 rows for 3 utterances"),
    ({"targets": TARGETS[None]}, ValueError, r"targets must be \(N, U\)"),
    ({"targets": TARGETS.float()}, TypeError, "targets must be integers, got torch.float32"),
    ({"targets": TARGETS.bool()}, TypeError, "targets must be integers, got torch.bool"),
    ({"targets": "abc"}, TypeError, "targets must be integers .* got 'abc'"),
    ({"targets": [[1, 2], [3], [4]]}, TypeError, "padded or concatenated"),
    ({"targets": None}, TypeError, "targets must be integers .* got None"),
    ({"log_probs": None}, TypeError, "log_probs must be a tensor, got NoneType"),
    ({"blank": None}, TypeError, "blank must be an int, got NoneType"),
    ({"input_lengths": torch.tensor([8, 9, 6])}, ValueError, r"input_lengths\[1\] is 9, expected 0 to 8"),
    ({"input_lengths": torch.tensor([8, 7, -1])}, ValueError, r"input_lengths\[2\] is -1"),
    ({"input_lengths": torch.tensor([-(2**62), 7, 6])}, ValueError, r"input_lengths\[0\] is -46"),
    ({"input_lengths": torch.tensor([8, 7])}, ValueError, "input_lengths has 2 values for 3 utterances"),
    ({"input_lengths": torch.tensor([8.0, 7.0, 6.0])}, TypeError, "input_lengths must be integers"),
    ({"target_lengths": torch.tensor([2, 3, 1])}, ValueError, r"target_lengths\[1\] is 3, expected 0 to 2"),
    ({"target_lengths": torch.tensor([2, -1, 1])}, ValueError, r"target_lengths\[1\] is -1"),
    ({"target_lengths": torch.tensor([2, 2, 1, 1])}, ValueError, "target_lengths has 4 values"),
    (
        {"targets": CONCATENATED, "target_lengths": torch.tensor([2**62, 2**62, 1])},
        ValueError,
        "target_lengths",
    ),
    (
        {"log_probs": torch.randn(T, N, C).long()},
        TypeError,
        "log_probs must be floating point, got torch.int64",
    ),
    ({"log_probs": torch.randn(N, C, 2, 2)}, ValueError, "log_probs must be"),
    ({"log_probs": [[1.0]]}, TypeError, "log_probs must be a tensor, got list"),
    ({"log_probs": torch.randn(0, N, C)}, ValueError, "are empty"),
    ({"log_probs": torch.randn(T, 0, C)}, ValueError, "are empty"),
    ({"log_probs": torch.randn(T, N, 0)}, ValueError, "are empty"),
    ({"log_probs": with_value(SCORES, (4, 1, 3), math.nan)}, ValueError, "NaN or .*frame 4 of utterance 1"),
    ({"log_probs": with_value(SCORES, (5, 2, 0), math.inf)}, ValueError, "inf.* frame 5 of utterance 2"),
    ({"blank": 5}, ValueError, "blank is 5, expected 0 to 4"),
    ({"blank": -1}, ValueError, "blank is -1"),
    ({"blank": 1.0}, TypeError, "blank must be an int"),
    ({"reduction": "avg"}, ValueError, "reduction is 'avg'"),
    ({"backend": "gpu"}, ValueError, "unknown backend 'gpu'"),
    ({"risk": 3.0}, TypeError, "risk must be a BayesRisk or None, got 3.0"),
    ({"risk": brctc.EarlyFinish}, TypeError, "got the class EarlyFinish itself"),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "risk", [None, brctc.EarlyFinish(2.0), TableRisk(torch.zeros(1), "each", "start")], ids=str
)
@pytest.mark.parametrize(("changes", "error", "message"), CASES, ids=[case[2] for case in CASES])
def test_error_names_the_culprit(changes, error, message, risk, backend):
    options = {"risk": risk, "backend": backend} | arguments(**changes)
    with pytest.raises(error, match=message):
        brctc.bayes_risk_ctc_loss(**options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_are_checked_wherever_the_softmax_reads(backend, value):
    scores = with_value(SCORES, (2, 1, 2), value)  # class 2 is in no target of utterance 1
    brctc.bayes_risk_ctc_loss(**arguments(log_probs=scores), backend=backend)
    with pytest.raises(ValueError, match="frame 2 of utterance 1"):
        brctc.bayes_risk_ctc_loss(**arguments(log_probs=scores), from_logits=True, backend=backend)
    nothing = with_value(SCORES, (3, 0), -math.inf)
    with pytest.raises(ValueError, match="only -inf, at frame 3 of utterance 0"):
        brctc.bayes_risk_ctc_loss(**arguments(log_probs=nothing), from_logits=True, backend=backend)


def test_padding_may_hold_anything():
    scores = with_value(SCORES, (7, 2), math.nan)
    loss = brctc.bayes_risk_ctc_loss(**arguments(log_probs=scores, targets=with_value(TARGETS, (2, 1), -9)))
    assert loss.isfinite()


@pytest.mark.parametrize("factor", [math.nan, math.inf, None, "3", True])
@pytest.mark.parametrize("risk", [brctc.EarlyFinish, brctc.EarlyEmission, brctc.DelayPenalty])
def test_risk_factor_must_be_a_number(risk, factor):
    with pytest.raises(ValueError, match="factor must be a finite number"):
        risk(factor)


def test_a_delay_penalty_has_no_groups():
    groups = brctc.path_groups(*arguments().values())
    with pytest.raises(NotImplementedError, match="DelayPenalty weighs whole paths"):
        brctc.DelayPenalty(0.1).log_risk(groups)


def test_the_module_refuses_bad_options_at_once():
    with pytest.raises(TypeError, match="risk must be a BayesRisk or None, got 0"):
        brctc.BayesRiskCTCLoss(0)
    with pytest.raises(ValueError, match="reduction is 'avg'"):
        brctc.BayesRiskCTCLoss(reduction="avg")
    with pytest.raises(ValueError, match="for a learnt one write a BayesRisk"):
        brctc.EarlyFinish(torch.tensor(3.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_bad_risks(backend):
    def run(table, tokens="each", event="end"):
        return brctc.bayes_risk_ctc_loss(**arguments(), risk=TableRisk(table, tokens, event), backend=backend)

    with pytest.raises(
        ValueError, match=r"shape \(3, 3, 8\), not broadcastable to \(N, U, T\) = \(3, 2, 8\)"
    ):
        run(torch.zeros(3, 3, 8))
    with pytest.raises(ValueError, match="not broadcastable"):
        run(torch.zeros(1, 3, 2, 8))
    nan = torch.zeros(3, 2, 8)
    nan[1, 0, 4] = math.nan
    with pytest.raises(ValueError, match="is nan for token 0 of utterance 1 at frame tau=5"):
        run(nan)
    with pytest.raises(ValueError, match="is inf for"):
        run(torch.full((1,), math.inf))
    losses = []
    for zeros in (torch.zeros(8), torch.ops.aten._efficientzerotensor([8])):  # the latter are kept nowhere
        torch.manual_seed(0)
        losses.append(run(zeros))
    torch.testing.assert_close(*losses)
    unused = torch.zeros(3, 2, 8)
    unused[:, :, 7] = math.nan  # behind the frames of utterances 1 and 2 only
    unused[0, :, 7] = 0
    assert run(unused).isfinite()
    with pytest.raises(ValueError, match='tokens is \'some\', expected "last" or "each"'):
        run(torch.zeros(1), tokens="some")
    with pytest.raises(ValueError, match='event is \'middle\', expected "end" or "start"'):
        run(torch.zeros(1), event="middle")

    class NotATensor(brctc.BayesRisk):
        def log_risk(self, groups):
            return 1.0

    with pytest.raises(
        TypeError, match=r"NotATensor.log_risk must return a floating-point tensor, got float"
    ):
        brctc.bayes_risk_ctc_loss(**arguments(), risk=NotATensor(), backend=backend)

    class Elsewhere(brctc.BayesRisk):
        def log_risk(self, groups):
            return torch.zeros(8, device="meta")

    with pytest.raises(ValueError, match="returned a tensor on meta, the groups are on cpu"):
        brctc.bayes_risk_ctc_loss(**arguments(), risk=Elsewhere(), backend=backend)
    with pytest.raises(TypeError, match=r"abstract class BayesRisk .*log_risk"):
        brctc.BayesRisk()  # pyright: ignore[reportAbstractUsage]


def test_fuzz_ten_thousand_malformed_calls():
    """Straight at the operators, past the public function's door: an error or a result, no crash."""
    chance = random.Random(0)
    floats, integers = [torch.float32, torch.float64, torch.float16], [torch.int64, torch.int32]
    raised = 0

    def size(*usual):
        return chance.choice([*usual, 0, 1, 2, 3])

    def lengths(most):
        values = [chance.choice([most, most, 0, -1, most + 1, 2**40, -(2**62)]) for _ in range(size(2, 2, 2))]
        return torch.tensor(values, dtype=torch.int64).to(chance.choice([torch.int64] * 4 + integers))

    def tensor(*shape):
        if chance.random() < 0.05:
            shape = shape[:-1]
        values = torch.randn(shape).to(chance.choice([torch.float32] * 6 + floats))
        if chance.random() < 0.2 and values.numel():
            values.view(-1)[chance.randrange(values.numel())] = chance.choice(
                [math.nan, math.inf, -math.inf, 1e38, -1e38]
            )
        return values.transpose(0, 1) if values.dim() > 1 and chance.random() < 0.2 else values

    for _ in range(10_000):
        frames, batch, classes, labels = size(5, 5, 5), size(2, 2, 2), size(4, 4, 4), size(2, 2)
        shape = (labels,) if chance.random() < 0.3 else (batch, labels)
        targets = torch.randint(-1 if chance.random() < 0.3 else 1, max(classes, 2), shape)
        if chance.random() < 0.1:
            targets = targets.to(chance.choice([torch.int32, torch.float32]))
        common = (
            tensor(frames, batch, classes),
            targets,
            lengths(frames),
            lengths(labels),
            chance.choice([0, 0, 0, -1, 1, 7]),
            chance.random() < 0.5,
            chance.random() < 0.3,
        )
        operator, extra = chance.choice(
            [
                (
                    "loss_and_gradient",
                    (chance.choice([0, 1, 2, 3, 4]), chance.choice([0.0, 3.0, 300.0, math.nan]), True),
                ),
                ("path_groups", (chance.random() < 0.5,)),
                ("best_path", (None, 1.0)),
                ("weigh_gradient", ()),
                ("path_groups_backward", (chance.random() < 0.5,)),
            ]
        )
        before = ()
        if operator == "weigh_gradient":
            common = (tensor(size(2, 2)), common[0], tensor(frames, batch, size(4, 4)))
        elif operator == "path_groups_backward":
            before = (tensor(batch, labels, frames), tensor(batch))
        try:
            getattr(torch.ops.brctc, operator)(*before, *common, *extra)
        except (ValueError, TypeError, RuntimeError):
            raised += 1
    assert 5_000 < raised < 10_000, "most calls are malformed, some are not"


UNCHECKED = [
    {"targets": with_value(TARGETS, (1, 1), 5)},
    {"targets": with_value(TARGETS, (1, 0), 0)},
    {"input_lengths": torch.tensor([8, 9, 6])},
    {"input_lengths": torch.tensor([8, -1, 6])},
    {"target_lengths": torch.tensor([2, 3, 1])},
    {"target_lengths": torch.tensor([2, -1, 1])},
    {"log_probs": with_value(SCORES, (2, 1), math.nan)},
    {"log_probs": with_value(SCORES, (2, 1), math.inf)},
]


@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("risk", [None, brctc.EarlyFinish(3.0), brctc.EarlyEmission(3.0)])
@pytest.mark.parametrize("changes", UNCHECKED)
def test_unchecked_an_utterance_with_something_wrong_is_nan_and_has_no_gradient(changes, risk, from_logits):
    given = arguments(log_probs=SCORES) | changes
    scores = given.pop("log_probs").clone().requires_grad_()
    options = {"reduction": "none", "from_logits": from_logits, "backend": "reference"}
    losses = brctc.bayes_risk_ctc_loss(
        scores, **given, risk=risk, validate=False, zero_infinity=True, **options
    )
    assert losses.isnan().tolist() == [False, True, False]
    losses.nansum().backward()
    assert (scores.grad[:, 1] == 0).all()
    good = SCORES.clone().requires_grad_()
    expected = brctc.bayes_risk_ctc_loss(
        good, **{k: v for k, v in arguments().items() if k != "log_probs"}, risk=risk, **options
    )
    expected[::2].sum().backward()
    torch.testing.assert_close(losses[::2], expected[::2])
    torch.testing.assert_close(scores.grad[:, ::2], good.grad[:, ::2])


def test_a_risk_that_the_scores_dtype_does_not_hold():
    class Huge(brctc.BayesRisk):
        tokens, event = "last", "end"

        def log_risk(self, groups):
            return torch.full((T,), 1e39, dtype=torch.float64)

    with pytest.raises(ValueError, match=r"Huge.log_risk is inf for token 1 of utterance 0"):
        brctc.bayes_risk_ctc_loss(**arguments(), risk=Huge())


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_infinite_loss_has_no_gradient_whatever_is_made_of_it(backend):
    given = arguments(input_lengths=torch.tensor([8, 1, 6]))  # two labels do not fit into a frame
    scores = given.pop("log_probs").requires_grad_()
    losses = brctc.bayes_risk_ctc_loss(scores, **given, reduction="none", backend=backend)
    (losses**2).sum().backward()
    assert losses.isinf().tolist() == [False, True, False]
    assert (scores.grad[:, 1] == 0).all()
    assert scores.grad.isfinite().all()
    assert scores.grad[:, ::2].abs().sum() > 0
