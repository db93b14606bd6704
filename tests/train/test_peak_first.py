"""Peak-first regularisation: its value by hand, its gradient by finite differences, and its effect."""

import itertools
import math

import pytest
import torch

from brctc.data import Padded
from brctc.train.losses import peak_first_loss

torch.manual_seed(0)
LENGTHS, LABELS = torch.tensor([6, 4, 1]), torch.tensor([2, 0, 1])


def ragged_logits():
    """(3, 6, 5), with NaN behind each utterance's end."""
    logits = torch.randn(3, 6, 5, dtype=torch.double)
    for n, length in enumerate(LENGTHS):
        logits[n, length:] = math.nan
    return logits


def test_a_case_by_hand():
    """Two classes, three frames, two labels: (KL(p2 || p1) + KL(p3 || p2)) / 2."""
    probs = torch.tensor([[[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]]], dtype=torch.double)
    first = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    second = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    found = peak_first_loss(Padded(probs.log(), torch.tensor([3])), torch.tensor([2]))
    assert found.item() == pytest.approx((first + second) / 2, abs=1e-12)
    constant = probs[:, :1].expand(-1, 7, -1).log()
    assert peak_first_loss(Padded(constant, torch.tensor([7])), torch.tensor([2])).item() == pytest.approx(0)


def test_gradient_is_that_of_a_frozen_teacher():
    """By finite differences of a definition written down frame by frame, in which the teacher stays."""
    logits = ragged_logits()
    frozen = logits.softmax(-1)

    def definition(scores):
        total = 0.0
        for n, length in enumerate(LENGTHS.tolist()):
            for t in range(length - 1):
                teacher = frozen[n, t + 1]
                divergence = (teacher * (teacher.log() - scores[n, t].log_softmax(-1))).sum()
                total += divergence.item() / max(int(LABELS[n]), 1)
        return total / 3

    scores = logits.clone().requires_grad_()
    loss = peak_first_loss(Padded(scores, LENGTHS), LABELS)
    (gradient,) = torch.autograd.grad(loss, scores)
    assert loss.item() == pytest.approx(definition(logits), abs=1e-12)
    step = 1e-6
    for index in itertools.product(*map(range, logits.shape)):
        moved = [logits.clone(), logits.clone()]
        moved[0][index] -= step
        moved[1][index] += step
        expected = (definition(moved[1]) - definition(moved[0])) / (2 * step)
        assert gradient[index].item() == pytest.approx(expected, abs=1e-8)
    assert (gradient[0, :5] - (frozen[0, :5] - frozen[0, 1:]) / 6).abs().max() < 1e-12
    assert gradient[2].eq(0).all()  # a single frame has no teacher


def test_peaks_move_to_the_left():
    logits = torch.full((1, 9, 4), -3.0)
    logits[:, :, 0] = 3.0
    logits[:, 5] = torch.tensor([-3.0, 3.0, -3.0, -3.0])
    logits.requires_grad_()
    loss = peak_first_loss(Padded(logits, torch.tensor([9])), torch.tensor([1]))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[0, 4, 1] < 0  # the frame before the peak gets more of its label
    assert gradient[0, 5, 0] < 0  # the peak itself more of the blank behind it


def test_half_precision_is_computed_in_float():
    logits = torch.randn(2, 8, 5)
    lengths, labels = torch.tensor([8, 5]), torch.tensor([2, 3])
    found = peak_first_loss(Padded(logits.bfloat16(), lengths), labels)
    assert found.dtype == torch.float32
    expected = peak_first_loss(Padded(logits, lengths), labels)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0)
