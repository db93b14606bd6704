"""Latency: sums done by hand, and pairs of words against all that are possible."""

import itertools
import math
import random

import numpy as np
import pytest

from brctc.data import WordTime
from brctc.data.units import times_in
from brctc.evaluate import (
    Spread,
    common_words,
    computational_latency_ms,
    data_collecting_latency_ms,
    drift_latency,
)


def said(text: str, first_s: float = 0.0, step_s: float = 1.0) -> list[tuple[str, float, float]]:
    """A word every second, each half a second long."""
    words = enumerate(text.split())
    return [(word, first_s + k * step_s, first_s + k * step_s + 0.5) for k, word in words]


@pytest.mark.parametrize(
    ("chunk_ms", "right_context_ms", "rtf", "dcl_ms", "cl_ms"),
    [
        (160, 160, 0.176, 240, 28),
        (640, 640, 0.092, 960, 58),
        (160, 80, 0.175, 160, 28),
        (80, 40, 0.283, 80, 22),
    ],
)
def test_rows_of_the_papers_appendix_h(chunk_ms, right_context_ms, rtf, dcl_ms, cl_ms):
    assert data_collecting_latency_ms(chunk_ms, right_context_ms) == dcl_ms
    assert computational_latency_ms(chunk_ms, rtf) == pytest.approx(cl_ms, abs=1)


def test_drift_by_hand():
    """Starts at 0.1, 0.6 and 1.5 s; "blue" is heard as "new", so two words count."""
    reference = [("bin", 0.1, 0.4), ("blue", 0.6, 1.0), ("now", 1.5, 2.0)]
    hypothesis = [("bin", 0.2, 0.24), ("new", 0.8, 0.84), ("now", 1.6, 1.84)]
    found = drift_latency([reference], [hypothesis])
    # 0.24 - 0.1 and 1.84 - 1.5; the sentence was over at 2.0, and known 0.16 s before
    assert found.drift.counted == 2
    assert found.drift.mean_ms == found.drift.median_ms == pytest.approx(240)
    assert found.drift.p90_ms == pytest.approx(140 + 0.9 * 200)
    assert found.end_of_sentence.counted == 1
    assert found.end_of_sentence.mean_ms == pytest.approx(-160)
    assert found.without_reference == 0


def test_drift_of_characters_by_hand():
    """设定二十九度 is heard as 设定而十度; the reference knows words, whose characters share them evenly.

    Starts: 设定 0.2 to 0.6: 0.2, 0.4; 二十九 0.6 to 1.2: 0.6, 0.8, 1.0; 度 1.3. Ends of the predictions, and
    drifts of what both have: 设 0.5 (300 ms), 定 0.64 (240), 十 0.96 (160), 度 1.25 (-50).
    """
    text = "设定二十九度"
    words = [WordTime("设定", 0.2, 0.6), WordTime("二十九", 0.6, 1.2), WordTime("度", 1.3, 1.6)]
    ends = {"设": 0.5, "定": 0.64, "而": 0.8, "十": 0.96, "度": 1.25}
    hypothesis = [(character, end - 0.04, end) for character, end in ends.items()]
    found = drift_latency([times_in("char", words, text)], [hypothesis])
    assert found.drift.counted == 4
    assert found.drift.mean_ms == pytest.approx((300 + 240 + 160 - 50) / 4)
    assert found.drift.median_ms == pytest.approx((160 + 240) / 2)
    assert found.end_of_sentence[:2] == (1, pytest.approx(1250 - 1600))
    # of words, nothing is right: the sentence is one
    assert drift_latency([times_in("word", words, text)], [[("设定而十度", 0.4, 1.3)]]).drift.counted == 0


def test_drift_of_mixed_texts_by_hand():
    """想 0.1, 听 0.3, let 0.5, it 0.9, go 1.1: the word counts as one, from its first letter on."""
    text = "想听let it go"
    starts = {"想": 0.1, "听": 0.3, "let": 0.5, "it": 0.9, "go": 1.1}
    reference = [WordTime(unit, start, start + 0.2) for unit, start in starts.items()]
    ends = {"想": 0.4, "听": 0.5, "lat": 0.9, "it": 1.05, "go": 1.5}  # 300, 200, wrong, 150, 400
    hypothesis = [(unit, 0.0, end) for unit, end in ends.items()]
    found = drift_latency([times_in("char", reference, text)], [hypothesis]).drift
    assert found[:2] == (4, pytest.approx((300 + 200 + 150 + 400) / 4))


def test_a_corpus_is_one_pool_of_words():
    """The mean is over words, not over utterances: 0.5 three times, 1.5 once."""
    found = drift_latency([said("a b c"), said("d")], [said("a b c"), said("d", 1.0)])
    assert found.drift[:2] == (4, pytest.approx(750))
    assert found.drift.median_ms == pytest.approx(500)
    assert found.drift.p90_ms == pytest.approx(500 + 0.7 * 1000)  # place 2.7 of 0 to 3
    assert found.end_of_sentence[:2] == (2, pytest.approx(500))


def test_utterances_without_reference_are_counted_and_left_out():
    found = drift_latency([said("a"), None, None], [said("a"), said("b", 9.0), []])
    assert found == (*drift_latency([said("a")], [said("a")])[:2], 2)


