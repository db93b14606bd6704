"""The transducer losses live in torch, and bad input gets an error that names the culprit."""

import math
import random

import numpy
import pytest
import torch

import brctc
from tests.transducer_batches import random_batch, random_joint

BACKENDS = ["cpu", "reference"]


def clean_batch(N=3, T=6, U=3, C=5, dtype=torch.float32):
    batch = random_batch(N, T, U, C, dtype=dtype)
    return batch._replace(logits=batch.logits.nan_to_num(), targets=batch.targets.clamp(min=0))


def clean_joint(batch, D=4):
    return [tensor.nan_to_num() for tensor in random_joint(batch, D)]


# ---- operators and tracing ----------------------------------------------------------------------


def test_opcheck():
    batch = clean_batch()
    for logits in (batch.logits, batch.logits.transpose(0, 3).contiguous().transpose(0, 3)):
        inputs = (logits.requires_grad_(), *batch[1:], True)
        torch.library.opcheck(torch.ops.brctc.transducer_loss.default, inputs)
        losses, cells = torch.ops.brctc.transducer_loss(*inputs)
        backward = (torch.ones_like(losses), logits.detach(), *batch[1:], cells)
        torch.library.opcheck(torch.ops.brctc.transducer_loss_backward.default, backward)


def test_opcheck_joint():
    batch = clean_batch()
    joint = clean_joint(batch)
    inputs = (*(tensor.requires_grad_() for tensor in joint), *batch[1:])
    torch.library.opcheck(torch.ops.brctc.transducer_joint_loss.default, inputs)
    backward = (torch.ones(3), *(tensor.detach() for tensor in joint), *batch[1:])
    torch.library.opcheck(torch.ops.brctc.transducer_joint_loss_backward.default, backward)


def losses_of(batch, tensors, **options):
    """The dense loss of one tensor, the joint loss of four."""
    function = brctc.transducer_loss if len(tensors) == 1 else brctc.transducer_joint_loss
    return function(*tensors, *batch[1:4], **options)


