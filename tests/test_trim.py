"""Which frames trimming keeps, in batches, and that it can be exported."""

import math

import pytest
import torch

import brctc
from brctc.trimming import trim, trimmed_lengths


def posterior(blanks, classes=4):
    """(N, T, C) log-probabilities with the given blank probabilities, the rest shared evenly."""
    blank = torch.tensor(blanks, dtype=torch.double)[..., None]
    rest = ((1 - blank) / (classes - 1)).expand(*blank.shape[:-1], classes - 1)
    return torch.cat([blank, rest], -1).log()


def kept_by_definition(blanks, length, threshold, margin):
    """Section 3.3: m is the smallest t (the paper's "maximum" is a slip: T itself would do) such that
    all later frames have a blank above the threshold."""
    m = min(t for t in range(length + 1) if all(blanks[after] > threshold for after in range(t, length)))
    return min(max(m + margin, 1), length)


SURE, UNSURE = 0.999, 0.4


def test_public_names():
    assert brctc.trim is trim
    assert brctc.trimmed_lengths is trimmed_lengths


@pytest.mark.parametrize(
    ("blanks", "length", "margin", "kept"),
    [
        ([UNSURE, SURE, UNSURE, SURE, SURE, SURE], 6, 2, 5),  # a sure blank between two spikes stays
        ([UNSURE, SURE, SURE, SURE, SURE, SURE], 6, 0, 1),
        ([SURE] * 6, 6, 2, 2),  # nothing said: the margin alone
        ([SURE] * 6, 6, 0, 1),  # but never nothing
        ([SURE] * 6, 6, 9, 6),  # nor more than there is
        ([UNSURE] * 6, 6, 5, 6),
        ([UNSURE, SURE, SURE, SURE, SURE, UNSURE], 5, 1, 2),  # what is behind the end does not count
        ([0.99, SURE, SURE], 3, 1, 2),  # at the threshold is not above it
    ],
)
def test_kept_frames(blanks, length, margin, kept):
    log_probs = posterior([blanks])
    assert trimmed_lengths(log_probs, [length], margin=margin).tolist() == [kept]


def test_random_batches_follow_the_definition():
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(50):
        blanks = torch.rand(5, 9, generator=generator).mul(0.2).add(0.8)
        lengths = torch.randint(1, 10, (5,), generator=generator)
        threshold, margin = 0.82 + 0.1 * torch.rand(1, generator=generator).item(), int(lengths[0]) % 3
        kept = trimmed_lengths(posterior(blanks.tolist()), lengths, threshold=threshold, margin=margin)
        rows = zip(blanks.tolist(), lengths.tolist(), strict=True)
        assert kept.tolist() == [kept_by_definition(row, n, threshold, margin) for row, n in rows]
        seen.update(kept.tolist())
    assert len(seen) == 9, "every length from 1 to 9 should have come up"


def test_logits_blank_index_and_precision():
    generator = torch.Generator().manual_seed(3)
    logits = 4 * torch.randn(6, 30, 5, generator=generator)
    lengths = torch.tensor([30, 30, 25, 20, 10, 1])
    options = {"threshold": 0.7, "margin": 1}
    expected = trimmed_lengths(logits.log_softmax(-1), lengths, **options)
    assert len(set(expected.tolist())) > 2
    assert torch.equal(trimmed_lengths(logits, lengths, from_logits=True, **options), expected)
    moved = logits.roll(3, -1)
    assert torch.equal(trimmed_lengths(moved, lengths, blank=3, from_logits=True, **options), expected)
    half = trimmed_lengths(logits.bfloat16().float(), lengths, from_logits=True, **options)
    assert torch.equal(trimmed_lengths(logits.bfloat16(), lengths, from_logits=True, **options), half)


def test_frames_kept_in_any_case():
    log_probs = posterior([[UNSURE] + [SURE] * 7] * 3)
    kept = trimmed_lengths(log_probs, [8, 8, 4], margin=1, at_least=torch.tensor([1, 5, 6]))
    assert kept.tolist() == [2, 5, 4]
    assert trimmed_lengths(log_probs, [8, 8, 4], margin=1, at_least=3).tolist() == [3, 3, 3]


def test_nan_is_not_a_certain_blank():
    log_probs = posterior([[SURE] * 5])
    log_probs[0, 3] = math.nan
    assert trimmed_lengths(log_probs, [5], margin=0).tolist() == [4]


