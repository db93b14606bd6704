"""A manifest becomes a split; each kind of fault is found, in one go."""

import dataclasses
import re

import numpy as np
import pytest
import torch

from brctc.data import (
    FeatureConfig,
    PreparationError,
    Prepared,
    Row,
    TokenConfig,
    Tokenizer,
    WordTime,
    fbank,
    load_audio,
    prepare_manifest,
    read_manifest,
    write_manifest,
)
from brctc.data.prepare import subsampled
from tests.data.sounds import RATE, cut_off, noise, write


@pytest.fixture
def good(tmp_path):
    """Five rows: two files of their own, one at 8 kHz, and two that share a file."""
    write(tmp_path / "audio" / "a.wav", noise(1.0, 1))
    write(tmp_path / "audio" / "b.flac", noise(0.75, 2))
    write(tmp_path / "audio" / "c.wav", noise(0.6, 3, rate=8000), 8000)
    write(tmp_path / "audio" / "shared.flac", noise(2, 4))
    shared = tmp_path / "audio" / "shared.flac"
    times = (WordTime("two", 0.1, 0.3), WordTime("words", 0.3, 0.8))
    return [
        Row("a", "two words", tmp_path / "audio" / "a.wav", 1.0, "s1", word_times=times),
        Row("late", "late", shared, 0.5, "s2", 20000, 8000),
        Row("b", "b", tmp_path / "audio" / "b.flac", 0.75),
        Row("c", "c", tmp_path / "audio" / "c.wav", 0.6),
        Row("early", "early", shared, 0.25, "s2", 100, 4000),
    ]


def test_features_are_those_of_the_audio(good, tmp_path):
    manifest = tmp_path / "train.tsv"
    write_manifest(manifest, good)
    summary = prepare_manifest(manifest, tmp_path / "out", "train")
    found = Prepared(tmp_path / "out", "train")
    rows = {row.id: row for row in good}
    assert {u.id for u in found.utterances} == set(rows)
    for index, utterance in enumerate(found.utterances):
        row = rows[utterance.id]
        assert (utterance.text, utterance.speaker, utterance.word_times) == (
            row.text,
            row.speaker,
            row.word_times,
        )
        assert utterance.duration_s == pytest.approx(row.duration)
        expected = fbank(load_audio(row.path, RATE, row.start_sample or 0, row.num_samples), FeatureConfig())
        np.testing.assert_allclose(found.features(index), expected, atol=0.01)
    assert summary.utterances == 5
    assert summary.duration_s == pytest.approx(3.1)
    assert summary.words == 6
    assert summary.speakers == 2
    assert summary.resampled == (8000,)
    assert summary.skipped == ()
    assert "train: 5 utterances" in str(summary)
    assert "resampled from 8000 Hz" in str(summary)


def test_speeds(good, tmp_path):
    prepare_manifest(good[:1], tmp_path / "out", "train", speeds=(0.9, 1.0, 1.1))
    slow, plain, fast = Prepared(tmp_path / "out", "train").utterances
    assert [slow.id, plain.id, fast.id] == ["a_sp0.9", "a", "a_sp1.1"]
    assert [slow.num_frames, plain.num_frames, fast.num_frames] == [111, 100, 91]
    assert slow.word_times == (("two", 0.111111, 0.333333), ("words", 0.333333, 0.888889))
    assert plain.word_times == good[0].word_times
    assert fast.text == "two words"
    assert fast.speaker == "s1"


def test_progress_and_repeatability(good, tmp_path):
    seen = []
    for name in ("one", "two"):
        prepare_manifest(good, tmp_path / name, "x", progress=lambda done, total: seen.append((done, total)))
    assert seen == 2 * [(i, 5) for i in range(1, 6)]
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


@pytest.fixture
def planted(good, tmp_path):
    """A manifest with every kind of fault, and what is to be said of each."""
    audio = tmp_path / "audio"
    cut_off(write(audio / "cut.flac", noise(1.0, 5)))
    cut_off(write(audio / "cut.wav", noise(1.0, 6)))
    (audio / "empty.wav").touch()
    (audio / "text.wav").write_text("no audio")
    write(audio / "tiny.wav", noise(0.002, 7))
    a = good[0]
    faults = {
        "missing": (Row("missing", "x", audio / "gone.wav", 1.0), "no such file"),
        "cut-flac": (Row("cut-flac", "x", audio / "cut.flac", 1.0), "truncated"),
        "cut-wav": (Row("cut-wav", "x", audio / "cut.wav", 1.0), "truncated"),
        "empty": (Row("empty", "x", audio / "empty.wav", 1.0), "the file is empty"),
        "letter": (Row("letter", "x", audio / "text.wav", 1.0), "not readable as audio"),
        "silent": (Row("silent", "", a.path, 1.0), "the text is empty"),
        "long": (Row("long", "abcdefghijklmnopqrstuvwxyz", a.path, 1.0), "26 tokens (char) need 26 frames"),
        "repeats": (Row("repeats", "aaaaaaaaaaaaaaa", a.path, 1.0), "need 29 frames, the audio has 24 after"),
        "beyond": (Row("beyond", "x", a.path, 1.0, None, 8000, 9000), "samples 8000 to 17000"),
        "hurried": (Row("hurried", "x", a.path, 0.5), "1.00 s of audio, the manifest says 0.50 s"),
        "garbled": (Row("garbled", "fa\ufffdade\x07", a.path, 1.0), "not text: U+0007, U+FFFD"),
        "renamed": (
            dataclasses.replace(a, id="renamed", text="other words"),
            "word_times say 'two words', the text says 'other words'",
        ),
        "unordered": (
            dataclasses.replace(
                a, id="unordered", word_times=tuple(reversed(a.word_times)), text="words two"
            ),
            "have 'two' from 0.1 to 0.3 s: out of order",
        ),
        "tiny": (Row("tiny", "x", audio / "tiny.wav", 0.002), "too short for one frame"),
        "b": (Row("b", "again", a.path, 1.0), "the id is used by an earlier row"),
    }
    path = tmp_path / "planted.tsv"
    write_manifest(path, [*good, *(row for row, _ in faults.values())])
    with path.open("a") as file:
        file.write("malformed\tx\n")
    expected = {id: what for id, (_, what) in faults.items()} | {"malformed": "2 fields, expected"}
    return path, expected