@pytest.mark.slow
@pytest.mark.parametrize("is_joint", [False, True])
def test_compile_fullgraph_dynamic(is_joint):
    def step(tensors, *labels):
        function = brctc.transducer_joint_loss if is_joint else brctc.transducer_loss
        return function(*(2 * tensor for tensor in tensors), *labels)

    def run_steps(function):
        results = []
        for shape in ((2, 6, 3), (3, 8, 4), (4, 6, 2)):
            batch = clean_batch(*shape)
            values = clean_joint(batch) if is_joint else [batch.logits]
            tensors = [tensor.clone().requires_grad_() for tensor in values]
            loss = function(tensors, *batch[1:4])
            results += [loss.detach(), *torch.autograd.grad(loss, tensors)]
        return results

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for found, expected in zip(run_steps(compiled), run_steps(step), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_make_fx_sees_the_operators():
    from torch.fx.experimental.proxy_tensor import make_fx

    batch = clean_batch()
    for values in ([batch.logits], clean_joint(batch)):
        run = lambda *tensors: losses_of(batch, tensors)  # noqa: E731
        graph = make_fx(run)(*values)
        doubled = [2 * tensor for tensor in values]
        torch.testing.assert_close(graph(*doubled), run(*doubled))


def test_torch_func_takes_the_reference():
    batch = clean_batch()
    for values in ([batch.logits], clean_joint(batch)):
        with pytest.raises(RuntimeError, match="pass backend='reference'"):
            torch.func.grad(lambda x, rest=values[1:]: losses_of(batch, [x, *rest]))(values[0])
        found = torch.func.grad(lambda x, rest=values[1:]: losses_of(batch, [x, *rest], backend="reference"))(
            values[0]
        )
        leaf = values[0].clone().requires_grad_()
        (expected,) = torch.autograd.grad(losses_of(batch, [leaf, *values[1:]]), leaf)
        torch.testing.assert_close(found, expected)


# ---- autograd -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_no_silent_second_derivative(reduction):
    batch = clean_batch()
    for values in ([batch.logits], clean_joint(batch)):
        tensors = [tensor.clone().requires_grad_() for tensor in values]
        loss = losses_of(batch, tensors, reduction=reduction).sum()
        grads = torch.autograd.grad(loss, tensors, create_graph=True)
        expected = torch.autograd.grad(losses_of(batch, tensors, reduction=reduction).sum(), tensors)
        torch.testing.assert_close(grads, expected)
        with pytest.raises(RuntimeError, match="backend='reference'"):
            grads[0].sum().backward()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_backward_twice_with_retained_graph(reduction):
    batch = clean_batch()
    for values in ([batch.logits], clean_joint(batch)):
        tensors = [tensor.clone().requires_grad_() for tensor in values]
        loss = losses_of(batch, tensors, reduction=reduction).sum()
        first = torch.autograd.grad(loss, tensors, retain_graph=True)
        for one, two in zip(first, torch.autograd.grad(2 * loss, tensors), strict=True):
            torch.testing.assert_close(2 * one, two)


def test_changed_logits_are_noticed():
    batch = clean_batch()
    for values in ([batch.logits], clean_joint(batch)):
        doubled = [2 * tensor.requires_grad_() for tensor in values]
        loss = losses_of(batch, doubled)
        doubled[0] += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_no_grad_and_inference_mode():
    batch = clean_batch()
    for values in ([batch.logits], clean_joint(batch)):
        expected = losses_of(batch, values)
        tensors = [tensor.clone().requires_grad_() for tensor in values]
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                loss = losses_of(batch, tensors)
                assert not loss.requires_grad
                torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float(dtype):
    batch = clean_batch()
    for values in ([batch.logits], clean_joint(batch)):
        tensors = [tensor.to(dtype).requires_grad_() for tensor in values]
        exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
        loss, expected = losses_of(batch, tensors), losses_of(batch, exact)
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss.double(), expected, rtol=2e-6, atol=1e-6)
        loss.backward()
        expected.backward()
        for tensor, judge in zip(tensors, exact, strict=True):
            assert tensor.grad.dtype == dtype
            torch.testing.assert_close(tensor.grad.double(), judge.grad, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_autocast_leaves_the_joint_network_in_float32(backend, reduction):
    batch = clean_batch()
    results = []
    for autocast in (False, True):
        tensors = [tensor.clone().requires_grad_() for tensor in clean_joint(batch)]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = losses_of(batch, tensors, reduction=reduction, backend=backend).sum()
            if backend == "cpu":  # torch's own backward pass would follow autocast here
                loss.backward()
        if backend == "reference":
            loss.backward()
        results.append([loss.detach(), *(tensor.grad for tensor in tensors)])
    for plain, under_autocast in zip(*results, strict=True):
        torch.testing.assert_close(plain, under_autocast)


def test_default_device_does_not_matter():
    batch = clean_batch()
    for values in ([batch.logits], clean_joint(batch)):
        tensors = [tensor.clone().requires_grad_() for tensor in values]
        expected = losses_of(batch, tensors)
        torch.set_default_device("meta")
        try:
            lengths = batch.logit_lengths.tolist(), batch.target_lengths.tolist()
            function = brctc.transducer_loss if len(tensors) == 1 else brctc.transducer_joint_loss
            loss = function(*tensors, batch.targets, *lengths)
            grads = torch.autograd.grad(loss, tensors)
        finally:
            torch.set_default_device(None)
        assert torch.equal(loss, expected)
        assert all(grad.device.type == "cpu" for grad in grads)


def test_joint_inputs_of_any_layout():
    batch = clean_batch(2, 6, 3, 5)
    values = clean_joint(batch, 4)
    expected = losses_of(batch, values)
    strided = [torch.stack([tensor, tensor], -1)[..., 0] for tensor in values]
    torch.testing.assert_close(losses_of(batch, strided), expected)
    turned = [tensor.t().contiguous().t() if tensor.dim() == 2 else tensor for tensor in values]
    torch.testing.assert_close(losses_of(batch, turned), expected)
    torch.testing.assert_close(losses_of(batch, [torch._neg_view(-tensor) for tensor in values]), expected)


def test_negated_and_expanded_logits():
    batch = clean_batch()
    negated = batch._replace(logits=torch._neg_view(-batch.logits))
    torch.testing.assert_close(negated.loss(), batch.loss())
    one = batch.logits[:1].expand(3, -1, -1, -1)
    torch.testing.assert_close(batch._replace(logits=one).loss(), batch._replace(logits=one.clone()).loss())


def test_labels_changed_behind_torchs_back():
    buffer = numpy.array([[1, 2]])
    logits = torch.randn(1, 4, 3, 5, requires_grad=True)
    loss = brctc.transducer_loss(logits, torch.from_numpy(buffer), [4], [2])
    buffer[:] = 10**9
    with pytest.raises(ValueError, match="label 0 of utterance 0 is 1000000000"):
        loss.backward()


def test_other_devices_take_the_reference():
    """The meta device has no values, but shapes."""
    batch = clean_batch()
    loss = batch._replace(logits=batch.logits.to("meta")).loss(backend="reference")
    assert loss.is_meta
    assert loss.shape == batch.loss().shape
    with pytest.raises(ValueError, match="backend 'cpu' needs CPU tensors, got meta"):
        batch._replace(logits=batch.logits.to("meta")).loss(backend="cpu")


# ---- bad input ----------------------------------------------------------------------------------

N, T, U, C, D = 3, 5, 2, 4, 6
LOGITS = torch.randn(N, T, U + 1, C)
JOINT = {
    "encoder": torch.randn(N, T, D),
    "prediction": torch.randn(N, U + 1, D),
    "weight": torch.randn(C, D),
    "bias": torch.randn(C),
}
LABELS = {
    "targets": torch.tensor([[1, 2], [3, 1], [1, 1]]),
    "logit_lengths": torch.tensor([5, 4, 3]),
    "target_lengths": torch.tensor([2, 2, 1]),
}


def with_value(tensor, index, value):
    tensor = tensor.clone()
    tensor[index] = value
    return tensor


TARGETS = LABELS["targets"]
LABEL_CASES = [
    # what is wrong, what the error must name
    (
        {"targets": with_value(TARGETS, (1, 0), -2)},
        ValueError,
        "label 0 of utterance 1 is -2, expected 0 to 3",
    ),
    ({"targets": with_value(TARGETS, (1, 1), 4)}, ValueError, "label 1 of utterance 1 is 4, expected 0 to 3"),
    ({"targets": with_value(TARGETS, (2, 0), 0)}, ValueError, "label 0 of utterance 2 is 0, the blank"),
    ({"targets": TARGETS[:2]}, ValueError, r"targets have shape \(2, 2\), expected \(N, U\) = \(3, 2\)"),
    ({"targets": TARGETS[:, :1]}, ValueError, r"targets have shape \(3, 1\), expected \(N, U\) = \(3, 2\)"),
    ({"targets": TARGETS.flatten()}, ValueError, r"targets have shape \(6,\)"),
    ({"targets": TARGETS.float()}, TypeError, "targets must be integers, got torch.float32"),
    ({"targets": "abc"}, TypeError, "targets must be integers .* got 'abc'"),
    ({"logit_lengths": torch.tensor([5, 6, 3])}, ValueError, r"logit_lengths\[1\] is 6, expected 1 to 5"),
    ({"logit_lengths": torch.tensor([5, 4, 0])}, ValueError, r"logit_lengths\[2\] is 0, expected 1 to 5"),
    ({"logit_lengths": torch.tensor([-(2**62), 4, 3])}, ValueError, r"logit_lengths\[0\] is -46"),
    ({"logit_lengths": torch.tensor([5, 4])}, ValueError, "logit_lengths has 2 values for 3 utterances"),
    ({"logit_lengths": torch.tensor([5.0, 4.0, 3.0])}, TypeError, "logit_lengths must be integers"),
    ({"target_lengths": torch.tensor([2, 3, 1])}, ValueError, r"target_lengths\[1\] is 3, expected 0 to 2"),
    ({"target_lengths": torch.tensor([2, -1, 1])}, ValueError, r"target_lengths\[1\] is -1"),
    ({"target_lengths": torch.tensor([2, 2, 1, 1])}, ValueError, "target_lengths has 4 values"),
    ({"blank": 4}, ValueError, "blank is 4, expected 0 to 3"),
    ({"blank": -5}, ValueError, "blank is -5"),
    ({"blank": 1.0}, TypeError, "blank must be an int"),
    ({"reduction": "avg"}, ValueError, "reduction is 'avg'"),
    ({"backend": "gpu"}, ValueError, "unknown backend 'gpu'"),
]
LOGITS_CASES = [
    ({"logits": LOGITS.long()}, TypeError, "logits must be floating point, got torch.int64"),
    ({"logits": LOGITS[0]}, ValueError, r"logits must be \(N, T, U \+ 1, C\), got \(5, 3, 4\)"),
    ({"logits": [[1.0]]}, TypeError, "logits must be a tensor, got list"),
    ({"logits": LOGITS[:, :0]}, ValueError, "are empty"),
    ({"logits": LOGITS[:, :, :0]}, ValueError, "are empty"),
    ({"logits": LOGITS[..., :0]}, ValueError, "are empty"),
    ({"logits": with_value(LOGITS, (1, 3, 0, 2), math.nan)}, ValueError, "NaN or .*frame 3 of utterance 1"),
    ({"logits": with_value(LOGITS, (2, 2, 1, 3), math.inf)}, ValueError, "inf.* frame 2 of utterance 2"),
    (
        {"logits": with_value(LOGITS, (0, 4, 2), -math.inf)},
        ValueError,
        "only -inf, at frame 4 of utterance 0",
    ),
]
JOINT_CASES = [
    ({"encoder": torch.randn(N, T, D + 1)}, ValueError, r"prediction has shape \(3, 3, 6\), expected \(N, U"),
    ({"encoder": torch.randn(N, T)}, ValueError, r"encoder must be \(N, T, D\), got \(3, 5\)"),
    ({"encoder": [1.0]}, TypeError, "encoder must be a tensor, got list"),
    ({"prediction": torch.randn(N - 1, U + 1, D)}, ValueError, r"prediction has shape \(2, 3, 6\)"),
    ({"prediction": torch.randn(N, U, D)}, ValueError, r"targets have shape \(3, 2\), expected .* \(3, 1\)"),
    ({"weight": torch.randn(D, C)}, ValueError, r"weight has shape \(6, 4\), expected \(C, D\) = \(6, 6\)"),
    ({"weight": torch.ones(C, D).int()}, TypeError, "weight must be floating point, got torch.int32"),
    ({"bias": torch.randn(C + 1)}, ValueError, r"bias has shape \(5,\), expected \(C\) = \(4,\)"),
    ({"bias": torch.randn(C, device="meta")}, ValueError, "bias is on meta, the encoder's output on cpu"),
    (
        {"encoder": with_value(JOINT["encoder"], (1, 2, 0), math.nan)},
        ValueError,
        "NaN .*frame 2 of utterance 1",
    ),
]


DENSE, WITH_JOINT = LABEL_CASES + LOGITS_CASES, LABEL_CASES + JOINT_CASES


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("changes", "error", "message"), DENSE, ids=[case[2] for case in DENSE])
def test_error_names_the_culprit(changes, error, message, backend):
    with pytest.raises(error, match=message):
        brctc.transducer_loss(**({"backend": backend, "logits": LOGITS} | LABELS | changes))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("changes", "error", "message"), WITH_JOINT, ids=[case[2] for case in WITH_JOINT])
