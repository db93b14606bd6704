"""Forced alignment against every path and against a plain search; wildcards; words with their times."""

import itertools
import math

import pytest
import torch

import brctc
from tests.batches import random_batch


def gaps_of(target):
    """The labels without wildcards, and whether anything may be said before each and behind the last."""
    labels, wild = [], [False]
    for label in target:
        if label == brctc.WILDCARD:
            wild[-1] = True
        else:
            labels.append(label)
            wild.append(False)
    return labels, wild


def every_path(log_probs, target, price, blank=0):
    """The best score and path, -1 for what was not transcribed, by trying all of them."""
    labels, wild = gaps_of(target)
    anything = (log_probs.amax(1) - price).tolist()
    scores, best = log_probs.tolist(), (-math.inf, ())
    for path in itertools.product(range(-1, log_probs.shape[1]), repeat=len(log_probs)):
        said, before, score = 0, blank, 0.0
        for t, label in enumerate(path):
            score += anything[t] if label < 0 else scores[t][label]
            if label < 0:
                score = score if wild[said] else -math.inf
            elif label not in (blank, before):
                score = score if said < len(labels) and labels[said] == label else -math.inf
                said = min(said + 1, len(labels))
            before = blank if label < 0 else label
            if score == -math.inf:
                break
        if said == len(labels):
            best = max(best, (score, path))
    return best


TARGETS = [[], [1], [1, 2], [2, 2], [1, 2, 1], [-1], [-1, 1], [1, -1], [1, -1, 2], [1, -1, 1], [-1, 2, -1]]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_by_enumeration(target, seed):
    torch.manual_seed(seed)
    log_probs = (2 * torch.randn(5, 3, dtype=torch.double)).log_softmax(-1)
    score, path = every_path(log_probs, target, 0.5)
    found = brctc.best_path(
        log_probs, torch.tensor(target).long(), 5, len(target), wildcards=True, wildcard_price=0.5
    )
    assert abs(found.score.item() - score) < 1e-10
    assert tuple(found.path.tolist()) == path
    paths, scores = brctc.forced_align(
        log_probs[None], torch.tensor([target]).long(), wildcards=True, wildcard_price=0.5
    )
    assert tuple(paths[0].tolist()) == path
    assert abs(scores.sum().item() - score) < 1e-10


def plain_search(log_probs, target, blank=0):
    """Viterbi over states with all pointers kept; ties as ours."""
    states = [blank]
    for label in target:
        states += [label, blank]
    scores = torch.full((len(states),), -math.inf, dtype=torch.double)
    own = log_probs[:, states].double()
    scores[:2] = own[0, :2]
    skips = torch.tensor([s % 2 == 1 and s > 1 and states[s] != states[s - 2] for s in range(len(states))])
    pointers = []
    for t in range(1, len(log_probs)):
        one = torch.cat([torch.tensor([-math.inf]), scores[:-1]])
        two = torch.where(skips, torch.cat([torch.full((2,), -math.inf), scores[:-2]]), -math.inf)
        step = torch.where((one >= scores) & (one > -math.inf), 1, 0)
        best = torch.maximum(scores, one)
        step = torch.where((two >= best) & (two > -math.inf), 2, step)
        scores = torch.maximum(best, two) + own[t]
        pointers.append(step)
    s = len(states) - 2 if scores[-2] > scores[-1] else len(states) - 1
    total, path = scores[s].item(), [states[s]]
    for step in reversed(pointers):
        s -= int(step[s])
        path.append(states[s])
    return total, path[::-1]


@pytest.mark.parametrize(
    ("frames", "labels", "dtype"),
    [(2300, 600, torch.float32), (1900, 1800, torch.double), (40, 9, torch.double)],
)
def test_rows_that_are_found_again_are_the_same(frames, labels, dtype):
    """The first two keep one row in many; the second one's path hardly has a choice."""
    torch.manual_seed(frames)
    log_probs = (3 * torch.randn(frames, 20, dtype=dtype)).log_softmax(-1)
    target = torch.randint(1, 20, (labels,))
    target[1:] = torch.where(target[1:] == target[:-1], target[1:] % 19 + 1, target[1:])
    found = brctc.best_path(log_probs, target, frames, labels)
    score, path = plain_search(log_probs, target.tolist())
    assert found.path.tolist() == path
    assert abs(found.score.item() - score) < 1e-6 * abs(score)
    assert (found.path.gather(0, found.start) == target).all()
    assert (found.path.gather(0, found.end - 1) == target).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("from_logits", [False, True])
