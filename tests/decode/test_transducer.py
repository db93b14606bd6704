"""Transducer searches against the enumeration of all paths."""

import itertools
import math

import pytest
import torch

from brctc.decode import Hypothesis, transducer_beam, transducer_frames, transducer_greedy
from tests.decode.enumeration import ranked
from tests.decode.systems import random_encoded, random_system, utterance


def transducer_of(classes, lengths, seed=0, frames_seed=None, **options):
    """A transducer, and what it hears."""
    system = random_system(classes, transducer=True, seed=seed, **options)
    encoded = random_encoded(system, lengths, seed if frames_seed is None else frames_seed)
    return system.decoders["transducer"], encoded.final


def tables(model, memory, longest):
    """log P(class | frame, prefix) of every prefix of up to `longest` labels, by the training network."""
    found = {}
    for length in range(longest + 1):
        prefixes = list(itertools.product(range(1, model.out.out_features), repeat=length))
        targets = torch.tensor(prefixes, dtype=torch.long).reshape(len(prefixes), length)
        joint = model.joint(memory.values[0][:, None].double(), model.predictions(targets)[:, -1])
        found.update(zip(prefixes, joint.transpose(0, 1).tolist(), strict=True))
    return found


@torch.no_grad()
def all_outputs(model, memory, longest):
    """Log probability of every label sequence up to a length: each label is said in some frame."""
    table = tables(model.double(), memory, longest)
    model.float()
    frames = int(memory.lengths[0])
    totals = {}
    for tokens in table:
        paths = []
        for places in itertools.combinations_with_replacement(range(frames), len(tokens)):
            said = [table[tokens[:u]][t][c] for u, (t, c) in enumerate(zip(places, tokens, strict=True))]
            blanks = [table[tokens[: sum(p <= t for p in places)]][t][0] for t in range(frames)]
            paths.append(sum(said) + sum(blanks))
        totals[tokens] = torch.tensor(paths, dtype=torch.double).logsumexp(0).item()
    return ranked(totals)


@pytest.mark.parametrize("seed", range(6))
def test_full_beam_sums_all_paths(seed):
    model, memory = transducer_of(3, [4], seed, blank_bias=7.0)
    expected = all_outputs(model, memory, longest=7)
    (found,) = transducer_beam(model, memory, beam=5000, nbest=6)
    assert len(next(iter(expected))) < 6  # the best is not cut off by the enumeration
    assert [tuple(h.tokens) for h in found] == list(expected)[:6]
    for hypothesis in found:
        assert hypothesis.score == pytest.approx(expected[tuple(hypothesis.tokens)], abs=1e-5)


def test_small_beam_finds_the_best_and_no_more_than_there_is():
    exact = 0
    for seed in range(12):
        model, memory = transducer_of(4, [3], seed, blank_bias=7.0)
        expected = all_outputs(model, memory, longest=4)
        best = transducer_beam(model, memory, beam=5)[0][0]
        assert best.score <= expected[tuple(best.tokens)] + 1e-5
        exact += tuple(best.tokens) == next(iter(expected))
    assert exact >= 11


@torch.no_grad()
def path_score(model, memory, hypothesis):
    """Log probability of the one path that says the tokens in their frames."""
    predictions = model.predictions(torch.tensor([hypothesis.tokens], dtype=torch.long).reshape(1, -1))[0]
    table = model.joint(memory.values[0, :, None], predictions)
    score, u = 0.0, 0
    for t in range(int(memory.lengths[0])):
        while u < len(hypothesis.tokens) and hypothesis.frames[u] == t:
            score += table[t, u, hypothesis.tokens[u]].item()
            u += 1
        score += table[t, u, 0].item()
    assert u == len(hypothesis.tokens)
    return score


def test_greedy_takes_the_best_class_at_every_step():
    for seed in range(10):
        model, memory = transducer_of(5, [20], seed, blank_bias=6.0)
        (found,) = transducer_greedy(model, memory, max_symbols=3)
        tokens, frames, t = [], [], 0
        while t < 20:
            labels = torch.tensor([tokens], dtype=torch.long).reshape(1, -1)
            with torch.no_grad():
                prediction = model.predictions(labels)[0, -1]
                best = int(model.joint(memory.values[0, t], prediction).argmax())
            if best == 0 or len(tokens) == 3 * (t + 1):
                t += 1
            else:
                tokens.append(best)
                frames.append(t)
        assert (found.tokens, found.frames) == (tokens, frames)
        assert found.score == pytest.approx(path_score(model, memory, found), abs=1e-3)