def test_joint_error_names_the_culprit(changes, error, message, backend):
    with pytest.raises(error, match=message):
        brctc.transducer_joint_loss(**({"backend": backend} | JOINT | LABELS | changes))


def test_fuzz_malformed_calls():
    """Straight at the operators, past the public functions' door: an error or a result, no crash."""
    chance = random.Random(0)
    raised = 0

    def size(*usual):
        return chance.choice([*usual, *usual, 0, 1, 2])

    def lengths(most):
        values = [chance.choice([most, most, 1, 0, -1, most + 1, 2**40]) for _ in range(size(2, 2, 2))]
        return torch.tensor(values, dtype=torch.int64).to(chance.choice([torch.int64] * 6 + [torch.int32]))

    def tensor(*shape):
        if chance.random() < 0.05:
            shape = shape[:-1]
        dtype = chance.choice([torch.float32] * 12 + [torch.float64, torch.float16])
        values = torch.randn(shape).to(dtype)
        if chance.random() < 0.1 and values.numel():
            values.view(-1)[chance.randrange(values.numel())] = chance.choice([math.nan, -math.inf, 1e38])
        return values.transpose(0, 1) if values.dim() > 1 and chance.random() < 0.1 else values

    calls = 3000
    for _ in range(calls):
        batch, frames, labels, classes, width = (
            size(2, 2, 2, 2),
            size(4, 4),
            size(2, 2, 2),
            size(4, 4),
            size(3, 3),
        )
        rows = labels + 1 if chance.random() < 0.9 else labels
        targets = torch.randint(-1 if chance.random() < 0.2 else 1, max(classes, 2), (batch, labels))
        rest = (targets, lengths(frames), lengths(labels), chance.choice([0, 0, 0, 0, -1, 7]))
        logits = tensor(batch, frames, rows, classes)
        joint = (
            tensor(batch, frames, width),
            tensor(batch, rows, width),
            tensor(classes, width),
            tensor(classes),
        )
        operator, arguments = chance.choice(
            [
                ("transducer_loss", (logits, *rest, chance.random() < 0.5)),
                (
                    "transducer_loss_backward",
                    (tensor(batch), logits, *rest, tensor(4 * batch * frames * rows)),
                ),
                ("transducer_joint_loss", (*joint, *rest)),
                ("transducer_joint_loss_backward", (tensor(batch), *joint, *rest)),
            ]
        )
        try:
            getattr(torch.ops.brctc, operator)(*arguments)
        except (ValueError, TypeError, RuntimeError):
            raised += 1
    assert calls / 2 < raised < calls, "most calls are malformed, some are not"
