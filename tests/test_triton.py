"""The GPU kernels against the reference: on a GPU, or in Triton's interpreter.

The interpreter takes milliseconds per frame, so that shapes are small here. `pytest -m exhaustive` runs
the large set.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import brctc
from tests.batches import batches, random_batch
from tests.parity import check_parity, loss_and_grad
from tests.paths import TableRisk
from tests.test_exactness import exactness

pytestmark = pytest.mark.skipif(
    not brctc.backends()["triton"].startswith("ok"), reason=f"triton: {brctc.backends()['triton']}"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRITON = {"backend": "triton", "device": DEVICE}
RISKS = [
    None,
    brctc.EarlyFinish(8.1),
    brctc.EarlyEmission(12.3),
    TableRisk(torch.tensor(0.3), "last", "start"),
    TableRisk(torch.linspace(-1, 1, 1), "each", "end"),
]


@pytest.fixture(autouse=True)
def poisoned_memory():
    """Whatever is read without having been written is NaN, or a huge integer."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


# shapes that are not multiples of a block
@settings(max_examples=12, deadline=None)
@given(batch=batches(most_frames=8, most_labels=5), risk=st.sampled_from(RISKS), from_logits=st.booleans())
def test_parity(batch, risk, from_logits):
    check_parity(batch, risk, **TRITON, from_logits=from_logits)


@pytest.mark.exhaustive
@settings(max_examples=300, deadline=None)
@given(batch=batches(most_frames=40, most_labels=20), risk=st.sampled_from(RISKS), from_logits=st.booleans())
def test_parity_on_many_shapes(batch, risk, from_logits):
    check_parity(batch, risk, **TRITON, from_logits=from_logits)


@pytest.mark.parametrize("risk", RISKS[1:3], ids=lambda risk: type(risk).__name__)
def test_more_labels_and_classes_than_a_block(risk):
    """Two tiles of tokens, two of frames, two of classes; every label many times."""
    batch = random_batch(1, 85, 40, 1030, dtype=torch.double, spread=1.0)
    batch.targets[:] = batch.targets % 3 + 1
    check_parity(batch, risk, **TRITON, from_logits=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("frames", "labels"), [(8000, 20), (1100, 1000)])
@pytest.mark.parametrize("name", ["last", "each"])
def test_gradient_error_in_float32_of_the_largest_sizes(name, frames, labels):
    assert worst_error("peaky", frames, name, [100.0], labels) <= exactness.BARS[name]