@pytest.mark.parametrize(
    ("reference", "hypothesis", "counts"),
    [
        ("a b c", "a b c", True),
        ("a b c", "x c", True),
        ("a b c", "a b", False),  # the last word is missing
        ("a b c", "a b d", False),
        ("a b c", "a b c d", False),  # something was made up
        ("a b", "", False),
        ("", "a", False),
        ("", "", False),
    ],
)
def test_sentences_whose_end_counts(reference, hypothesis, counts):
    found = drift_latency([said(reference)], [said(hypothesis)])
    assert found.end_of_sentence.counted == counts
    assert math.isnan(found.end_of_sentence.mean_ms) != counts


def test_nothing_in_common():
    found = drift_latency([said("a b"), None], [said("c"), said("a")])
    assert found.drift.counted == 0
    assert all(math.isnan(value) for value in found.drift[1:])
    assert str(found.drift) == "none counted"
    assert found.without_reference == 1


@pytest.mark.parametrize(
    ("reference", "hypothesis", "pairs"),
    [
        # heard once, at 2 s: not the "a" of 0 s, and not that of 4 s
        ([("a", 0, 1), ("a", 2, 3), ("a", 4, 5)], [("a", 1.9, 2.1)], [(1, 0)]),
        # said once, at 2 s
        ([("a", 2, 3)], [("a", 0.1, 0.2), ("a", 2, 2.2), ("a", 4, 4.2)], [(0, 1)]),
        # "a b" and "a c" are equally long; c is nearer
        ([("a", 0, 1), ("b", 1, 2), ("c", 2, 3)], [("a", 0, 0), ("c", 2, 2), ("b", 9, 9)], [(0, 0), (2, 1)]),
        # longer wins over nearer
        ([("a", 0, 1), ("b", 1, 2), ("c", 2, 3)], [("c", 2, 2), ("a", 8, 8), ("b", 9, 9)], [(0, 1), (1, 2)]),
        # equally near: the earlier word, on either side
        ([("a", 1, 2), ("a", 3, 4)], [("a", 1, 2)], [(0, 0)]),
        ([("a", 2, 3)], [("a", 0, 1), ("a", 2, 3)], [(0, 0)]),
        ([("a", 1, 2), ("b", 1, 2)], [("b", 1, 1), ("a", 1, 1)], [(1, 0)]),
        ([], [("a", 0, 1)], []),
    ],
)
def test_which_words_are_paired(reference, hypothesis, pairs):
    assert common_words(reference, hypothesis) == pairs


def all_pairings(reference, hypothesis):
    for size in range(min(len(reference), len(hypothesis)) + 1):
        for places in itertools.combinations(range(len(reference)), size):
            for others in itertools.combinations(range(len(hypothesis)), size):
                pairs = list(zip(places, others, strict=True))
                if all(reference[r][0] == hypothesis[h][0] for r, h in pairs):
                    yield pairs


def test_pairs_are_the_best_of_all():
    generator = random.Random(0)
    for _ in range(200):
        reference, hypothesis = (
            [(generator.choice("abc"), generator.random(), generator.random()) for _ in range(size)]
            for size in (generator.randint(0, 6), generator.randint(0, 6))
        )

        def quality(pairs, reference=reference, hypothesis=hypothesis):
            return len(pairs), -sum(abs(hypothesis[h][2] - reference[r][1]) for r, h in pairs)

        best = max(map(quality, all_pairings(reference, hypothesis)))
        found = quality(common_words(reference, hypothesis))
        assert found == (best[0], pytest.approx(best[1], abs=1e-5))


def test_interval_of_independent_words_is_the_normal_one():
    """1000 utterances of one word whose drift has a standard deviation of 50 ms."""
    drifts_s = 0.3 + 0.05 * np.random.default_rng(1).standard_normal(1000)
    found = drift_latency([[("a", 1.0, 2.0)]] * 1000, [[("a", 1.0, 1.0 + d)] for d in drifts_s]).drift
    spread = 1.96 * 1000 * drifts_s.std() / math.sqrt(1000)
    assert found.mean_ms == pytest.approx(1000 * drifts_s.mean())
    assert found.low_ms == pytest.approx(found.mean_ms - spread, abs=0.3)
    assert found.high_ms == pytest.approx(found.mean_ms + spread, abs=0.3)


def test_interval_is_over_utterances_and_seeded():
    """Words of an utterance are late together: a hundred of them say as much as one."""
    late = np.random.default_rng(2).uniform(0, 0.1, 50)
    one = drift_latency([said("a")] * 50, [said("a", s) for s in late]).drift
    many = drift_latency([said("a " * 100)] * 50, [said("a " * 100, s) for s in late]).drift
    assert many[1:4] == pytest.approx(one[1:4])
    assert one.high_ms - one.low_ms > 10
    other = drift_latency([said("a")] * 50, [said("a", s) for s in late], seed=1).drift
    assert other[:2] == one[:2]
    assert other.low_ms != one.low_ms


def test_as_text():
    spread = Spread(6000, 231.6, 228.2, 235.0, 220.0, 310.4)
    assert str(spread) == "232 ms (228 to 235; median 220, 90% below 310; 6000 counted)"


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (data_collecting_latency_ms, (-1, 0), "chunk_ms is -1, expected a finite number from 0"),
        (data_collecting_latency_ms, (320, math.nan), "right_context_ms is nan"),
        (computational_latency_ms, (320, math.inf), "rtf is inf"),
        (drift_latency, ([[]], []), "1 references and 0 hypotheses"),
        (drift_latency, ([[]], [[("a", 0, math.nan)]]), "0: the hypothesis has 'a' from 0 to nan s"),
        (drift_latency, ([[("a", math.inf, 1)]], [[]]), "utterance 0: the reference has 'a' from inf to 1 s"),
    ],
)
def test_bad_input(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)
