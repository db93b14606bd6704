"""The corpora built in: what they promise of splits, times and repeatability."""

from pathlib import Path

import numpy as np
import pytest

from brctc.data import PreparationError, Prepared, prepare_corpus, read_manifest, write_manifest
from brctc.data.corpora import HandwritingConfig, handwriting
from brctc.data.corpora.digit_strings import NOISE_RMS, SPEECH_RMS, WORDS, load_clips
from tests.data.sounds import DATA, RATE, needs, noise, write, write_digits

SPLITS = ("train", "dev", "test")


def same_files(first: Path, second: Path) -> bool:
    names = {path.name for path in first.iterdir()}
    assert names == {path.name for path in second.iterdir()}
    return all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


HANDWRITING = {"train_strings": 120, "dev_strings": 20, "test_strings": 40}


def test_handwriting(tmp_path):
    seen = []
    summaries = prepare_corpus(
        "handwriting", tmp_path / "a", **HANDWRITING, progress=lambda *now: seen.append(now)
    )
    assert [summaries[split].utterances for split in SPLITS] == [120, 20, 40]
    assert seen == [(i, 180) for i in range(1, 181)]
    used = {}
    for split in SPLITS:
        found = Prepared(tmp_path / "a", split)
        assert found.feature_dim == 8
        assert found.feature_config is None
        used[split] = set()
        lengths = {len(utterance.text) for utterance in found.utterances}
        assert lengths <= set(range(1 if split == "train" else 3, 9))
        assert len(lengths) >= 5
        for index, utterance in enumerate(found.utterances):
            columns = found.features(index)
            assert columns.min() >= 0
            assert columns.max() <= 1
            ink = np.zeros(len(columns), bool)
            assert "".join(time.word for time in utterance.word_times) == utterance.text
            for _, start_s, end_s in utterance.word_times:
                start, end = round(start_s * 100), round(end_s * 100)
                assert end - start == 16
                assert not ink[start:end].any()  # no two digits in one column
                ink[start:end] = True
                np.testing.assert_array_equal(columns[start:end:2], columns[start + 1 : end : 2])
                used[split].add(columns[start:end:2].tobytes())
            assert not columns[~ink].any()
            assert len(columns) - ink.sum() <= 4 * (len(utterance.text) + 1)
    assert not used["train"] & used["test"]
    assert not used["train"] & used["dev"]
    assert not used["dev"] & used["test"]
    images, digits = handwriting.load_images()
    known = {image.T.tobytes(): digit for image, digit in zip(images, digits, strict=True)}
    assert set().union(*used.values()) <= set(known)  # real images, in [0, 1], without rounding
    first = Prepared(tmp_path / "a", "test")
    start = round(first.utterances[0].word_times[0].start_s * 100)
    assert str(known[first.features(0)[start : start + 16 : 2].tobytes()]) == first.utterances[0].text[0]

    prepare_corpus("handwriting", tmp_path / "b", **HANDWRITING)
    assert same_files(tmp_path / "a", tmp_path / "b")
    prepare_corpus("handwriting", tmp_path / "c", **HANDWRITING, seed=1)
    assert not same_files(tmp_path / "a", tmp_path / "c")


def test_more_strings_do_not_change_the_first(tmp_path):
    prepare_corpus("handwriting", tmp_path / "a", **HANDWRITING)
    prepare_corpus("handwriting", tmp_path / "b", **{**HANDWRITING, "test_strings": 50})
    fewer, more = Prepared(tmp_path / "a", "test"), Prepared(tmp_path / "b", "test")
    assert more.utterances[:40] == fewer.utterances


DIGITS = {
    "train_strings": 30,
    "dev_strings": 6,
    "test_strings": 8,
    "dev_speakers": 1,
    "test_speakers": 2,
    "max_digits": 5,
}


@pytest.fixture(scope="module")
def audiomnist(tmp_path_factory) -> Path:
    return write_digits(tmp_path_factory.mktemp("AudioMNIST") / "data")


def test_digit_strings_from_the_published_layout(audiomnist, tmp_path):
    out = tmp_path / "a"
    summaries = prepare_corpus("digit-strings", out, source=audiomnist, **DIGITS)
    assert [summaries[split].utterances for split in SPLITS] == [90, 6, 8]
    speakers = {}
    for split in SPLITS:
        found = Prepared(out, split)
        assert found.feature_dim == 80
        speakers[split] = {u.speaker for u in found.utterances}
        for index, utterance in enumerate(found.utterances):
            words = utterance.text.split()
            assert [time.word for time in utterance.word_times] == words
            assert set(words) <= set(WORDS)
            assert (1 if split == "train" else 3) <= len(words) <= 5
            end = 0.0
            for word, start_s, end_s in utterance.word_times:
                speed = 0.9 if "_sp0.9" in utterance.id else 1.1 if "_sp1.1" in utterance.id else 1.0
                assert 0 <= (start_s - end) * speed <= 0.3 + 1e-5
                expected_s = (20 + WORDS.index(word) + int(utterance.speaker)) / 100 / speed
                assert end_s - start_s == pytest.approx(expected_s, abs=2e-4)
                end = end_s
                # the tone sounds between these times, and only noise before the first
                level = found.features(index).max(1)
                assert level[round((start_s + end_s) * 50)] > -2
            silent = level[: max(0, round(utterance.word_times[0].start_s * 100) - 2)]
            assert (silent < -5).all()
            assert (utterance.duration_s - end) * speed <= 0.3 + 0.01
    assert [len(speakers[split]) for split in SPLITS] == [2, 1, 2]
    assert len(set().union(*speakers.values())) == 5
    ids = [u.id for u in Prepared(out, "train").utterances]
    assert {i.removesuffix("_sp0.9").removesuffix("_sp1.1") for i in ids} == {
        f"train-{i:05d}" for i in range(30)
    }
    assert {len(u.text.split()) for u in Prepared(out, "train").utterances} == {1, 2, 3, 4, 5}
    prepare_corpus("digit-strings", tmp_path / "b", source=audiomnist.parent, **DIGITS)  # data/01/...
    assert same_files(out, tmp_path / "b")


