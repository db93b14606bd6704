"""Errors against latency: what is compared with what, what nothing beats, what is chosen."""

import math
from dataclasses import replace

import pytest

from brctc.evaluate import Spread, TradeOff, Trial, choose, error_rate, pareto_front
from brctc.evaluate.online import OnlineEvaluation
from brctc.evaluate.results import from_json, to_json
from brctc.evaluate.trade_off import compare_trials
from brctc.report import plot_trade_off, to_markdown, trade_off_table
from brctc.report.trade_off_page import write_trade_off
from brctc.report.trade_off_table import paper_table

TEXTS = ("one two three four", "five six seven eight")


def spread(mean_ms):
    return Spread(8, mean_ms, mean_ms - 5, mean_ms + 5, mean_ms, mean_ms + 50)


def trial(method, drift_ms, wrong, chunk_ms=320.0, share=0.5):
    """So many of eight words are wrong; 100 ms are computation."""
    words = " ".join(TEXTS).split()
    said = ["no"] * wrong + words[wrong:]
    texts = (" ".join(said[:4]), " ".join(said[4:]))
    found = OnlineEvaluation(
        utterances=2,
        digest="",
        unit="word",
        error=error_rate(TEXTS, texts),
        texts=texts,
        chunk_ms=chunk_ms,
        right_context_ms=share * chunk_ms,
        rtf=100 / chunk_ms,
        dcl_ms=chunk_ms,
        cl_ms=100.0,
        drift=spread(drift_ms),
        end_of_sentence=spread(drift_ms),
        without_reference=0,
        streamed=2,
        streamed_drift=spread(drift_ms),
        observed=spread(chunk_ms + drift_ms + 110),
        observed_end_of_sentence=spread(drift_ms),
    )
    return Trial(f"{method}-{chunk_ms:g}", method, found)


PLAIN, SMALL = trial("plain", 200, 1), trial("plain", 250, 3, 160.0)
EARLY, WORSE = trial("early", 100, 2), trial("early", 210, 2)


def test_the_front_is_what_nothing_beats():
    assert [t.latency_ms for t in (PLAIN, SMALL, EARLY, WORSE)] == [620, 510, 520, 630]
    assert pareto_front([PLAIN, SMALL, EARLY, WORSE]) == [SMALL, EARLY, PLAIN]
    equal = trial("early", 200, 1)
    assert pareto_front([PLAIN, equal]) == [PLAIN, equal]
    silent = trial("silent", math.nan, 8)
    assert pareto_front([silent, PLAIN]) == [PLAIN]
    with pytest.raises(ValueError, match="no model gets a word right"):
        choose([silent], 100)
    plot_trade_off(TradeOff("digits", "test", TEXTS, (silent, EARLY), {}))


def test_the_most_exact_one_in_time_is_chosen():
    trials = [PLAIN, SMALL, EARLY, WORSE]
    assert choose(trials, 620) == PLAIN
    assert choose(trials, 619) == EARLY
    assert choose(trials, 510) == SMALL
    with pytest.raises(ValueError, match=r"nothing is within 509 ms; the fastest is plain-160: 37.50%"):
        choose(trials, 509)


def test_pairs_have_the_same_chunks():
    plain, small, early = compare_trials(TEXTS, [PLAIN, SMALL, EARLY])
    assert (plain.difference, small.difference) == (None, None)
    assert early.difference.difference == pytest.approx(1 / 8)
    (alone,) = compare_trials(TEXTS, [EARLY])
    assert alone.difference is None


def test_the_table_and_the_page(tmp_path):
    trials = compare_trials(TEXTS, [PLAIN, SMALL, EARLY, WORSE])
    found = TradeOff("digits", "test", TEXTS, trials, {"cores": "2"})
    text = to_markdown(trade_off_table(found))
    assert "| early ● | 320 + 160 | 520 | 320 | 100 (95 to 105) | 100 | 25.00 (" in text
    details = to_markdown(trade_off_table(found, "details"))
    assert "| early ● | 320 + 160 | 530 / 520 | 100, 150 | 100 | 100 | 0.31 |" in details
    assert "| early ● | 320 + 160 | 520 | 100 | 25.00 (" in to_markdown(trade_off_table(found, "terminal"))
    assert "| early | 320 + 160 | 630 |" in text
    assert from_json(TradeOff, to_json(found)) == found
    assert len(plot_trade_off(found).axes) == 4
    write_trade_off(found, tmp_path / "page.html", "the command")
    page = (tmp_path / "page.html").read_text()
    assert "plain needs at least 510 ms (37.50% errors)<" in page  # nothing is faster with fewer
    assert "lines join chunks" in page
    assert "small corpus" not in page  # these digits are nobody's
    assert "Nowhere on it" not in page
    assert "the command" in page
    with pytest.raises(ValueError, match="no trial"):
        TradeOff("digits", "test", TEXTS, (), {})


def test_no_word_right_is_no_latency():
    nothing = replace(EARLY, online=replace(EARLY.online, drift=spread(math.nan)))
    table = trade_off_table(TradeOff("mine", "test", TEXTS, (PLAIN, nothing), {}))
    assert "nan" not in to_markdown(table)
    assert table.rows[1][2] == "-"


def test_the_table_says_how_many_utterances_have_times():
    assert "DL of" not in trade_off_table(TradeOff("digits", "test", TEXTS, (PLAIN,), {})).groups[0].title
    untimed = replace(PLAIN, online=replace(PLAIN.online, without_reference=1))
    found = TradeOff("digits", "test", TEXTS, (untimed,), {})
    for place in ("terminal", "page", "details"):
        assert "DL of 1 of 2 utterances" in trade_off_table(found, place).groups[0].title


def test_settings_of_one_share_are_joined(tmp_path):
    settings = ((160, 0.5), (320, 0.5), (160, 0.25), (320, 1), (640, 1), (160, 2), (320, 1 / 3), (320, 0))
    trials = [trial("plain", 200, 1, float(chunk_ms), share) for chunk_ms, share in settings]
    found = TradeOff("digits", "test", TEXTS, tuple(trials), {})
    drifts = plot_trade_off(found).axes[0]
    points = {line.get_label(): line.get_xdata().tolist() for line in drifts.lines}
    assert points == {
        "plain, 1:0": [320],
        "plain, 4:1": [160],
        "plain, 3:1": [320],
        "plain, 2:1": [160, 320],
        "plain, 1:1": [320, 640],
        "plain, 1:2": [160],
    }
    write_trade_off(found, tmp_path / "page.html", "the command")
    page = (tmp_path / "page.html").read_text()
    assert "lines join chunks of different sizes; ratios are of chunk to look-ahead." in page
    one = TradeOff("digits", "test", TEXTS, tuple(trials[:2]), {})
    assert [line.get_label() for line in plot_trade_off(one).axes[0].lines] == ["plain"]


def test_models_with_chunks_of_one_size(tmp_path):
    trials = compare_trials(TEXTS, [PLAIN, trial("early", 100, 1)])
    write_trade_off(TradeOff("grid", "test", TEXTS, trials, {}), tmp_path / "page.html", "the command")
    page = (tmp_path / "page.html").read_text()
    assert "plain-320: 12.50% errors, 620 ms; early-320: 12.50% errors, 520 ms" in page
    assert "lines join chunks" not in page
    assert "small corpus" in page


def test_the_papers_sums():
    """Appendix H states the overall latency, too."""
    sums = [int(row[1]) for row in paper_table().rows]
    assert sums[:5] == [480, 474, 614, 850, 1090]
    assert sums[-5:] == [302, 311, 349, 447, 532]
    assert not any(math.isnan(value) for value in sums)
