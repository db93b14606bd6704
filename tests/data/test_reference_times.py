"""Forced alignment: what fails is named and goes on; on real speech, how near it is to known times."""

import dataclasses

import numpy as np
import pytest

from brctc.data import (
    Aligner,
    AlignmentError,
    Row,
    WordTime,
    find_reference_times,
    load_audio,
    read_manifest,
    reference_times,
)
from tests.data.sounds import DATA, RATE, cut_off, needs, noise, write


@pytest.fixture(scope="module")
def aligner():
    return Aligner()


@pytest.mark.parametrize(
    ("text", "seconds", "message"),
    [
        ("", 1, "the text is empty"),
        ("bin zzyzx blue Qwxy zzyzx", 1, "not in the dictionary: zzyzx, qwxy$"),
        ("bin blue 10", 1, "not in the dictionary: 10"),
        ("naïve", 1, "not in the dictionary: naïve"),
        ("bin <sil> blue", 1, "not in the dictionary: <sil>"),
        ("bin blue", 1, "no alignment found"),  # it is noise
        ("bin blue", 0.01, "no alignment found"),
        ("bin blue", 0, "no alignment found"),
    ],
)
def test_texts_that_cannot_be_aligned(aligner, text, seconds, message):
    with pytest.raises(AlignmentError, match=message):
        aligner.align(text, noise(seconds))


def test_digital_silence_has_no_words(aligner):
    with pytest.raises(AlignmentError, match="no alignment found"):
        aligner.align("bin blue", np.zeros(RATE, np.float32))


def test_words_are_looked_up_in_lower_case(aligner):
    with pytest.raises(AlignmentError, match="no alignment found"):  # so the dictionary has all of them
        aligner.align("Don't STOP", noise(1))


def test_pocketsphinx_giving_up_costs_one_utterance(monkeypatch):
    aligner = Aligner()

    class Broken:
        def lookup_word(self, word):
            return "AH"

        def reinit_feat(self):
            raise RuntimeError("Failed to reinitialize")

    monkeypatch.setattr(aligner, "_decoder", Broken())
    with pytest.raises(AlignmentError, match="pocketsphinx gave up: Failed to reinitialize"):
        aligner.align("zzyzx", noise(1))
    with pytest.raises(AlignmentError, match="not in the dictionary: zzyzx"):
        aligner.align("zzyzx", noise(1))


class Halves:
    """An aligner for which the words share the audio evenly, and "no" is not a word."""

    def align(self, text: str, samples: np.ndarray) -> tuple[WordTime, ...]:
        if text == "no":
            raise AlignmentError("not in the dictionary: no")
        words = text.split()
        each = len(samples) / RATE / len(words)
        return tuple(WordTime(word, k * each, (k + 1) * each) for k, word in enumerate(words))


@pytest.fixture
def rows(tmp_path):
    shared = write(tmp_path / "shared.wav", noise(3))
    known = (WordTime("a", 0.1, 0.4), WordTime("b", 0.5, 1.0))
    return [
        Row("late", "a b", shared, 1.0, start_sample=2 * RATE, num_samples=RATE),
        Row("missing", "a b", tmp_path / "missing.wav", 1.0),
        Row("known", "a b", write(tmp_path / "8k.wav", noise(1, rate=8000), 8000), 1.0, word_times=known),
        Row("no", "no", shared, 1.0, num_samples=RATE, word_times=(WordTime("no", 0, 1),)),
        Row("cut", "a b", cut_off(write(tmp_path / "cut.wav", noise(1))), 1.0),
        Row("duration", "a b", shared, 1.0),
        Row("early", "c", shared, 1.0, start_sample=0, num_samples=RATE),
    ]


EVEN = (WordTime("a", 0.0, 0.5), WordTime("b", 0.5, 1.0))


