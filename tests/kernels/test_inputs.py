"""Tensors that no loss can compute with: each gets an error that names it, and nothing crashes."""

import threading

import pytest
import torch

import brctc

T, N, C, U = 8, 3, 5, 2


def batch(**changes):
    good = {
        "log_probs": torch.randn(T, N, C).log_softmax(-1),
        "targets": torch.tensor([[1, 2], [3, 4], [4, 1]]),
        "input_lengths": torch.tensor([8, 7, 6]),
        "target_lengths": torch.tensor([2, 2, 1]),
    }
    return good | changes


CALLS = {
    "loss": brctc.bayes_risk_ctc_loss,
    "reference": lambda **tensors: brctc.bayes_risk_ctc_loss(**tensors, backend="reference"),
    "path_groups": brctc.path_groups,
    "best_path": brctc.best_path,
}
KINDS = {
    "sparse": (lambda tensor: tensor.to_sparse(), TypeError, "must be a dense tensor, got layout"),
    "csr": (lambda tensor: tensor.to_sparse_csr(), TypeError, "must be a dense tensor, got layout"),
    "nested": (lambda tensor: torch.nested.nested_tensor(list(tensor)), TypeError, "got a nested one"),
    "meta": (lambda tensor: tensor.to("meta"), ValueError, "is on the meta device"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["sparse", "csr", "nested", "meta"])
@pytest.mark.parametrize("name", ["log_probs", "targets"])
def test_other_tensors(call, kind, name):
    change, error, message = KINDS[kind]
    if (name, kind) == ("log_probs", "meta") and call != "best_path":
        pytest.skip("gives shapes")
    with pytest.raises(error, match=f"{name} .*{message}"):
        CALLS[call](**batch(**{name: change(batch()[name])}))


@pytest.mark.parametrize("call", CALLS)
def test_no_tensor(call):
    with pytest.raises(TypeError, match="log_probs must be a tensor, got NoneType"):
        CALLS[call](**batch(log_probs=None))


@pytest.mark.parametrize("kind", ["sparse", "nested", "meta"])
def test_other_tensors_of_a_transducer(kind):
    change, error, message = KINDS[kind]
    logits, targets = torch.randn(N, T, U + 1, C), batch()["targets"]
    lengths = torch.full((N,), T), torch.full((N,), U)
    with pytest.raises(error, match=f"targets .*{message}"):
        brctc.transducer_loss(logits, change(targets), *lengths)
    if kind != "meta":
        with pytest.raises(error, match=f"logits .*{message}"):
            brctc.transducer_loss(change(logits), targets, *lengths)


def test_other_tensors_to_trim():
    hidden, log_probs = torch.randn(N, T, 4), torch.randn(N, T, C)
    with pytest.raises(TypeError, match="log_probs must be a dense tensor"):
        brctc.trim(hidden, [T] * N, log_probs.to_sparse())
    with pytest.raises(ValueError, match="log_probs is on the meta device"):
        brctc.trim(hidden, [T] * N, log_probs.to("meta"))


@pytest.mark.parametrize("frames", [2**60, 2**58, 2**46])
@pytest.mark.parametrize("gradient", [False, True])
def test_a_tensor_that_repeats_itself_beyond_all_memory(frames, gradient):
    scores = torch.randn(1, 1, C, requires_grad=gradient).expand(frames, 1, C)
    labels = {"targets": torch.tensor([[1, 2]]), "target_lengths": [2]}
    with pytest.raises(ValueError, match="too large"):
        brctc.bayes_risk_ctc_loss(scores, **labels, input_lengths=[5])
    with pytest.raises(ValueError, match="too large"):
        brctc.bayes_risk_ctc_loss(scores, **labels, input_lengths=[frames])


def test_a_transducer_that_repeats_itself_beyond_all_memory():
    logits = torch.randn(1, 1, U + 1, C, requires_grad=True).expand(1, 2**58, U + 1, C)
    with pytest.raises(ValueError, match="too large"):
        brctc.transducer_loss(logits, torch.tensor([[1, 2]]), [5], [2])


def test_targets_that_another_thread_writes():
    """The core has its own copy of labels and lengths: what it has checked is what it reads."""
    frames, batch_size, classes, labels = 2000, 4, 30, 40
    scores = torch.randn(frames, batch_size, classes, requires_grad=True)
    good = torch.randint(1, classes, (batch_size, labels))
    targets, lengths = good.clone(), torch.full((batch_size,), labels)
    frame_counts = torch.full((batch_size,), frames)
    running = True

    def write():
        while running:
            targets.fill_(2**40)
            targets.copy_(good)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            try:
                loss = brctc.bayes_risk_ctc_loss(scores, targets, frame_counts, lengths, from_logits=True)
            except ValueError:
                continue  # what was copied is refused
            assert loss.isfinite()
    finally:
        running = False
        writer.join()


@pytest.mark.parametrize("penalty", [1e6, -1e6, 1e3])
def test_a_large_delay_penalty_in_float32(penalty):
    """What early tokens gain and late ones pay cancels: the reference keeps its digits all the same."""
    torch.manual_seed(0)
    scores = torch.randn(60, 2, 6)
    labels = torch.randint(1, 6, (2, 9)), [60, 51], [9, 4]
    for backend in ("cpu", "reference"):
        options = {"reduction": "none", "from_logits": True, "backend": backend}
        risk = brctc.DelayPenalty(penalty)
        results = []
        for dtype in (torch.float32, torch.float64):
            leaf = scores.to(dtype).requires_grad_()
            losses = brctc.bayes_risk_ctc_loss(leaf, *labels, risk, **options)
            (grad,) = torch.autograd.grad(losses.sum(), leaf)
            assert losses.dtype == grad.dtype == dtype
            results += [losses.float(), grad.float()]
        torch.testing.assert_close(results[:2], results[2:], rtol=1e-5, atol=1e-4)
