"""The joint CTC/attention search against scoring every possible output."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from brctc.data import Padded
from brctc.decode import attention_beam
from tests.decode.enumeration import ctc_sequences, ranked
from tests.decode.systems import random_encoded, random_system, utterance


def hybrid(classes, lengths, seed=0, sharpness=6.0):
    """A decoder, what it attends to, and the CTC output beside it."""
    system = random_system(classes, attention=True, seed=seed, sharpness=sharpness)
    encoded = random_encoded(system, lengths, seed)
    return system.decoders["attention"], encoded.final, encoded.logits()


@torch.no_grad()
def all_outputs(decoder, memory, ctc, ctc_weight, length_reward):
    """The score of every output, the attention's part by the decoder as it is trained: all tokens at once."""
    frames, end = int(memory.lengths[0]), decoder.end
    said_by_ctc = ctc_sequences(ctc.values[0].double().log_softmax(-1))
    scores = {}
    for length in range(frames + 1):
        outputs = list(itertools.product(range(1, end), repeat=length))
        targets = torch.tensor(outputs, dtype=torch.long).reshape(len(outputs), length)
        hidden = memory.values.expand(len(outputs), -1, -1)
        log_probs = decoder(hidden, memory.lengths.expand(len(outputs)), targets).log_softmax(-1)
        said = F.pad(targets, (0, 1), value=end)[:, :, None]
        attention = log_probs.gather(2, said).sum((1, 2)).tolist()
        for tokens, log_prob in zip(outputs, attention, strict=True):
            if not ctc_weight or tokens in said_by_ctc:
                joint = ctc_weight * said_by_ctc.get(tokens, 0.0) + (1 - ctc_weight) * log_prob
                scores[tokens] = joint + length_reward * length
    return ranked(scores)


@pytest.mark.parametrize("length_reward", [0.0, 1.5, -1.0])
@pytest.mark.parametrize("ctc_weight", [0.0, 0.5, 0.9])
def test_full_beam_equals_exhaustive_search(ctc_weight, length_reward):
    for seed in range(3):
        inputs = hybrid(4, [4], seed, sharpness=3.0)
        expected = all_outputs(*inputs, ctc_weight, length_reward)
        (found,) = attention_beam(*inputs, 1000, ctc_weight, length_reward, nbest=len(expected))
        assert {tuple(h.tokens): h.score for h in found} == pytest.approx(expected, abs=1e-4)
        scores = [h.score for h in found]
        assert scores == sorted(scores, reverse=True)
        # asking for fewer stops earlier, and must not change what is found
        (fewer,) = attention_beam(*inputs, 1000, ctc_weight, length_reward, nbest=3)
        assert fewer == found[:3]


def test_a_reward_may_make_a_longer_output_the_best():
    """With a reward, a prefix that is worse than an output may still lead to a better one."""
    for seed in range(12):
        inputs = hybrid(4, [4], seed, sharpness=3.0)
        expected = next(iter(all_outputs(*inputs, 0.5, 1.5)))
        assert tuple(attention_beam(*inputs, 1000, 0.5, 1.5)[0][0].tokens) == expected


def test_small_beam_scores_are_those_of_its_outputs():
    exact = 0
    for seed in range(10):
        inputs = hybrid(4, [4], seed)
        expected = all_outputs(*inputs, 0.5, 0.0)
        ((best,),) = attention_beam(*inputs, beam=4)
        assert best.score == pytest.approx(expected[tuple(best.tokens)], abs=1e-4)
        exact += tuple(best.tokens) == next(iter(expected))
    assert exact >= 9


@torch.no_grad()
def test_beam_one_without_ctc_follows_the_best_token():
    """Greedy decoding, except that an output may also end where a token was more probable than the end."""
    decoder, memory, _ = hybrid(6, [9], 2)
    (found,) = attention_beam(decoder, memory, beam=1, ctc_weight=0.0, nbest=100)
    longest = max(found, key=lambda h: len(h.tokens)).tokens
    assert len(longest) == 9
    tokens = []
    for _ in range(9):
        logits = decoder(*memory, torch.tensor([tokens]).long().reshape(1, -1))
        tokens.append(1 + int(logits[0, -1, 1:6].argmax()))
    assert longest == tokens
    assert sorted(len(h.tokens) for h in found) == list(range(10))