def test_trim_cuts_to_the_longest_and_lets_gradients_through():
    hidden = torch.randn(2, 6, 3, dtype=torch.double, requires_grad=True)
    log_probs = posterior([[UNSURE] + [SURE] * 5, [SURE, UNSURE] + [SURE] * 4]).requires_grad_()
    shorter, kept = trim(hidden, torch.tensor([6, 6]), log_probs, margin=1)
    assert kept.tolist() == [2, 3]
    assert torch.equal(shorter, hidden[:, :3])
    shorter.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad[:, :3].eq(1).all()
    assert hidden.grad[:, 3:].eq(0).all()
    assert log_probs.grad is None


class Trimmed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(6, 4)
        self.after = torch.nn.Linear(6, 2)

    def forward(self, hidden, lengths):
        shorter, kept = trim(hidden, lengths, self.head(hidden), threshold=0.5, margin=1, from_logits=True)
        return self.after(shorter), kept


def test_export():
    """A program that trims, for any batch and any length."""
    torch.manual_seed(0)
    module = Trimmed()
    dynamic = torch.export.Dim.DYNAMIC
    program = torch.export.export(
        module,
        (torch.randn(3, 20, 6), torch.tensor([20, 15, 9])),
        dynamic_shapes={"hidden": {0: dynamic, 1: dynamic}, "lengths": {0: dynamic}},
    ).module()
    shapes = set()
    for batch, frames in ((2, 12), (5, 50), (4, 33)):
        hidden, lengths = torch.randn(batch, frames, 6), torch.randint(5, 10, (batch,))
        expected, kept = module(hidden, lengths)
        found, found_kept = program(hidden, lengths)
        assert torch.equal(found_kept, kept)
        torch.testing.assert_close(found, expected)
        shapes.add(tuple(found.shape))
        assert 2 < found.shape[1] < frames
    assert len(shapes) == 3
    with torch.no_grad():
        module.head.bias[0] = (
            100  # nothing but blanks: one frame each; the program's tensor may have one more
        )
    module_lengths, program_lengths = (run(hidden, lengths)[1] for run in (module, program))
    assert module_lengths.tolist() == [1] * 4 == program_lengths.tolist()


def test_an_exported_trim_takes_utterances_of_one_frame():
    torch.manual_seed(0)
    module, dynamic = Trimmed(), torch.export.Dim.DYNAMIC
    program = torch.export.export(
        module,
        (torch.randn(3, 20, 6), torch.tensor([20, 15, 9])),
        dynamic_shapes={"hidden": {0: dynamic, 1: dynamic}, "lengths": {0: dynamic}},
    ).module(check_guards=False)  # torch would insist on two
    hidden, lengths = torch.randn(4, 1, 6), torch.ones(4, dtype=torch.long)
    expected, _ = module(hidden, lengths)
    found, kept = program(hidden, lengths)
    assert kept.tolist() == [1] * 4
    torch.testing.assert_close(found[:, :1], expected)


GOOD = torch.zeros(2, 5, 3)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"log_probs": torch.zeros(5, 3)}, ValueError, r"\(N, T, C\), got \(5, 3\)"),
        ({"log_probs": [[1.0]]}, ValueError, "got list"),
        ({"log_probs": torch.zeros(2, 5, 3, dtype=torch.long)}, ValueError, "floating-point"),
        ({"lengths": [5, 6]}, ValueError, r"lengths\[1\] is 6, expected 1 to 5"),
        ({"lengths": [0, 5]}, ValueError, r"lengths\[0\] is 0"),
        ({"lengths": [5]}, ValueError, r"lengths has shape \(1,\) for 2 utterances"),
        ({"lengths": [5.0, 5.0]}, TypeError, "lengths must be integers"),
        ({"at_least": [1, 2, 3]}, ValueError, r"at_least has shape \(3,\)"),
        ({"blank": 3}, ValueError, "blank is 3, expected 0 to 2"),
        ({"threshold": 1.0}, ValueError, "threshold is 1.0"),
        ({"threshold": 0}, ValueError, "threshold is 0"),
        ({"margin": -1}, ValueError, "margin is -1"),
        ({"margin": 1.5}, ValueError, "margin is 1.5"),
    ],
)
def test_errors_name_the_value(changes, error, message):
    with pytest.raises(error, match=message):
        trimmed_lengths(**{"log_probs": GOOD, "lengths": [5, 5], **changes})


def test_hidden_must_fit():
    for shape in ((3, 5, 2), (2, 4, 2), (2,)):
        with pytest.raises(ValueError, match=r"hidden has shape .* \(N, T\) = \(2, 5\)"):
            trim(torch.zeros(shape), [5, 5], GOOD)
