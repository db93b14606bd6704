"""Each kind of fault in a source is found, all in one go, and what was there stays."""

import dataclasses
import re

import numpy as np
import pytest
import torch

from brctc.data import (
    ExampleError,
    Loaded,
    PreparationError,
    Prepared,
    Problem,
    Row,
    RowSource,
    Storage,
    TokenConfig,
    Tokenizer,
    extract_features,
    load_audio,
    prepare_split,
    read_manifest,
    write_manifest,
)
from brctc.data.checks import LengthCheck
from brctc.data.split import splits_in
from brctc.data.subsampling import frames_to_enter, subsampled_frames, subsampled_lengths
from tests.data.folders import contents, states
from tests.data.preparing import CONFIG, good_rows, prepare
from tests.data.sounds import RATE, cut_off, noise, set_flac_total, set_wav_rate, write
from tests.data.splits import ArrayItem, ArraySource


@pytest.fixture
def good(tmp_path):
    return good_rows(tmp_path)


@pytest.fixture
def planted(good, tmp_path):
    """A manifest with every kind of fault, and what is to be said of each."""
    audio = tmp_path / "audio"
    cut_off(write(audio / "cut.flac", noise(1.0, 5)))
    cut_off(write(audio / "cut.wav", noise(1.0, 6)))
    (audio / "empty.wav").touch()
    (audio / "text.wav").write_text("no audio")
    write(audio / "tiny.wav", noise(0.002, 7))
    set_wav_rate(write(audio / "1Hz.wav", noise(1.0, 8)), 1)
    set_wav_rate(write(audio / "2GHz.wav", noise(1.0, 8)), 2**31 - 1)
    set_flac_total(write(audio / "total.flac", noise(1.0, 8)), 2**20)
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
        "letters": (
            dataclasses.replace(a, id="letters", text="tw owords"),
            "word_times say 'two words', the text says 'tw owords'",
        ),
        "tiny": (Row("tiny", "x", audio / "tiny.wav", 0.002), "too short for one frame"),
        "slow": (Row("slow", "x", audio / "1Hz.wav", 16000.0), "a sample rate of 1 Hz"),
        "fast": (Row("fast", "x", audio / "2GHz.wav", 0.001), "a sample rate of 2147483647 Hz"),
        "total": (Row("total", "x", audio / "total.flac", 65.536), "truncated"),
        "b": (Row("b", "again", a.path, 1.0), "the id is used by an earlier row"),
    }
    path = tmp_path / "planted.tsv"
    write_manifest(path, [*good, *(row for row, _ in faults.values())])
    with path.open("a") as file:
        file.write("malformed\tx\n")
    expected = {id: what for id, (_, what) in faults.items()} | {"malformed": "2 fields, expected"}
    return path, expected


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_planted_fault_is_listed(planted, tmp_path, jobs):
    path, expected = planted
    with pytest.raises(PreparationError) as caught:
        prepare(path, tmp_path / "out", jobs=jobs)
    found = {problem.id: problem.what for problem in caught.value.problems}
    assert len(caught.value.problems) == len(expected)
    assert found.keys() == expected.keys()
    for id, what in expected.items():
        assert what in found[id]
        assert f"{id}: " in str(caught.value)
    assert f"planted.tsv: {len(expected)} problems" in str(caught.value)
    assert contents(tmp_path / "out") == {}
    assert splits_in(tmp_path / "out") == []


def test_what_was_there_stays_when_something_is_wrong(planted, good, tmp_path):
    path, _ = planted
    prepare(good, tmp_path / "out")
    before = states(tmp_path / "out")
    with pytest.raises(PreparationError):
        prepare(path, tmp_path / "out")
    assert states(tmp_path / "out") == before
    assert len(Prepared(tmp_path / "out", "train").examples) == 5


def test_bad_rows_are_left_out_only_on_request_and_never_silently(planted, good, tmp_path):
    path, expected = planted
    summary = prepare(path, tmp_path / "out", skip_bad=True)
    assert {problem.id for problem in summary.skipped} == set(expected)
    assert len(summary.skipped) == len(expected)
    found = Prepared(tmp_path / "out", "train")
    assert [example.id for example in found.examples] == [row.id for row in good]
    assert found.examples[2].texts == {"transcript": "b"}  # the first of two equal ids
    again = prepare(path, tmp_path / "out", skip_bad=True)  # kept, and what was left out is told again
    assert again == summary


def test_a_file_of_unknown_length_is_as_good_as_any(good, tmp_path):
    """What a pipe leaves in the header of a FLAC file stopped a whole corpus once."""
    audio = tmp_path / "audio"
    rows = [
        *good,
        Row("piped", "x", set_flac_total(write(audio / "0.flac", noise(0.5, 7)), 0), 0.5),
        Row("absurd", "x", set_flac_total(write(audio / "1.flac", noise(0.5, 8)), 2**36 - 1), 0.5),
        Row("part", "x", audio / "0.flac", 0.25, None, 4000, 4000),
    ]
    assert prepare(rows, tmp_path / "out").examples == 8
    found = Prepared(tmp_path / "out", "train")
    expected = extract_features(load_audio(write(audio / "known.flac", noise(0.5, 7)), RATE), CONFIG)
    np.testing.assert_array_equal(found.features(5), expected.astype(np.float16))


