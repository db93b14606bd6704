"""Latency where texts have no words: a model of Chinese characters, and what the manifest knows of them."""

import dataclasses

import numpy as np
import pytest

from brctc.data import (
    Prepared,
    Row,
    RowSource,
    Storage,
    WordTime,
    extract_features,
    load_audio,
    prepare_split,
    write_manifest,
)
from brctc.decode import Recognizer
from brctc.evaluate import evaluate_online, evaluate_runs
from tests.data.sounds import RATE, write
from tests.decode.test_streaming import sound
from tests.evaluate.online_toys import DRIFT_S, FEATURES, LENGTH_S, online_model, online_split, store

TEXT = "一二六ok"
HALF_FRAME_S = 0.02


@pytest.fixture(scope="module")
def chinese():
    return online_model("char", TEXT)


@pytest.fixture(scope="module")
def stored(chinese, tmp_path_factory):
    return store(chinese, tmp_path_factory.mktemp("model"))


def test_what_was_built_in_is_found(chinese, stored, tmp_path):
    split = online_split(tmp_path, chinese)
    found = evaluate_online(stored, split, streamed=4)
    timed = [unit for example in split.examples for unit in example.word_times or ()]
    assert found.unit == "char"
    assert {unit.word for unit in timed} == {"一", "六", "o"}
    assert found.drift.counted == len(timed) > 50
    assert found.drift[1:] == pytest.approx([1000 * DRIFT_S] * 5)
    assert found.streamed_drift[1:] == pytest.approx(found.drift[1:])
    assert found.end_of_sentence.mean_ms == pytest.approx(1000 * (DRIFT_S - LENGTH_S))
    assert found.observed.counted == found.streamed_drift.counted
    assert found.observed.mean_ms == pytest.approx(found.expected_ms, rel=0.15)


@pytest.fixture(scope="module")
def spoken(chinese, tmp_path_factory):
    """A row of what the model says of a noise; and where the prediction of each character ends, in the middle
    of its last frame."""
    path = write(tmp_path_factory.mktemp("audio") / "a.wav", sound(3, 5.0))
    features = extract_features(load_audio(path, RATE), FEATURES).astype(np.float16).astype(np.float32)
    (result,) = Recognizer(chinese).recognize([("", features)], "ctc-greedy")
    ends = [(time.word, time.end_s - HALF_FRAME_S) for time in result.word_times]
    return Row("a", result.text, path, 5.0), ends


def prepare(folder, row) -> Prepared:
    """From a manifest on the disk."""
    write_manifest(folder / "test.tsv", [row])
    storage = Storage.of_audio(FEATURES, "features", (1.0,))
    prepare_split(RowSource(folder / "test.tsv"), folder / "prepared", "test", storage)
    return Prepared(folder / "prepared", "test")


def test_times_of_characters_in_a_manifest(spoken, stored, tmp_path):
    row, ends = spoken
    times = tuple(WordTime(unit, max(end - 0.2, 0), end) for unit, end in ends)
    found = evaluate_online(stored, prepare(tmp_path, dataclasses.replace(row, word_times=times)))
    expected = [1000 * min(end, 0.2) for _, end in ends]
    assert found.drift.counted == len(ends) > 10
    assert found.drift.mean_ms == pytest.approx(np.mean(expected), abs=1e-3)
    assert found.error.errors == 0


def test_times_of_words_are_shared_by_their_characters(spoken, stored, tmp_path):
    """Words of two: the second character begins when half of the word is over."""
    row, ends = spoken
    pairs = [ends[k : k + 2] for k in range(0, len(ends), 2)]
    times, expected = [], []
    for pair in pairs:
        start_s, length_s = max(pair[0][1] - 0.3, 0.0), 0.1 * len(pair)
        times.append(WordTime("".join(unit for unit, _ in pair), start_s, start_s + length_s))
        expected += [1000 * (end - start_s - 0.1 * k) for k, (_, end) in enumerate(pair)]
    split = prepare(tmp_path, dataclasses.replace(row, word_times=tuple(times)))
    assert split.examples[0].word_times == tuple(
        (word, pytest.approx(start_s, abs=1e-6), pytest.approx(end_s, abs=1e-6))
        for word, start_s, end_s in times
    )
    found = evaluate_online(stored, split)
    assert found.drift.counted == len(ends)
    assert found.drift.mean_ms == pytest.approx(np.mean(expected), abs=1e-2)
    # in words, the sentence is one, from its first start to its last prediction
    assert " " not in row.text
    whole = evaluate_online(stored, split, unit="word").drift
    assert whole[:2] == (1, pytest.approx(1000 * (ends[-1][1] - times[0].start_s), abs=1e-2))


def test_a_model_of_words_is_measured_as_the_first_one(spoken, stored, tmp_path):
    """Its characters are predicted with the words that they are part of, and they are the wrong ones here."""
    row, ends = spoken
    split = prepare(
        tmp_path, dataclasses.replace(row, word_times=tuple(WordTime(u, 0.1, 0.2) for u, _ in ends))
    )
    words = store(online_model("word", "一二 六"), tmp_path / "words")
    first, second = evaluate_runs({"char": stored, "word": words}, split).trials
    assert [first.online.unit, second.online.unit] == ["char", "char"]
    assert first.online.drift.counted == len(ends)
    assert 0 < second.online.drift.counted < len(ends)