def test_without_weight_the_ctc_is_not_looked_at():
    decoder, memory, ctc = hybrid(5, [7, 4], 3)
    nothing = Padded(torch.full_like(ctc.values, torch.nan), ctc.lengths)
    expected = attention_beam(decoder, memory, ctc_weight=0.0, nbest=5)
    for given in (ctc, nothing):
        assert attention_beam(decoder, memory, given, ctc_weight=0.0, nbest=5) == expected


@pytest.mark.parametrize("ctc_weight", [0.0, 0.5])
def test_batch_equals_single(ctc_weight):
    decoder, memory, ctc = hybrid(5, [9, 1, 6, 4], 4)
    options = {"beam": 6, "nbest": 3, "length_reward": 3.0, "ctc_weight": ctc_weight}
    batch = attention_beam(decoder, memory, ctc, **options)
    for n in range(4):
        (single,) = attention_beam(decoder, utterance(memory, n), utterance(ctc, n), **options)
        assert [h.tokens for h in single] == [h.tokens for h in batch[n]]
        assert [h.score for h in single] == pytest.approx([h.score for h in batch[n]], abs=1e-4)


@torch.no_grad()
def test_stops_one_step_behind_the_last_token():
    """A decoder that is sure: U tokens take U + 1 steps, however many frames there are."""
    decoder, memory, ctc = hybrid(5, [50], 1)
    ctc = Padded(torch.zeros(1, 50, 5), ctc.lengths)
    ctc.values[:, :, 0] = 12.0
    for frame, token in ((5, 3), (11, 1), (30, 4)):
        ctc.values[0, frame, token] = 24.0
    steps = []
    wanted = [3, 1, 4, decoder.end]
    decoder.out.register_forward_hook(
        lambda _, __, out: (
            steps.append(1),
            out.zero_().index_fill_(-1, torch.tensor(wanted[len(steps) - 1]), 20.0),
        )[1]
    )
    ((best,),) = attention_beam(decoder, memory, ctc, beam=10)
    assert best.tokens == [3, 1, 4]
    assert len(steps) == 4
    assert best.score == pytest.approx(0, abs=1e-2)


@torch.no_grad()
def test_silence_is_empty():
    decoder, memory, ctc = hybrid(5, [7], 1)
    decoder.out.bias[5] += 100
    ctc.values[:, :, 0] += 100
    ((best,),) = attention_beam(decoder, memory, ctc)
    assert best.tokens == []
    assert best.score == pytest.approx(0, abs=1e-4)


@torch.no_grad()
def test_blank_is_never_a_token():
    decoder, memory, ctc = hybrid(5, [6], 1)
    decoder.out.bias[0] += 100  # the decoder has a class for it, which nothing trains
    for ctc_weight in (0.0, 0.5):
        (found,) = attention_beam(decoder, memory, ctc, ctc_weight=ctc_weight, nbest=20)
        assert len(found) > 1
        assert all(0 not in h.tokens for h in found)
        assert all(math.isfinite(h.score) for h in found)


def test_bad_input():
    decoder, memory, ctc = hybrid(4, [3])
    with pytest.raises(ValueError, match=r"ctc_weight is 0\.5, but there is no CTC output"):
        attention_beam(decoder, memory)
    with pytest.raises(ValueError, match="beam is 0, expected at least 1"):
        attention_beam(decoder, memory, ctc, beam=0)
    with pytest.raises(ValueError, match="nbest is 0, expected at least 1"):
        attention_beam(decoder, memory, ctc, nbest=0)
    for weight in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match=f"ctc_weight is {weight}, expected 0 or more and less than 1"):
            attention_beam(decoder, memory, ctc, ctc_weight=weight)