def test_every_planted_fault_is_listed(planted, tmp_path):
    path, expected = planted
    with pytest.raises(PreparationError) as caught:
        prepare_manifest(path, tmp_path / "out", "train")
    found = {problem.id: problem.what for problem in caught.value.problems}
    assert len(caught.value.problems) == len(expected)
    assert found.keys() == expected.keys()
    for id, what in expected.items():
        assert what in found[id]
        assert f"{id}: " in str(caught.value)
    assert f"planted.tsv: {len(expected)} problems" in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_bad_rows_are_left_out_only_on_request_and_never_silently(planted, good, tmp_path):
    path, expected = planted
    summary = prepare_manifest(path, tmp_path / "out", "train", skip_bad=True)
    assert {problem.id for problem in summary.skipped} == set(expected)
    assert f"{len(expected)} left out:" in str(summary)
    found = Prepared(tmp_path / "out", "train")
    assert {u.id for u in found.utterances} == {row.id for row in good}
    kept = next(u for u in found.utterances if u.id == "b")
    assert kept.text == "b"  # the first of two equal ids


def test_a_row_with_two_faults_is_told_both(tmp_path):
    path = cut_off(write(tmp_path / "cut.wav", noise(1.0)))
    with pytest.raises(PreparationError) as caught:
        prepare_manifest([Row("u", "", path, 1.0)], tmp_path / "out", "x")
    first, second = (problem.what for problem in caught.value.problems)
    assert first == "the text is empty"
    assert "truncated" in second


def test_fit_depends_on_tokens_subsampling_and_speed(tmp_path):
    path, out = write(tmp_path / "a.wav", noise(1.0)), tmp_path / "out"
    just = [Row("just", "abcdefghij klmnopqrstuvw", path, 1.0)]  # 24 characters, 24 frames
    prepare_manifest(just, out, "x")
    with pytest.raises(PreparationError, match=re.escape("just_sp1.1: the transcript is too long")):
        prepare_manifest(just, out, "x", speeds=(1.0, 1.1))
    summary = prepare_manifest(just, out, "x", speeds=(1.0, 1.1), skip_bad=True)
    assert summary.utterances == 1
    assert [problem.id for problem in summary.skipped] == ["just_sp1.1"]
    more = [Row("more", "abcdefghij klmnopqrstuvwx", path, 1.0)]
    with pytest.raises(PreparationError, match="need 25 frames, the audio has 24 after 4x subsampling"):
        prepare_manifest(more, out, "x")
    prepare_manifest(more, out, "x", subsampling=2)
    prepare_manifest(more, out, "x", tokens=TokenConfig(kind="word"))
    prepare_manifest(
        more, out, "x", tokens=Tokenizer.train([more[0].text] * 9, TokenConfig(kind="bpe", size=40))
    )


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_subsampling_is_the_encoders(factor):
    from brctc.models import subsampled_lengths

    frames = torch.arange(200)
    expected = subsampled_lengths(frames, factor).clamp(min=0)
    assert [subsampled(n, factor) for n in frames.tolist()] == expected.tolist()


def test_nothing_to_prepare(tmp_path):
    path = tmp_path / "m.tsv"
    write_manifest(path, [])
    assert read_manifest(path) == []
    with pytest.raises(ValueError, match=r"m\.tsv has no rows"):
        prepare_manifest(path, tmp_path / "out", "x")
    with pytest.raises(ValueError, match="would be empty"):
        prepare_manifest([Row("u", "", tmp_path / "gone.wav", 1.0)], tmp_path / "out", "x", skip_bad=True)


def test_audio_too_short_for_the_encoder(good, tmp_path):
    path = write(tmp_path / "audio" / "short.wav", noise(0.06, 9))
    rows = [*good, Row("short", "word", path, 0.06)]
    with pytest.raises(
        PreparationError, match=r"short: the audio is too short: 4x subsampling leaves nothing"
    ):
        prepare_manifest(rows, tmp_path / "out", "train")
    summary = prepare_manifest(rows, tmp_path / "out", "train", skip_bad=True)
    assert summary.utterances == len(good)
