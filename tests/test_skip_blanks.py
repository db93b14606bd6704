"""Frames without certain blanks: which, in what order, with what gradient, and what is refused."""

import pytest
import torch

import brctc


def posteriors(*rows) -> torch.Tensor:
    """(N, T, 2) log-probabilities of these blanks."""
    blank = torch.tensor(rows, dtype=torch.double)
    return torch.stack([blank, 1 - blank], -1).log()


def test_by_hand():
    log_probs = posteriors([0.1, 0.995, 0.99, 0.999, 0.5], [0.999, 0.999, 0.2, 0.1, 0.1])
    hidden = torch.arange(20.0).view(2, 5, 2)
    found = brctc.skip_blanks(hidden, [5, 3], log_probs)
    assert found.lengths.tolist() == [3, 1]  # a blank at the threshold is not above it
    assert found.frames[0].tolist() == [0, 2, 4]
    assert found.frames[1, 0] == 2
    torch.testing.assert_close(found.hidden[0], hidden[0, [0, 2, 4]])
    torch.testing.assert_close(found.hidden[1, :1], hidden[1, 2:3])


def test_one_frame_is_left_of_silence():
    log_probs = posteriors([0.999, 0.998, 0.9999], [0.9999, 0.999, 0.1])
    found = brctc.skip_blanks(torch.zeros(2, 3, 1), [3, 2], log_probs)
    assert found.lengths.tolist() == [1, 1]
    assert found.frames[:, 0].tolist() == [1, 1]  # the least certain that exists


def test_at_least_takes_the_least_certain():
    log_probs = posteriors([0.999, 0.1, 0.995, 0.9999, 0.998])
    for least, frames in [(1, [1]), (2, [1, 2]), (3, [1, 2, 4]), (4, [0, 1, 2, 4]), (9, [0, 1, 2, 3, 4])]:
        found = brctc.skip_blanks(torch.zeros(1, 5, 1), [5], log_probs, at_least=least)
        assert found.frames[0].tolist() == frames


@pytest.mark.parametrize("blank", [0, 2])
def test_random_batches_against_a_loop(blank):
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(6, 9, 3, generator=generator, dtype=torch.double)
    hidden = torch.randn(6, 9, 4, generator=generator, dtype=torch.double, requires_grad=True)
    lengths = torch.tensor([9, 1, 5, 7, 8, 2])
    options = {"blank": blank, "threshold": 0.6, "from_logits": True}
    found = brctc.skip_blanks(hidden, lengths, logits, **options)
    upstream = torch.randn(found.hidden.shape, generator=generator, dtype=torch.double)
    expected = torch.zeros_like(hidden)
    probs = logits.softmax(-1)[..., blank]
    for n, length in enumerate(lengths.tolist()):
        kept = [t for t in range(length) if probs[n, t] <= 0.6] or [int(probs[n, :length].argmin())]
        assert found.frames[n, : found.lengths[n]].tolist() == kept
        upstream[n, len(kept) :] = 0
        expected[n, kept] = upstream[n, : len(kept)]
    (gradient,) = torch.autograd.grad(found.hidden, hidden, upstream)
    torch.testing.assert_close(gradient, expected)
    assert int(found.lengths.max()) == found.hidden.shape[1] == found.frames.shape[1]


def test_nan_is_not_certain():
    log_probs = posteriors([0.999, 0.999, 0.999])
    log_probs[0, 1] = torch.nan
    assert brctc.skip_blanks(torch.zeros(1, 3, 1), [3], log_probs).frames[0].tolist() == [1]


def test_refusals():
    hidden, log_probs = torch.zeros(2, 5, 3), torch.zeros(2, 5, 4)
    with pytest.raises(ValueError, match=r"hidden has shape \(2, 4, 3\), but log_probs are of \(N, T\)"):
        brctc.skip_blanks(hidden[:, :4], [5, 5], log_probs)
    with pytest.raises(ValueError, match=r"lengths\[1\] is 6, expected 1 to 5"):
        brctc.skip_blanks(hidden, [5, 6], log_probs)
    with pytest.raises(ValueError, match=r"threshold is 1\.5"):
        brctc.skip_blanks(hidden, [5, 5], log_probs, threshold=1.5)
    with pytest.raises(ValueError, match="blank is 4, expected 0 to 3"):
        brctc.skip_blanks(hidden, [5, 5], log_probs, blank=4)