def test_levels_are_made_equal(audiomnist):
    from brctc.data.corpora.digit_strings import find_recordings

    for rows in find_recordings(audiomnist).values():
        for clips in load_clips(rows, RATE).values():
            assert np.sqrt(np.square(clips[0]).mean()) == pytest.approx(SPEECH_RMS, rel=1e-3)
    assert NOISE_RMS < SPEECH_RMS / 50


def test_digit_strings_need_good_recordings(audiomnist, tmp_path):
    with pytest.raises(ValueError, match=r"holds neither manifest\.tsv nor AudioMNIST"):
        prepare_corpus("digit-strings", tmp_path / "out", source=tmp_path)
    with pytest.raises(ValueError, match="5 speakers; dev_speakers 4 and test_speakers 12 leave none"):
        prepare_corpus("digit-strings", tmp_path / "out", source=audiomnist)
    write(tmp_path / "a.wav", noise(0.5))
    write(tmp_path / "b.wav", 0 * noise(0.5))
    header = "id\tspeaker\ttext\tpath\tduration\n"
    (tmp_path / "m.tsv").write_text(header + "u1\t\tone\ta.wav\t0.5\nu2\ts\tone two\ta.wav\t0.5\n")
    with pytest.raises(PreparationError, match=r"2 problems\s+u1: the speaker is empty\s+u2: .*'one two'"):
        prepare_corpus("digit-strings", tmp_path / "out", source=tmp_path / "m.tsv")
    (tmp_path / "m.tsv").write_text(
        header + "".join(f"{s}-{f}\t{s}\tone\t{f}.wav\t0.5\n" for s in "xyz" for f in "ab")
    )
    with pytest.raises(PreparationError, match=r"speaker .: 1 problem\s+.-b: .*b\.wav: silence"):
        prepare_corpus(
            "digit-strings", tmp_path / "out", source=tmp_path / "m.tsv", dev_speakers=1, test_speakers=1
        )


@needs("audiomnist")
def test_digit_strings_from_real_recordings(tmp_path):
    sizes = {"train_strings": 12, "dev_strings": 4, "test_strings": 12, "speeds": (1.0,)}
    prepare_corpus("digit-strings", tmp_path, source=DATA / "audiomnist", **sizes)
    rows = read_manifest(DATA / "audiomnist" / "manifest.tsv")
    clips = {(row.speaker, row.text, row.num_samples) for row in rows}
    speakers = []
    for split in SPLITS:
        found = Prepared(tmp_path, split)
        speakers.append({u.speaker for u in found.utterances})
        for utterance in found.utterances:
            assert [time.word for time in utterance.word_times] == utterance.text.split()
            for word, start_s, end_s in utterance.word_times:
                assert (utterance.speaker, word, round((end_s - start_s) * RATE)) in clips
    assert not speakers[0] & speakers[2]
    assert not speakers[0] & speakers[1]
    assert len(speakers[2]) == 12


@needs("grid_s1")
def test_grid(tmp_path):
    rows = {row.id: row for row in read_manifest(DATA / "grid_s1" / "manifest.tsv")[::25]}
    write_manifest(tmp_path / "m.tsv", list(rows.values()))
    sizes = {"dev_sentences": 5, "test_sentences": 15}
    summaries = prepare_corpus("grid", tmp_path / "a", source=tmp_path / "m.tsv", **sizes)
    assert [summaries[split].utterances for split in SPLITS] == [60, 5, 15]
    ids = []
    for split in SPLITS:
        for utterance in Prepared(tmp_path / "a", split).utterances:
            if "_sp" in utterance.id:
                continue
            ids.append(utterance.id)
            row = rows[utterance.id]
            assert utterance.text == row.text
            assert utterance.word_times == row.word_times
            assert utterance.duration_s == pytest.approx(row.duration, abs=0.005)
    assert sorted(ids) == sorted(rows)
    with pytest.raises(ValueError, match="40 sentences, dev and test alone take 40"):
        prepare_corpus("grid", tmp_path / "b", source=tmp_path / "m.tsv", dev_sentences=20, test_sentences=20)


def test_wrong_names_get_the_nearest(tmp_path):
    with pytest.raises(ValueError, match="no corpus 'handwritting': did you mean 'handwriting'"):
        prepare_corpus("handwritting", tmp_path)
    with pytest.raises(ValueError, match="no corpus 'digits': did you mean 'digit-strings'"):
        prepare_corpus("digits", tmp_path)
    with pytest.raises(ValueError, match="There are: handwriting, digit-strings, grid"):
        prepare_corpus("xyz", tmp_path)
    with pytest.raises(ValueError, match="no option 'train_string': did you mean 'train_strings'"):
        prepare_corpus("handwriting", tmp_path, train_string=3)
    with pytest.raises(ValueError, match="handwriting: train_strings: Input should be greater"):
        prepare_corpus("handwriting", tmp_path, train_strings=0)
    with pytest.raises(ValueError, match="grid: source: Field required"):
        prepare_corpus("grid", tmp_path)
    with pytest.raises(ValueError, match="min_digits 9 is above max_digits 8"):
        HandwritingConfig(min_digits=9)