def test_a_row_with_two_faults_is_told_both(tmp_path):
    row = Row("u", "", tmp_path / "gone.wav", 1.0)
    with pytest.raises(PreparationError) as caught:
        prepare([row], tmp_path / "out")
    assert [problem.id for problem in caught.value.problems] == ["u", "u"]
    first, second = (problem.what for problem in caught.value.problems)
    assert first == "the text is empty"
    assert "no such file" in second


def test_fit_depends_on_tokens_subsampling_and_speed(tmp_path):
    path, out = write(tmp_path / "a.wav", noise(1.0)), tmp_path / "out"
    just = [Row("just", "abcdefghij klmnopqrstuvw", path, 1.0)]  # 24 characters, 24 frames
    prepare(just, out)
    with pytest.raises(PreparationError, match=re.escape("just_sp1.1: the transcript is too long")):
        prepare(just, out, speeds=(1.0, 1.1))
    summary = prepare(just, out, speeds=(1.0, 1.1), skip_bad=True)
    assert summary.examples == 1
    assert [problem.id for problem in summary.skipped] == ["just_sp1.1"]
    assert [example.id for example in Prepared(out, "train").examples] == ["just"]
    more = [Row("more", "abcdefghij klmnopqrstuvwx", path, 1.0)]
    with pytest.raises(PreparationError, match="need 25 frames, the audio has 24 after 4x subsampling"):
        prepare(more, out)
    prepare(more, out, check=LengthCheck(TokenConfig(), 2))
    prepare(more, out, "words", check=LengthCheck(TokenConfig(kind="word"), 4))
    tokenizer = Tokenizer.train([more[0].text] * 9, TokenConfig(kind="bpe", size=40))
    prepare(more, out, "bpe", check=LengthCheck(tokenizer, 4))
    prepare(more, out, "attention", check=LengthCheck(TokenConfig(), 4, too_long="ignored"))
    letters = Tokenizer.train(["abcdefghijklmnopqrstuvwx "], TokenConfig(kind="bpe", size=28))
    with pytest.raises(PreparationError, match=r"tokens \(bpe\) need 2\d frames, the audio has 24"):
        prepare(more, out, "letters", check=LengthCheck(letters, 4))


