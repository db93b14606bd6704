"""CTC searches against the enumeration of all paths."""

import itertools
import math

import numpy as np
import pytest
import torch

from brctc.decode import ctc_frames, ctc_greedy, ctc_prefix_beam
from tests.decode.enumeration import collapse, ctc_sequences


def random_logits(*shape, seed=0, spread=2.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("blank", [0, 2])
def test_full_beam_sums_all_paths(seed, blank):
    logits = random_logits(1, 5, 4, seed=seed)
    expected = ctc_sequences(logits[0].double().log_softmax(-1), blank)
    (found,) = ctc_prefix_beam(logits, torch.tensor([5]), beam=1000, blank=blank)
    assert {tuple(h.tokens) for h in found} == set(expected)
    for hypothesis in found:
        assert hypothesis.score == pytest.approx(expected[tuple(hypothesis.tokens)], abs=1e-9)
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


def test_small_beam_keeps_the_best_of_what_the_wide_one_finds():
    """A beam of 12 among hundreds of sequences: right for the best, and no score beyond the truth."""
    logits = random_logits(1, 6, 4, seed=1, spread=3.0)
    expected = ctc_sequences(logits[0].double().log_softmax(-1))
    (found,) = ctc_prefix_beam(logits, torch.tensor([6]), beam=12)
    assert len(found) == 12
    assert tuple(found[0].tokens) == next(iter(expected))
    assert all(h.score <= expected[tuple(h.tokens)] + 1e-9 for h in found)


def plain_prefix_beam(log_probs, beam):
    """The same search with nothing left out: every class is tried as an extension of every prefix."""
    hypotheses = {(): (0.0, -math.inf)}
    for row in log_probs.tolist():
        merged = {}

        def put(prefix, in_blank, in_token, merged=merged):
            old = merged.get(prefix, (-math.inf, -math.inf))
            merged[prefix] = np.logaddexp(old[0], in_blank), np.logaddexp(old[1], in_token)

        for prefix, (in_blank, in_token) in hypotheses.items():
            total = np.logaddexp(in_blank, in_token)
            put(prefix, total + row[0], in_token + row[prefix[-1]] if prefix else -math.inf)
            for c in range(1, len(row)):
                put((*prefix, c), -math.inf, row[c] + (in_blank if prefix[-1:] == (c,) else total))
        best = sorted(merged.items(), key=lambda item: -np.logaddexp(*item[1]))[:beam]
        hypotheses = dict(best)
    return {prefix: np.logaddexp(*scores) for prefix, scores in hypotheses.items()}


@pytest.mark.parametrize("beam", [1, 2, 3, 8])
def test_leaving_out_improbable_classes_changes_nothing(beam):
    for seed in range(6):
        logits = random_logits(1, 12, 9, seed=seed)
        expected = plain_prefix_beam(logits[0].double().log_softmax(-1), beam)
        (found,) = ctc_prefix_beam(logits, torch.tensor([12]), beam=beam)
        assert {tuple(h.tokens): h.score for h in found} == pytest.approx(expected, abs=1e-9)


def test_the_most_probable_label_may_be_a_repetition():
    """Half of the paths of 1 end in 1: there, 2 makes the better extension though 1 is more probable."""
    probs = torch.tensor([[0.01, 0.98, 0.01], [0.49, 0.5, 0.01], [0.02, 0.5, 0.48]])
    expected = plain_prefix_beam(probs.double().log(), 1)
    (found,) = ctc_prefix_beam(probs.log()[None], torch.tensor([3]), beam=1)
    assert found[0].tokens == [1, 2]
    assert found[0].score == pytest.approx(expected[1, 2], abs=1e-6)


def test_greedy_is_the_best_path_with_its_frames():
    path = [0, 3, 3, 0, 3, 1, 1, 2, 0, 0]
    logits = torch.zeros(1, 10, 4)
    logits[0, range(10), path] = 5.0
    (found,) = ctc_greedy(logits, torch.tensor([10]))
    assert found.tokens == [3, 3, 1, 2]
    assert (found.frames, found.last_frames) == ([1, 4, 5, 7], [2, 4, 6, 7])
    assert found.score == pytest.approx(10 * (5 - math.log(math.exp(5) + 3)), abs=1e-5)


def test_greedy_of_random_batches():
    logits = random_logits(6, 30, 5, seed=3)
    lengths = torch.tensor([30, 1, 17, 0, 29, 5])
    for n, found in enumerate(ctc_greedy(logits, lengths)):
        length = int(lengths[n])
        path = logits[n, :length].argmax(-1).tolist()
        assert tuple(found.tokens) == collapse(path)
        borders = [t for t in range(length + 1) if t in (0, length) or path[t] != path[t - 1]]
        runs = [(a, b - 1) for a, b in itertools.pairwise(borders) if path[a]]
        assert list(zip(found.frames, found.last_frames, strict=True)) == runs
        best = logits[n, :length].log_softmax(-1).amax(-1).sum().item()
        assert found.score == pytest.approx(best, abs=1e-4)


def test_greedy_equals_beam_one_on_sharp_posteriors():
    """Where one path has nearly all the mass of every frame, both say the same."""
    logits = random_logits(4, 40, 6, seed=4)
    logits.scatter_add_(2, logits.argmax(-1, keepdim=True), torch.full((4, 40, 1), 20.0))
    lengths = torch.tensor([40, 25, 3, 1])
    greedy = ctc_greedy(logits, lengths)
    beam = ctc_prefix_beam(logits, lengths, beam=1)
    assert [h.tokens for h in greedy] == [best[0].tokens for best in beam]


def test_batch_equals_single():
    logits = random_logits(4, 20, 6, seed=5)
    lengths = torch.tensor([20, 7, 0, 13])
    batch = ctc_prefix_beam(logits, lengths, beam=5)
    greedy = ctc_greedy(logits, lengths)
    for n, length in enumerate(lengths.tolist()):
        single = logits[n : n + 1, :length], lengths[n : n + 1]
        assert ctc_prefix_beam(*single, beam=5)[0] == batch[n]
        (alone,) = ctc_greedy(*single)
        assert (alone.tokens, alone.frames) == (greedy[n].tokens, greedy[n].frames)
        assert alone.last_frames == greedy[n].last_frames
        assert alone.score == pytest.approx(greedy[n].score, abs=1e-5)
    assert batch[2][0].tokens == []
    assert batch[2][0].score == 0


def test_padding_is_not_read():
    logits = random_logits(1, 9, 4, seed=6)
    expected = ctc_prefix_beam(logits[:, :6], torch.tensor([6])), ctc_greedy(logits[:, :6], torch.tensor([6]))
    logits[:, 6:] = math.nan
    found = ctc_prefix_beam(logits, torch.tensor([6])), ctc_greedy(logits, torch.tensor([6]))
    assert found == expected


def test_frames_of_given_tokens():
    path = [0, 3, 3, 0, 3, 1, 1, 2, 0, 0]
    logits = torch.zeros(2, 10, 4)
    logits[:, range(10), path] = 5.0
    found = ctc_frames(logits, torch.tensor([10, 3]), [[3, 3, 1, 2], [3, 3, 1]])
    assert found == [([1, 4, 5, 7], [2, 4, 6, 7]), None]  # three frames cannot hold 3 blank 3 1
    assert ctc_frames(logits, torch.tensor([10, 3]), [[], []]) == [([], []), ([], [])]
    assert ctc_frames(logits, torch.tensor([0, 0]), [[], [3]]) == [([], []), None]  # nothing was heard


@pytest.mark.parametrize(
    ("logits", "lengths", "options", "message"),
    [
        (torch.zeros(4, 3), torch.tensor([4]), {}, r"shape \(4, 3\), expected \(N, T, C\)"),
        (torch.zeros(2, 4, 3), torch.tensor([4]), {}, r"lengths have shape \(1,\), expected \(2,\)"),
        (torch.zeros(2, 4, 3), torch.tensor([4, 5]), {}, "utterance 1 has length 5, expected 0 to 4"),
        (torch.zeros(1, 4, 3), torch.tensor([4]), {"blank": 3}, "blank is 3, expected 0 to 2"),
        (torch.zeros(1, 4, 3), torch.tensor([4]), {"beam": 0}, "beam is 0, expected at least 1"),
    ],
)
def test_bad_input(logits, lengths, options, message):
    with pytest.raises(ValueError, match=message):
        ctc_prefix_beam(logits, lengths, **options)