def test_a_batch_is_its_utterances(dtype, from_logits):
    batch = random_batch(4, 30, 6, 9, seed=5, dtype=torch.float32)
    scores = batch.scores.nan_to_num().transpose(0, 1)
    scores = (scores if from_logits else scores.log_softmax(-1)).to(dtype)
    targets = batch.targets.int()
    paths, frame_scores = brctc.forced_align(
        scores, targets, batch.input_lengths, batch.target_lengths, from_logits=from_logits
    )
    assert (paths.dtype, frame_scores.dtype) == (torch.int32, torch.float32)
    normalised = scores.float().log_softmax(-1) if from_logits else scores.float()
    for n, (t, u) in enumerate(zip(batch.input_lengths, batch.target_lengths, strict=True)):
        path, score = brctc.forced_align(
            scores[n : n + 1, :t], targets[n : n + 1, :u], from_logits=from_logits
        )
        assert paths[n, :t].tolist() == path[0].tolist()
        torch.testing.assert_close(frame_scores[n, :t], score[0])
        assert (paths[n, t:] == 0).all()
        assert (frame_scores[n, t:] == 0).all()
        torch.testing.assert_close(score[0], normalised[n, :t].gather(1, path[0, :, None].long())[:, 0])


def spoken(*frames, sure=0.96, classes=5):
    """(T, C): log-probabilities of a model that is sure of each frame's class."""
    probs = torch.full((len(frames), classes), (1 - sure) / (classes - 1))
    probs[range(len(frames)), list(frames)] = sure
    return probs.log()


def test_a_wildcard_does_not_swallow_its_neighbours():
    """1 1 and 2 2 are transcribed; 3 4 4 between them is not."""
    log_probs = spoken(0, 1, 1, 0, 3, 4, 4, 0, 2, 2, 0)
    found = brctc.best_path(log_probs, torch.tensor([1, -1, 2]), 11, 3, wildcards=True)
    assert found.path.tolist() == [0, 1, 1, 0, -1, -1, -1, 0, 2, 2, 0]
    assert found.start.tolist() == [1, 4, 8]
    assert found.end.tolist() == [3, 7, 10]
    silence = spoken(0, 1, 1, 0, 0, 2, 2, 0)
    found = brctc.best_path(silence, torch.tensor([1, -1, 2]), 8, 3, wildcards=True)
    assert found.path.tolist() == [0, 1, 1, 0, 0, 2, 2, 0]
    assert found.start.tolist() == [1, -1, 5]


def test_words_have_times_and_confidence():
    log_probs = spoken(0, 1, 2, 2, 0, 3, 3, 4, 0, 1, 0)
    words = [("on", [1, 2]), ("[noise]", None), ("and", [1])]
    found = brctc.align_words(log_probs, words, 0.04, start_s=10.0)
    assert [word.text for word in found] == ["on", "[noise]", "and"]
    times = torch.tensor([[word.start_s, word.end_s] for word in found])
    torch.testing.assert_close(times, 10 + 0.04 * torch.tensor([[1.0, 4], [5, 8], [9, 10]]))
    assert found[0].confidence == pytest.approx(0.96, abs=1e-6)
    assert found[1].confidence == pytest.approx(0.96 / math.e, abs=1e-6)
    quiet = brctc.align_words(spoken(0, 1, 2, 0, 1), words, 0.04)
    assert [word.text for word in quiet] == ["on", "and"]
    logits = 3 + spoken(0, 1, 2, 0, 1, sure=0.5)
    (word, _) = brctc.align_words(logits, words[::2], 0.02, from_logits=True)
    assert word.confidence == pytest.approx(0.5, abs=1e-6)


def test_bad_input_is_named():
    log_probs = spoken(0, 1, 2)
    with pytest.raises(ValueError, match="utterance 1 has no path"):
        brctc.forced_align(log_probs.expand(2, 3, 5), torch.tensor([[1, 2], [1, 1]]), [3, 2], [2, 2])
    with pytest.raises(ValueError, match=r"log_probs must be \(N, T, C\)"):
        brctc.forced_align(log_probs, torch.tensor([[1]]))
    with pytest.raises(ValueError, match=r"targets must be \(N, U\) with N = 1"):
        brctc.forced_align(log_probs[None], torch.tensor([1]))
    with pytest.raises(ValueError, match="label 0 of utterance 0 is -1"):
        brctc.forced_align(log_probs[None], torch.tensor([[-1]]))
    with pytest.raises(ValueError, match="label 0 of utterance 0 is 0, the blank"):
        brctc.forced_align(log_probs[None], torch.tensor([[0]]))
    with pytest.raises(ValueError, match="wildcard_price is -1"):
        brctc.best_path(log_probs, torch.tensor([1]), 3, 1, wildcards=True, wildcard_price=-1)
    with pytest.raises(ValueError, match="word 1, 'b', has no tokens"):
        brctc.align_words(log_probs, [("a", [1]), ("b", [])], 0.04)
    with pytest.raises(ValueError, match="word 0, 'a', has the token -1"):
        brctc.align_words(log_probs, [("a", [-1])], 0.04)
    with pytest.raises(ValueError, match="frame_s is 0"):
        brctc.align_words(log_probs, [("a", [1])], 0)
