"""Best paths, group posteriors and feasibility on batches."""

import math

import pytest
import torch

import brctc
from tests.batches import random_batch


def test_best_path_of_a_padded_batch():
    batch = random_batch(4, 30, 6, 9, seed=5)
    found = brctc.best_path(*batch[:4])
    for n in range(4):
        frames, labels = int(batch.input_lengths[n]), int(batch.target_lengths[n])
        single = brctc.best_path(batch.scores[:frames, n], batch.targets[n, :labels], frames, labels)
        assert found.path[n, :frames].tolist() == single.path.tolist()
        assert (found.path[n, frames:] == -1).all()
        assert found.start[n, :labels].tolist() == single.start.tolist()
        assert (found.end[n, labels:] == -1).all()
        torch.testing.assert_close(found.score[n], single.score)
        # the path says the labels, and is as probable as its score
        collapsed = [c for i, c in enumerate(single.path.tolist()) if i == 0 or c != single.path[i - 1]]
        assert [c for c in collapsed if c != 0] == batch.targets[n, :labels].tolist()
        emitted = batch.scores[:frames, n].gather(1, single.path[:, None]).sum()
        torch.testing.assert_close(emitted, single.score)


def test_token_times_are_ordered():
    batch = random_batch(3, 50, 8, 12, seed=2)
    found = brctc.best_path(*batch[:4])
    for n, labels in enumerate(batch.target_lengths.tolist()):
        start, end = found.start[n, :labels], found.end[n, :labels]
        assert (start < end).all()
        assert (end[:-1] <= start[1:]).all()


def test_best_path_checks_its_input():
    scores = torch.randn(5, 1, 4)
    scores[3, 0, 1] = math.nan
    with pytest.raises(ValueError, match="frame 3 of utterance 0"):
        brctc.best_path(scores, torch.tensor([[1]]), [5], [1])


@pytest.mark.parametrize("event", ["end", "start"])
def test_groups_of_every_token_hold_every_path(event):
    batch = random_batch(4, 40, 7, 9, seed=7)
    groups = brctc.path_groups(*batch[:4], event=event)
    total = groups.log_posterior.logsumexp(-1)
    expected = -batch.loss()
    for n, labels in enumerate(batch.target_lengths.tolist()):
        torch.testing.assert_close(total[n, :labels], expected[n].expand(labels))
        assert (groups.log_posterior[n, labels:] == -math.inf).all()
        assert (groups.log_posterior[n, :, batch.input_lengths[n] :] == -math.inf).all()


def test_groups_keep_their_digits_in_float32():
    """At a log-likelihood of -10000 a float has three digits left: shares do not go through it."""
    batch = random_batch(1, 3000, 100, 60, spread=4.0, dtype=torch.float32)
    found = brctc.path_groups(*batch[:4]).log_share
    expected = brctc.path_groups(batch.scores.double(), *batch[1:4]).log_share
    likely = expected > -20
    torch.testing.assert_close(found[likely].double(), expected[likely], rtol=0, atol=3e-5)


def test_check_feasible_names_utterance_and_frames():
    targets = torch.tensor([[1, 2, 3], [1, 1, 2], [2, 2, 2], [5, 0, 0]])
    bad = brctc.check_feasible(targets, [3, 3, 4, 1], [3, 3, 3, 1])
    assert bad == [(1, 4, 3), (2, 5, 4)]
    assert str(bad[0]) == "utterance 1 needs 4 frames and has 3"
    concatenated = torch.tensor([1, 2, 3, 1, 1, 2, 2, 2, 2, 5])
    assert brctc.check_feasible(concatenated, [3, 3, 4, 1], [3, 3, 3, 1]) == bad
    assert brctc.check_feasible(targets, [4, 4, 5, 1], [3, 3, 3, 1]) == []
    assert brctc.check_feasible(torch.zeros(2, 0, dtype=torch.long), [1, 1], [0, 0]) == []
    assert brctc.check_feasible(torch.zeros(2, 0, dtype=torch.long), [1, 0], [0, 0]) == []
    assert brctc.check_feasible(targets, [4, 0, 5, 1], [3, 3, 3, 1]) == [(1, 4, 0)]
    with pytest.raises(ValueError, match=r"input_lengths\[1\] is -1, expected 0 or more"):
        brctc.check_feasible(targets, [4, -1, 5, 1], [3, 3, 3, 1])


def test_feasible_means_finite_loss():
    for seed in range(20):
        batch = random_batch(6, 6, 5, 3, seed=seed)
        infeasible = {n for n, _, _ in brctc.check_feasible(*batch[1:4])}
        assert infeasible == set(batch.loss().isinf().nonzero().flatten().tolist())