def worst_error(kind, T, name, factors, U=None):
    U, C = U or max(2, T // 10), 50
    targets = torch.randint(1, C, (U,), generator=torch.Generator().manual_seed(1))
    logits = exactness.make_logits(kind, T, U, C, targets)
    make = {"last": brctc.EarlyFinish, "each": brctc.EarlyEmission}[name]
    worst = 0.0
    for factor in factors:
        grads = []
        for scores, backend in ((logits.to(DEVICE), "triton"), (logits.double(), "cpu")):
            leaf = scores.clone().requires_grad_()
            options = {"reduction": "sum", "from_logits": True, "backend": backend}
            loss = brctc.bayes_risk_ctc_loss(leaf, targets[None], [T], [U], make(factor), **options)
            grads.append(torch.autograd.grad(loss, leaf)[0].double().cpu())
        worst = max(worst, exactness.error(*grads))
    return worst


@pytest.mark.parametrize("name", ["last", "each"])
@pytest.mark.parametrize("kind", exactness.KINDS)
def test_gradient_error_in_float32(kind, name):
    assert worst_error(kind, 24, name, [10.0]) <= exactness.BARS[name]


@pytest.mark.exhaustive
@pytest.mark.parametrize("frames", [50, 200, 1000])
@pytest.mark.parametrize("name", ["last", "each"])
@pytest.mark.parametrize("kind", exactness.KINDS)
def test_gradient_error_in_float32_of_long_utterances(kind, name, frames):
    found = worst_error(kind, frames, name, exactness.FACTORS if frames < 1000 else [100.0])
    print(f"| {kind} | {frames} | {name} | {found:.1e} |")
    assert found <= exactness.BARS[name]


@pytest.mark.parametrize("risk", [RISKS[1], RISKS[3]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_and_written(risk, dtype):
    batch = random_batch(2, 7, 3, 5, dtype=torch.float32)
    half = batch._replace(scores=batch.scores.to(dtype))
    upstream = torch.ones(2)
    loss, grad = loss_and_grad(half, risk, upstream, **TRITON, from_logits=True)
    assert (loss.dtype, grad.dtype) == (torch.float32, dtype)
    in_full = half._replace(scores=half.scores.float())
    expected, expected_grad = loss_and_grad(in_full, risk, upstream, backend="cpu", from_logits=True)
    torch.testing.assert_close(loss, expected)
    assert (grad.float() - expected_grad).norm() <= 1e-2 * expected_grad.norm()


def test_a_delay_penalty_runs_the_reference():
    batch = random_batch(2, 7, 3, 5)
    check_parity(batch, brctc.DelayPenalty(0.1), **TRITON, from_logits=True)


@pytest.mark.parametrize("risk", [None, RISKS[2]], ids=str)
def test_bit_identical_over_runs(risk):
    batch = random_batch(1, 7, 4, 3, dtype=torch.float32)
    upstream = torch.rand(1)
    first, second = (loss_and_grad(batch, risk, upstream, **TRITON, from_logits=True) for _ in "ab")
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_wide_scores_that_a_plain_float_does_not_hold():
    """Exponents of whole utterances, impossible classes, and what no format holds."""
    batch = random_batch(1, 6, 2, 4, dtype=torch.float32, spread=3000.0)
    batch.scores[2, 0, 1] = -math.inf
    for risk in RISKS[1:3]:
        check_parity(batch, risk, **TRITON, from_logits=True)
    far = batch._replace(scores=batch.scores * 1e6)
    with pytest.raises(ValueError, match="utterance 0 are too large to be computed with in"):
        far.loss(backend="triton")
    check_parity(far._replace(scores=far.scores.double()), None, **TRITON, from_logits=False)


T, N, C = 3, 2, 5
BAD = {
    "label": ("targets", (1, 0), C),
    "blank": ("targets", (0, 1), 0),
    "frames": ("input_lengths", 1, T + 1),
    "tokens": ("target_lengths", 0, 3),
}


@pytest.mark.parametrize("what", [*BAD, "scores"])
def test_bad_values_raise_one_error_or_spoil_one_loss(what):
    values = {
        "log_probs": torch.randn(T, N, C),
        "targets": torch.tensor([[1, 2], [3, 4]]),
        "input_lengths": torch.tensor([T, T - 1]),
        "target_lengths": torch.tensor([2, 1]),
    }
    if what == "scores":
        name, index, value = "log_probs", (1, 1, 3), math.nan
    else:
        name, index, value = BAD[what]
    values[name][index] = value
    with pytest.raises(ValueError, match=r"\w") as of_the_cpu:
        brctc.bayes_risk_ctc_loss(**values, backend="cpu")
    values = {name: value.to(DEVICE) for name, value in values.items()}
    with pytest.raises(ValueError, match=r"\w") as found:
        brctc.bayes_risk_ctc_loss(**values, backend="triton")
    assert str(found.value) == str(of_the_cpu.value)
    scores = values["log_probs"].requires_grad_()
    options = {"reduction": "none", "backend": "triton", "validate": False, "from_logits": True}
    loss = brctc.bayes_risk_ctc_loss(**values, **options)
    (grad,) = torch.autograd.grad(loss.nansum(), scores)
    culprit = 0 if what in ("blank", "tokens") else 1
    assert loss.isnan().tolist() == [n == culprit for n in range(N)]
    assert (grad[:, culprit] == 0).all()
    assert grad[:, 1 - culprit].abs().sum() > 0


def test_sizes_beyond_the_supported_ones():
    for frames, labels in ((8001, 2), (4, 1001)):
        with pytest.raises(ValueError, match="up to 8000 frames and 1000 labels, got"):
            brctc.bayes_risk_ctc_loss(
                torch.zeros(frames, 1, 3, device=DEVICE),
                torch.ones((1, labels), dtype=torch.int64),
                [1],
                [1],
                backend="triton",
            )


def test_opcheck():
    batch = random_batch(1, 3, 1, 3, dtype=torch.float64)
    batch = batch._replace(scores=batch.scores.nan_to_num(), targets=batch.targets.clamp(min=1))
    inputs = tuple(x.to(DEVICE) for x in batch[:4])
    inputs[0].requires_grad_()
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor")
    arguments = (*inputs, 0, True, False, 2, 3.0, True, True)
    torch.library.opcheck(torch.ops.brctc.triton_loss.default, arguments, test_utils=utilities)
    losses, *saved = torch.ops.brctc.triton_loss(*arguments)
    backward = (losses.detach(), inputs[0].detach(), True, *(x.detach() for x in saved))
    torch.library.opcheck(torch.ops.brctc.triton_gradient.default, backward, test_utils=utilities)
    groups = (*inputs, 0, True, False, False, True)
    torch.library.opcheck(torch.ops.brctc.triton_path_groups.default, groups, test_utils=utilities)
    share, likelihood = torch.ops.brctc.triton_path_groups(*groups)
    backward = (torch.zeros_like(share), torch.ones_like(likelihood), inputs[0].detach(), *groups[1:8])
    torch.library.opcheck(torch.ops.brctc.triton_path_groups_backward.default, backward, test_utils=utilities)


def test_compile_and_autocast():
    layer = torch.nn.Linear(6, 5).to(DEVICE)
    rest = [torch.tensor(x, device=DEVICE) for x in ([[1, 2]], [3], [2])]

    def step(features):
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            logits = layer(features)
            risk = brctc.EarlyFinish(2.0)
            return brctc.bayes_risk_ctc_loss(logits, *rest, risk, from_logits=True, backend="triton")

    features = torch.randn(3, 1, 6, device=DEVICE)
    results = []
    for function in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        layer.weight.grad = None
        loss = function(features)
        loss.backward()
        assert loss.dtype == torch.float32
        results.append((loss.detach(), layer.weight.grad))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_no_silent_second_derivative():
    batch = random_batch(1, 4, 2, 4)
    scores = batch.scores.to(DEVICE).requires_grad_()
    loss = batch._replace(scores=scores).loss(reduction="sum", backend="triton")
    (grad,) = torch.autograd.grad(loss, scores, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='reference'"):
        grad.sum().backward()


@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA device")
def test_cuda_graph():
    """Captured once, with lengths and labels on the device, and run again on other values."""
    batch = random_batch(2, 30, 5, 9, dtype=torch.float32)
    static = [x.to(DEVICE) for x in (batch.scores.nan_to_num(), *batch[1:4])]
    static[0].requires_grad_()
    options = {"from_logits": True, "validate": False, "backend": "triton"}
    run = lambda: torch.autograd.grad(brctc.bayes_risk_ctc_loss(*static, **options), static[0])[0]  # noqa: E731
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    with torch.no_grad():
        static[0].copy_(torch.randn_like(static[0]))
        static[2].fill_(30)
    graph.replay()
    assert torch.equal(captured, run())