def test_beam_one_follows_greedy_search():
    """It also looks at every end it passes by, so greedy's output is among its own, if not the best."""
    for seed in range(12):
        model, memory = transducer_of(5, [12], seed, blank_bias=6.0)
        (greedy,) = transducer_greedy(model, memory, max_symbols=3)
        (outputs,) = transducer_beam(model, memory, beam=1, nbest=1000, max_symbols=3)
        scores = {tuple(h.tokens): h.score for h in outputs}
        assert scores[tuple(greedy.tokens)] == pytest.approx(greedy.score, abs=1e-4)
        assert transducer_beam(model, memory, beam=1, max_symbols=3)[0][0] == outputs[0]


@pytest.mark.parametrize("limit", [1, 2])
def test_an_end_to_symbols(limit):
    """A network that never says blank of its own accord."""
    model, memory = transducer_of(4, [6], 1, frames_seed=0, blank_bias=-30.0)
    (greedy,) = transducer_greedy(model, memory, max_symbols=limit)
    assert greedy.frames == [t for t in range(6) for _ in range(limit)]
    assert greedy.score == pytest.approx(path_score(model, memory, greedy), abs=1e-3)
    (outputs,) = transducer_beam(model, memory, beam=1, nbest=1000, max_symbols=limit)
    longest = max(outputs, key=lambda h: len(h.tokens))
    assert longest.tokens == greedy.tokens
    assert longest.score == pytest.approx(greedy.score, abs=1e-3)


def test_frames_of_given_tokens_are_the_best_path():
    for seed in range(8):
        model, memory = transducer_of(4, [5], seed)
        tokens = torch.randint(1, 4, (seed % 4,), generator=torch.Generator().manual_seed(seed)).tolist()
        (found,) = transducer_frames(model, memory, [tokens])
        paths = itertools.combinations_with_replacement(range(5), len(tokens))
        best = max(path_score(model, memory, Hypothesis(tokens, 0.0, list(path))) for path in paths)
        assert path_score(model, memory, Hypothesis(tokens, 0.0, found)) == pytest.approx(best, abs=1e-4)


def test_batch_equals_single():
    model, memory = transducer_of(6, [20, 1, 13], 3, frames_seed=0, blank_bias=6.0)
    greedy, beam = transducer_greedy(model, memory), transducer_beam(model, memory, beam=5, nbest=3)
    for n in range(3):
        alone = utterance(memory, n)
        (single,) = transducer_greedy(model, alone)
        assert (single.tokens, single.frames) == (greedy[n].tokens, greedy[n].frames)
        (single,) = transducer_beam(model, alone, beam=5, nbest=3)
        assert [h.tokens for h in single] == [h.tokens for h in beam[n]]
        assert [h.score for h in single] == pytest.approx([h.score for h in beam[n]], abs=1e-4)


def test_steps_grow_with_frames_and_tokens():
    """One call of the joint network per step, T + U steps and few more."""
    system = random_system(8, transducer=True, seed=5, blank_bias=6.0)
    calls = []
    model = system.decoders["transducer"]
    model.out.register_forward_hook(lambda *_: calls.append(1))
    for frames in (10, 50, 200):
        memory = random_encoded(system, [frames]).final
        calls.clear()
        ((best,),) = transducer_beam(model, memory, beam=10)
        assert frames + len(best.tokens) <= len(calls) <= frames + len(best.tokens) + 5 + frames // 10


def test_silence_is_empty():
    model, memory = transducer_of(4, [7], blank_bias=50.0)
    assert transducer_greedy(model, memory)[0].tokens == []
    best = transducer_beam(model, memory)[0][0]
    assert best.tokens == []
    assert best.score == pytest.approx(0, abs=1e-4)


@torch.no_grad()
def test_rows_equal_predictions():
    """A row is a prediction, then hidden and cell state of each layer."""
    model = random_system(6, transducer=True, seed=2).decoders["transducer"]
    row, state, token = model.first_row(), model.initial_state(1), 0
    for following in (3, 3, 1, 5):
        expected, state = model.predict(torch.tensor([token]), state)
        states = [part for layer in zip(*state, strict=True) for part in layer]
        torch.testing.assert_close(row, torch.cat([expected, *states], 1))
        row, token = model.follow(row, torch.tensor([following])), following


def test_bad_input():
    model, memory = transducer_of(4, [3])
    for options in ({"beam": 0}, {"nbest": 0}, {"max_symbols": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} is 0, expected at least 1"):
            transducer_beam(model, memory, **options)
    with pytest.raises(ValueError, match="max_symbols is 0, expected at least 1"):
        transducer_greedy(model, memory, max_symbols=0)
    assert math.isfinite(transducer_beam(model, memory)[0][0].score)