def test_rows(rows, monkeypatch):
    monkeypatch.setattr(reference_times, "Aligner", Halves)
    seen = []
    found = find_reference_times(rows, progress=lambda *now: seen.append(now))
    assert seen == [(i, 7) for i in range(1, 8)]
    times = {row.id: row.word_times for row in found.rows}
    assert list(times) == [row.id for row in rows]
    assert times["late"] == EVEN
    assert times["early"] == (WordTime("c", 0.0, 1.0),)
    for kept in (1, 2, 3, 4, 5):  # known before, or failed
        assert found.rows[kept] == rows[kept]
    assert found.aligned == 3
    assert [failure.id for failure in found.failures] == ["missing", "no", "cut", "duration"]
    reasons = ["missing.wav: no such file", "dictionary: no", "cut.wav: truncated", "3.00 s of audio"]
    for failure, reason in zip(found.failures, reasons, strict=True):
        assert reason in failure.what
    np.testing.assert_allclose(found.start_differences_ms, [-100, 0], atol=1e-9)
    np.testing.assert_allclose(found.end_differences_ms, [100, 0], atol=1e-9)


def test_known_times_are_replaced_where_it_is_said(rows, monkeypatch):
    monkeypatch.setattr(reference_times, "Aligner", Halves)
    found = find_reference_times(rows, replace=True)
    times = {row.id: row.word_times for row in found.rows}
    assert times["known"] == EVEN
    assert times["no"] == rows[3].word_times  # it failed
    assert len(found.start_differences_ms) == 2


def test_times_of_another_text_are_not_compared(rows, monkeypatch):
    monkeypatch.setattr(reference_times, "Aligner", Halves)
    other = dataclasses.replace(rows[2], text="a c")
    assert len(find_reference_times([other]).start_differences_ms) == 0


def test_the_extra_is_asked_for(rows, monkeypatch):
    monkeypatch.setattr("brctc.extras.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs pocketsphinx here: .*, pip install '.\[align\]'"):
        find_reference_times(rows)


def test_texts_without_audio_are_named(rows, monkeypatch):
    monkeypatch.setattr(reference_times, "Aligner", Halves)
    found = find_reference_times([rows[0], Row("text", "a b", translation="c d")])
    assert [str(failure) for failure in found.failures] == ["text: text: there is no audio, only text"]
    assert found.rows[0].word_times == EVEN


@needs("grid_s1")
def test_near_the_times_of_grid():
    rows = read_manifest(DATA / "grid_s1" / "manifest.tsv")[::50]
    found = find_reference_times([dataclasses.replace(row, word_times=None) for row in rows])
    assert found.failures == []
    assert found.aligned == len(rows) == 20
    assert len(found.start_differences_ms) == 0
    compared = find_reference_times(rows)
    assert compared.rows == rows
    for differences in (compared.start_differences_ms, compared.end_differences_ms):
        assert len(differences) == 120
        assert np.median(np.abs(differences)) <= 20 + 1e-6
        assert np.percentile(np.abs(differences), 90) < 80
    for row in found.rows:
        assert [time.word for time in row.word_times] == row.text.split()
        edges = [edge for time in row.word_times for edge in time[1:]]
        assert edges == sorted(edges)
        assert 0 < edges[0] < edges[-1] < row.duration


@needs("grid_s1")
def test_times_do_not_depend_on_case_or_what_came_before(aligner):
    row = read_manifest(DATA / "grid_s1" / "manifest.tsv")[5]
    samples = load_audio(row.path, RATE, row.start_sample, row.num_samples)
    first = aligner.align(row.text, samples)
    with pytest.raises(AlignmentError):
        aligner.align("bin blue", noise(1))
    assert aligner.align(row.text, samples) == first == Aligner().align(row.text, samples)
    shouted = aligner.align(row.text.upper(), samples)
    assert [time.word for time in shouted] == row.text.upper().split()
    assert [time[1:] for time in shouted] == [time[1:] for time in first]
    with pytest.raises(AlignmentError, match="no alignment found"):
        aligner.align(" ".join([row.text] * 4), samples)


@needs("grid_s1")
def test_audio_of_another_rate(tmp_path):
    row = read_manifest(DATA / "grid_s1" / "manifest.tsv")[5]
    samples = load_audio(row.path, 44100, row.start_sample, row.num_samples)
    path = write(tmp_path / "a.wav", np.stack([samples, samples], 1), 44100)
    copy = dataclasses.replace(row, path=path, start_sample=None, num_samples=None)
    found = find_reference_times([row, dataclasses.replace(copy, id="copy")], replace=True)
    for time, other in zip(*(row.word_times for row in found.rows), strict=True):
        assert other[1:] == pytest.approx(time[1:], abs=0.021)