def test_copies_that_do_not_fit_are_left_out_alone(tmp_path):
    """Of an utterance that fits at two speeds, these are kept, and counted."""
    path = write(tmp_path / "a.wav", noise(1.0))
    rows = [Row("just", "abcdefghij klmnopqrstuvw", path, 1.0), Row("short", "x", path, 1.0)]
    summary = prepare(rows, tmp_path / "out", speeds=(0.9, 1.0, 1.1), skip_bad=True)
    found = Prepared(tmp_path / "out", "train")
    ids = ["just_sp0.9", "just", "short_sp0.9", "short", "short_sp1.1"]
    assert [example.id for example in found.examples] == ids
    assert len(found) == summary.examples == 5
    assert summary.num_frames == sum(example.num_frames for example in found.examples)
    assert [problem.id for problem in summary.skipped] == ["just_sp1.1"]
    every = np.concatenate([found.features(i) for i in range(5)])
    torch.testing.assert_close(found.statistics()[0], torch.from_numpy(every.mean(0)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_subsampling_is_the_encoders(factor):
    from brctc.models.subsampling import Subsampling

    layer = Subsampling(factor, 8, 2, 4)
    for frames in range(7, 40):
        given = subsampled_frames(frames, factor)
        out, lengths = layer(torch.zeros(1, frames, 8), torch.tensor([frames]))
        assert out.shape[1] == lengths.item() == given
        assert subsampled_lengths(torch.tensor([frames]), factor).tolist() == [given]
        least = frames_to_enter(torch.tensor([given]), factor).item()
        assert subsampled_frames(least, factor) == given
        assert subsampled_frames(least - 1, factor) == given - 1


def test_nothing_to_prepare(tmp_path):
    path = tmp_path / "m.tsv"
    write_manifest(path, [])
    assert read_manifest(path) == []
    with pytest.raises(ValueError, match=r"m\.tsv has no rows"):
        prepare(path, tmp_path / "out")
    with pytest.raises(PreparationError, match="u: the text is empty"):  # nothing would be left
        prepare([Row("u", "", tmp_path / "gone.wav", 1.0)], tmp_path / "out", skip_bad=True)
    assert splits_in(tmp_path / "out") == []


def test_audio_too_short_for_the_encoder(good, tmp_path):
    path = write(tmp_path / "audio" / "short.wav", noise(0.06, 9))
    rows = [*good, Row("short", "word", path, 0.06)]
    with pytest.raises(
        PreparationError, match=r"short: the audio is too short: 4x subsampling leaves nothing"
    ):
        prepare(rows, tmp_path / "out")
    summary = prepare(rows, tmp_path / "out", skip_bad=True)
    assert summary.examples == len(good)


def test_ids_that_end_like_a_copy(good, tmp_path):
    rows = [dataclasses.replace(good[0], id="a_sp0.9"), dataclasses.replace(good[0], id="b_sp1.2")]
    prepare(rows, tmp_path / "plain")  # at one speed there are no copies
    with pytest.raises(PreparationError, match=r"1 problem\s+a_sp0.9: the id ends like that of a copy"):
        prepare(rows, tmp_path / "out", speeds=(0.9, 1.0, 1.1))


def test_duplicates_in_different_shards(good, tmp_path):
    many = [dataclasses.replace(good[2], id=f"u{n % 120}") for n in range(130)]
    with pytest.raises(PreparationError) as caught:
        prepare(many, tmp_path / "out", jobs=2)
    assert caught.value.problems == [Problem(f"u{n}", "the id is used by an earlier row") for n in range(10)]


def test_split_names(tmp_path):
    source = ArraySource([ArrayItem("u", {"transcript": "t"}, np.zeros((3, 2)))])
    for split in ("", "a/b", "../x", "a b", ".", "-"):
        with pytest.raises(ValueError, match="expected a name of letters"):
            prepare_split(source, tmp_path, split, Storage("features", None, 2, 0.01))
        with pytest.raises(ValueError, match="expected a name of letters"):
            Prepared(tmp_path, split)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("jobs", [0, -1])
def test_no_processes(good, tmp_path, jobs):
    with pytest.raises(ValueError, match=f"jobs is {jobs}, expected at least 1"):
        prepare(good, tmp_path, jobs=jobs)


def test_features_that_cannot_be_stored(tmp_path):
    wrong = {
        "wide": np.zeros((3, 3)),
        "flat": np.zeros(3),
        "none": np.zeros((0, 2)),
        "nan": np.full((3, 2), np.nan),
        "infinite": np.full((3, 2), np.inf),
        "large": np.full((3, 2), 1e6),
    }
    items = [ArrayItem("good", {"transcript": "t"}, np.zeros((3, 2)))]
    items += [ArrayItem(id, {"transcript": "t"}, features) for id, features in wrong.items()]
    shape = Storage("features", None, 2, 0.01)
    with pytest.raises(PreparationError) as caught:
        prepare_split(ArraySource(items), tmp_path, "x", shape)
    found = dict(caught.value.problems)
    assert found.keys() == wrong.keys()
    assert found["wide"] == "features of shape (3, 3), expected (T, 2)"
    assert found["flat"] == "features of shape (3,), expected (T, 2)"
    assert "too short for one frame" in found["none"]
    for id in ("nan", "infinite", "large"):
        assert "not finite or beyond float16's range" in found[id]
    summary = prepare_split(ArraySource(items), tmp_path, "x", shape, skip_bad=True)
    assert summary.examples == len(Prepared(tmp_path, "x").examples) == 1


class Unlucky(ArraySource):
    """Its items do to a library what damaged files do."""

    def load(self, item: ArrayItem) -> Loaded:
        errors = {
            "memory": MemoryError(),
            "recursion": RecursionError("too deep"),
            "key": KeyError("x"),
            "mute": ValueError(),
            "two": ExampleError("first", "second"),
        }
        if item.id in errors:
            raise errors[item.id]
        return super().load(item)


def test_whatever_a_file_does_it_costs_one_example(tmp_path):
    ids = ["a", "memory", "recursion", "key", "mute", "two", "b"]
    source = Unlucky([ArrayItem(id, {"transcript": "t"}, np.zeros((3, 2))) for id in ids])
    shape = Storage("features", None, 2, 0.01)
    expected = [
        ("memory", "MemoryError: "),
        ("recursion", "RecursionError: too deep"),
        ("key", "KeyError: 'x'"),
        ("mute", "ValueError: "),
        ("two", "first"),
        ("two", "second"),
    ]
    with pytest.raises(PreparationError) as caught:
        prepare_split(source, tmp_path, "x", shape)
    assert caught.value.problems == expected
    summary = prepare_split(source, tmp_path, "x", shape, skip_bad=True)
    assert list(summary.skipped) == expected
    assert [example.id for example in Prepared(tmp_path, "x").examples] == ["a", "b"]


def test_speech_and_texts_are_not_mixed_up(good, tmp_path):
    texts = [Row("t", "guten Tag", translation="good day")]
    with pytest.raises(PreparationError, match=r"t: there is no audio, only text"):
        prepare([good[0], *texts], tmp_path / "out")
    with pytest.raises(PreparationError, match=r"a: there is no text with its translation, but transcript"):
        prepare_split(RowSource([*texts, good[0]]), tmp_path / "out", "x", Storage("text"))
