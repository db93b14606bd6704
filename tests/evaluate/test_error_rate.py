"""Error rates: cases counted by hand, jiwer, and intervals whose truth is known."""

import math
import random

import jiwer
import numpy as np
import pytest

from brctc.evaluate import bootstrap, compare, error_rate


def test_counted_by_hand():
    # one substitution; one deletion; two insertions into an empty reference
    found = error_rate(["a b c", "d e", ""], ["a x c", "d", "y z"])
    assert found[:3] == (4, 5, 4 / 5)
    assert (found.substitutions, found.deletions, found.insertions) == (1, 1, 2)
    assert found.low <= found.rate <= found.high


def test_characters_with_single_spaces_between_words():
    # "ab cd" against "ab  xd ": one substitution in five characters
    found = error_rate(["ab cd"], ["ab  xd "], unit="char")
    assert found[:3] == (1, 5, 1 / 5)
    assert error_rate(["你好吗"], ["你吗"], unit="char")[:3] == (1, 3, 1 / 3)


def random_texts(count: int, seed: int) -> tuple[list[str], list[str]]:
    generator = random.Random(seed)
    references, hypotheses = [], []
    for _ in range(count):
        words = generator.choices(["one", "two", "three", "four"], k=generator.randint(1, 9))
        references.append(" ".join(words))
        noisy = []
        for word in words:
            event = generator.random()
            noisy += [word] if event > 0.2 else [] if event > 0.1 else [word, "five"]
        hypotheses.append(" ".join(noisy))
    return references, hypotheses


@pytest.mark.parametrize("unit", ["word", "char"])
def test_agrees_with_jiwer(unit):
    references, hypotheses = random_texts(200, seed=1)
    found = error_rate(references, hypotheses, unit)
    oracle = (jiwer.process_words if unit == "word" else jiwer.process_characters)(references, hypotheses)
    assert found.errors == oracle.substitutions + oracle.deletions + oracle.insertions
    assert found.tokens == oracle.hits + oracle.substitutions + oracle.deletions
    assert found.rate == pytest.approx(oracle.wer if unit == "word" else oracle.cer)


def test_interval_of_independent_words_is_the_binomial_one():
    """1000 utterances of one word, 10% wrong: the interval is known in closed form."""
    references = ["a"] * 1000
    hypotheses = ["b"] * 100 + ["a"] * 900
    found = error_rate(references, hypotheses)
    spread = 1.96 * math.sqrt(0.1 * 0.9 / 1000)
    assert found.low == pytest.approx(0.1 - spread, abs=0.002)
    assert found.high == pytest.approx(0.1 + spread, abs=0.002)


def test_interval_covers_the_truth_as_often_as_it_says():
    """Errors come in bursts (all or nothing per utterance); the true rate is 20%."""
    generator = np.random.default_rng(3)
    covered = 0
    for trial in range(100):
        wrong = generator.random(150) < 0.2
        found = error_rate(["a b c"] * 150, ["x y z" if bad else "a b c" for bad in wrong], seed=trial)
        covered += found.low <= 0.2 <= found.high
    assert 88 <= covered <= 100


def test_interval_is_seeded_and_without_errors_is_a_point():
    references, hypotheses = random_texts(50, seed=2)
    assert error_rate(references, hypotheses, seed=7) == error_rate(references, hypotheses, seed=7)
    assert error_rate(references, hypotheses, seed=7).low != error_rate(references, hypotheses, seed=8).low
    assert error_rate(references, references)[:5] == (0, error_rate(references, references).tokens, 0, 0, 0)


def test_blocks_of_resamples_are_all_used(monkeypatch):
    references, hypotheses = random_texts(60, seed=4)
    whole = error_rate(references, hypotheses)
    monkeypatch.setattr(bootstrap, "BLOCK", 7 * 60)
    assert error_rate(references, hypotheses) == whole  # numpy's draws do not depend on the shape


def test_comparison_is_paired():
    """b makes one error more in 10 of 400 utterances, on top of the errors that both make."""
    references = ["a b c d e"] * 400
    hard = ["x y z d e" if n % 4 == 0 else "a b c d e" for n in range(400)]
    harder = ["x y z d w" if n % 40 == 0 else text for n, text in enumerate(hard)]
    found = compare(references, hard, harder)
    assert found.rate_a == pytest.approx(300 / 2000)
    assert found.difference == pytest.approx(10 / 2000) == pytest.approx(found.rate_b - found.rate_a)
    assert 0 < found.low < found.difference < found.high
    assert found.probability_b_better < 0.01
    # not paired, the two intervals overlap: nothing could be said
    assert error_rate(references, hard).high > error_rate(references, harder).low
    # the spread of a sum of 10 rare events among 400
    spread = 1.96 * math.sqrt(400 * 0.025 * 0.975) / 2000
    assert (found.high - found.low) / 2 == pytest.approx(spread, rel=0.1)


def test_comparison_of_a_system_with_itself():
    references, hypotheses = random_texts(30, seed=5)
    found = compare(references, hypotheses, hypotheses)
    assert (found.difference, found.low, found.high, found.probability_b_better) == (0, 0, 0, 0.5)


def test_resamples_of_mostly_empty_references():
    found = error_rate(["", "", "a"], ["", "", "b"])
    assert (found.rate, found.low, found.high) == (1, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((["a"], ["a", "b"]), ValueError, "1 references and 2 hypotheses"),
        ((["", " "], ["a", "b"]), ValueError, "the 2 references hold no word"),
        (([], []), ValueError, "the 0 references hold no word"),
        ((["a"], ["a"], "phone"), ValueError, 'unit is \'phone\', expected "word" or "char"'),
        (("a", ["a"]), TypeError, "references is one string"),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        error_rate(*arguments)
