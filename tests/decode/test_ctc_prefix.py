"""CTC prefix scores against the enumeration of all paths."""

import math

import pytest
import torch

from brctc.decode import CTCPrefixScorer, ctc_prefix_beam
from tests.decode.enumeration import ctc_sequences, prefix_log_prob
from tests.decode.test_ctc import random_logits


def states_of(scorer, prefix):
    state = scorer.start()
    for token in prefix:
        state = scorer.extend(state, torch.zeros(1, 1, dtype=torch.long), torch.full((1, 1), token))
    return state


@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize("prefix", [(), (1,), (3, 1), (1, 1), (3, 3, 3), (1, 3, 1, 3)])
def test_prefix_probabilities(prefix, blank):
    logits = random_logits(1, 5, 4, seed=len(prefix))
    sequences = ctc_sequences(logits[0].double().log_softmax(-1), blank)
    scorer = CTCPrefixScorer(logits, torch.tensor([5]), blank)
    begins, ends = scorer.scores(states_of(scorer, prefix))
    assert ends.item() == pytest.approx(sequences[prefix], abs=1e-9)
    assert begins[0, 0, blank] == -math.inf
    for c in set(range(4)) - {blank}:
        expected = prefix_log_prob(sequences, (*prefix, c))
        assert begins[0, 0, c].item() == pytest.approx(expected, abs=1e-9)


def test_a_prefix_that_does_not_fit_is_impossible():
    """1 1 1 needs five frames, 1 1 1 2 six."""
    scorer = CTCPrefixScorer(random_logits(1, 5, 4), torch.tensor([5]))
    begins, _ = scorer.scores(states_of(scorer, (1, 1, 1)))
    assert (begins == -math.inf).all()
    begins, ends = scorer.scores(states_of(scorer, (1, 1, 1, 2)))
    assert (begins == -math.inf).all()
    assert ends.item() == -math.inf
    begins, ends = scorer.scores(states_of(scorer, (1, 2, 1, 2, 1)))  # fills all frames
    assert (begins == -math.inf).all()
    assert ends.isfinite().all()


def test_a_prefix_goes_on_or_ends():
    """P(prefix) = P(prefix and nothing else) + sum_c P(prefix c), at lengths that cannot be enumerated."""
    scorer = CTCPrefixScorer(random_logits(1, 300, 40, seed=1, spread=5.0), torch.tensor([300]))
    prefix, total = [], torch.zeros(())
    for _ in range(60):
        begins, ends = scorer.scores(states_of(scorer, prefix))
        parts = torch.cat([begins[0, 0], ends[0]]).logsumexp(0)
        assert parts.item() == pytest.approx(total.item(), abs=1e-7)
        token = int(begins[0, 0].argmax())
        prefix, total = [*prefix, token], begins[0, 0, token]


def test_agrees_with_the_loss_on_whole_outputs():
    logits = random_logits(1, 200, 30, seed=2, spread=4.0)
    best = ctc_prefix_beam(logits, torch.tensor([200]), beam=3)[0][0]
    scorer = CTCPrefixScorer(logits, torch.tensor([200]))
    _, ends = scorer.scores(states_of(scorer, best.tokens))
    loss = torch.nn.functional.ctc_loss(
        logits.double().log_softmax(-1).transpose(0, 1),
        torch.tensor([best.tokens]),
        torch.tensor([200]),
        torch.tensor([len(best.tokens)]),
        reduction="sum",
    )
    assert ends.item() == pytest.approx(-loss.item(), abs=1e-7)


def test_batches_of_utterances_and_hypotheses():
    """Hypotheses side by side, utterances of different lengths: the same as one by one."""
    logits = random_logits(3, 8, 5, seed=3)
    lengths = torch.tensor([8, 3, 6])
    scorer = CTCPrefixScorer(logits, lengths)
    zero = torch.zeros(3, 2, dtype=torch.long)
    state = scorer.extend(scorer.start(), zero, torch.tensor([[1, 2], [3, 3], [4, 1]]))
    state = scorer.extend(
        state,
        torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 0]]),
        torch.tensor([[1, 1, 2], [3, 4, 1], [2, 1, 4]]),
    )
    prefixes = [[(2, 1), (1, 1), (2, 2)], [(3, 3), (3, 4), (3, 1)], [(1, 2), (1, 1), (4, 4)]]
    begins, ends = scorer.scores(state)
    for n in range(3):
        alone = CTCPrefixScorer(logits[n : n + 1, : lengths[n]], lengths[n : n + 1])
        for k, prefix in enumerate(prefixes[n]):
            expected_begins, expected_ends = alone.scores(states_of(alone, prefix))
            torch.testing.assert_close(begins[n, k], expected_begins[0, 0], rtol=0, atol=1e-9)
            torch.testing.assert_close(ends[n, k], expected_ends[0, 0], rtol=0, atol=1e-9)


def test_impossible_classes_and_padding_with_nan():
    logits = random_logits(1, 5, 4, seed=4)
    logits[0, :, 3] = -math.inf
    sequences = ctc_sequences(logits[0].double().log_softmax(-1))
    padded = torch.cat([logits, torch.full((1, 4, 4), math.nan)], 1)
    scorer = CTCPrefixScorer(padded, torch.tensor([5]))
    begins, ends = scorer.scores(states_of(scorer, (1, 2)))
    assert ends.item() == pytest.approx(sequences[1, 2], abs=1e-9)
    assert begins[0, 0, 1].item() == pytest.approx(prefix_log_prob(sequences, (1, 2, 1)), abs=1e-9)
    assert begins[0, 0, 3] == -math.inf
