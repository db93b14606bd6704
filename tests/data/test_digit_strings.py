"""Strings of spoken digits, made of published recordings."""

from pathlib import Path

import numpy as np
import pytest

from brctc.data import (
    FeatureConfig,
    PreparationError,
    Prepared,
    load_audio,
)
from brctc.data.corpora.digit_strings import (
    NOISE_RMS,
    SPEECH_RMS,
    WORDS,
    find_recordings,
    load_clips,
    sound_edges,
)
from brctc.data.split import splits_in
from tests.data.corpora import DIGITS, SPLITS, corpus_of, prepare, text_of
from tests.data.folders import contents
from tests.data.sounds import DATA, RATE, cut_off, needs, noise, write, write_digits


@pytest.fixture(scope="module")
def audiomnist(tmp_path_factory) -> Path:
    return write_digits(tmp_path_factory.mktemp("AudioMNIST") / "data")


def test_digit_strings_from_the_published_layout(audiomnist, tmp_path):
    out = tmp_path / "a"
    summaries = prepare("digit-strings", out, source=audiomnist, **DIGITS)
    assert [summaries[split].examples for split in SPLITS] == [90, 6, 8]
    speakers = {}
    for split in SPLITS:
        found = Prepared(out, split)
        assert found.feature_dim == 80
        assert found.feature_config == FeatureConfig()
        speakers[split] = {example.speaker for example in found.examples}
        for index, example in enumerate(found.examples):
            words = text_of(example).split()
            assert [time.word for time in example.word_times] == words
            assert set(words) <= set(WORDS)
            assert (1 if split == "train" else 3) <= len(words) <= 5
            end = 0.0
            for word, start_s, end_s in example.word_times:
                speed = 0.9 if "_sp0.9" in example.id else 1.1 if "_sp1.1" in example.id else 1.0
                assert 0 <= (start_s - end) * speed <= 0.3 + 1e-5
                expected_s = (20 + WORDS.index(word) + int(example.speaker)) / 100 / speed
                assert end_s - start_s == pytest.approx(expected_s, abs=2e-4)
                end = end_s
                # the tone sounds between these times, and only noise before the first
                level = found.features(index).max(1)
                assert level[round((start_s + end_s) * 50)] > -2
            silent = level[: max(0, round(example.word_times[0].start_s * 100) - 2)]
            assert (silent < -5).all()
            assert (example.duration_s - end) * speed <= 0.3 + 0.01
    assert [len(speakers[split]) for split in SPLITS] == [2, 1, 2]
    assert len(set().union(*speakers.values())) == 5
    ids = [example.id for example in Prepared(out, "train").examples]
    assert {i.removesuffix("_sp0.9").removesuffix("_sp1.1") for i in ids} == {
        f"train-{i:05d}" for i in range(30)
    }
    lengths = {len(text_of(example).split()) for example in Prepared(out, "train").examples}
    assert lengths == {1, 2, 3, 4, 5}
    prepare("digit-strings", tmp_path / "b", source=audiomnist.parent, **DIGITS)  # data/01/...
    for split in SPLITS:
        assert Prepared(out, split).digest() == Prepared(tmp_path / "b", split).digest()


@pytest.mark.slow
def test_digit_strings_do_not_depend_on_the_number_of_processes(audiomnist, tmp_path):
    options = {**DIGITS, "train_strings": 120, "source": audiomnist, "speeds": (1.0,)}
    for jobs in (1, 2):
        prepare("digit-strings", tmp_path / str(jobs), jobs=jobs, **options)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_changed_recordings_are_noticed(audiomnist, tmp_path):
    source = write_digits(tmp_path / "data")
    corpus = corpus_of("digit-strings", tmp_path / "out", source=source, **DIGITS)
    before = {split: made.digest() for split, made in corpus.sources().items()}
    assert before == {split: made.digest() for split, made in corpus.sources().items()}
    for path in source.glob("*/3_*.wav"):  # as long as before
        samples = len(load_audio(path, 48000))
        write(path, 0.1 * noise(1, rate=48000)[:samples], 48000)
    after = {split: made.digest() for split, made in corpus.sources().items()}
    assert all(before[split] != after[split] for split in SPLITS)


def test_levels_are_made_equal(audiomnist):
    for rows in find_recordings(audiomnist).values():
        for clips in load_clips(rows, RATE).values():
            assert np.sqrt(np.square(clips[0].samples).mean()) == pytest.approx(SPEECH_RMS, rel=1e-3)
    assert NOISE_RMS < SPEECH_RMS / 50


@pytest.mark.parametrize("rumble", [0.0, 0.02])
def test_words_begin_with_their_sound(rumble):
    """A weak hiss, then a tone, in a clip with noise and a slow rumble around them."""
    samples = 0.0005 * np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    seconds = np.arange(RATE) / RATE
    samples += (rumble * np.sin(2 * np.pi * 12 * seconds)).astype(np.float32)
    samples[4000:5000] += 0.05 * noise(1.0)[:1000]
    samples[5000:9600] += 0.1 * np.sin(2 * np.pi * 200 * seconds[5000:9600]).astype(np.float32)
    samples[100:140] += 0.3  # a click
    first, behind = sound_edges(samples, RATE)
    assert (first, behind) == (pytest.approx(4000, abs=160), pytest.approx(9600, abs=160))
    assert sound_edges(samples[:100], RATE) == (0, 100)
    assert sound_edges(np.ones(RATE, np.float32), RATE) == (0, RATE)


def test_strings_that_espeak_speaks(audiomnist, tmp_path):
    """Some of the training strings, and at other levels; the others are as they were."""
    pytest.importorskip("espeakng_loader")
    options = {**DIGITS, "source": audiomnist, "speeds": (1.0,), "train_strings": 12}
    mixed = {"synthetic_share": 0.5, "voices": ("m2", "f5"), "levels_db": (-20.0, -10.0)}
    prepare("digit-strings", tmp_path / "plain", **options)
    prepare("digit-strings", tmp_path / "mixed", **options, **mixed)
    plain, found = (Prepared(tmp_path / name, "train") for name in ("plain", "mixed"))
    others = {example.id: (i, example) for i, example in enumerate(plain.examples)}
    spoken = [example for example in found.examples if example.speaker in ("m2", "f5")]
    assert 0 < len(spoken) < len(found.examples) == 12
    for example in spoken:
        assert [time.word for time in example.word_times] == text_of(example).split()
        assert set(text_of(example).split()) <= set(WORDS)
    for index, example in enumerate(found.examples):
        if example not in spoken:
            before, known = others[example.id]
            assert (example.texts, example.word_times) == (known.texts, known.word_times)
            louder = (found.features(index) - plain.features(before)).mean() * 10 / np.log(10)
            assert -20.5 < louder < -9.5
    known, same = (Prepared(tmp_path / name, "dev") for name in ("plain", "mixed"))
    assert all(np.array_equal(known.features(i), same.features(i)) for i in range(len(known)))
    with pytest.raises(ValueError, match="espeak has no voice 'm99'"):
        prepare("digit-strings", tmp_path / "no", **options, synthetic_share=0.1, voices=("m99",))


def test_digit_strings_need_good_recordings(audiomnist, tmp_path):
    with pytest.raises(ValueError, match=r"holds neither manifest\.tsv nor AudioMNIST"):
        prepare("digit-strings", tmp_path / "out", source=tmp_path)
    with pytest.raises(ValueError, match="5 speakers; dev_speakers 4 and test_speakers 12 leave none"):
        prepare("digit-strings", tmp_path / "out", source=audiomnist)
    write(tmp_path / "a.wav", noise(0.5))
    write(tmp_path / "b.wav", 0 * noise(0.5))
    header = "id\tspeaker\ttext\tpath\tduration\n"
    (tmp_path / "m.tsv").write_text(header + "u1\t\tone\ta.wav\t0.5\nu2\ts\tone two\ta.wav\t0.5\n")
    with pytest.raises(PreparationError, match=r"2 problems\s+u1: the speaker is empty\s+u2: .*'one two'"):
        prepare("digit-strings", tmp_path / "out", source=tmp_path / "m.tsv")
    (tmp_path / "m.tsv").write_text(
        header + "".join(f"{s}-{f}\t{s}\tone\t{f}.wav\t0.5\n" for s in "xyz" for f in "ab")
    )
    one_each = {"dev_speakers": 1, "test_speakers": 1}
    with pytest.raises(PreparationError, match=r"1 problem\s+speaker .: .-b: .*b\.wav: silence") as caught:
        prepare("digit-strings", tmp_path / "out", source=tmp_path / "m.tsv", **one_each)
    assert len(caught.value.problems) == 1  # of thousands of strings that would need it
    cut_off(tmp_path / "b.wav")
    with pytest.raises(PreparationError, match=r"1 problem\s+speaker .: .-b: .*b\.wav: truncated"):
        prepare("digit-strings", tmp_path / "out", source=tmp_path / "m.tsv", **one_each)
    assert splits_in(tmp_path / "out") == []


@needs("audiomnist")
def test_digit_strings_from_real_recordings(tmp_path):
    sizes = {"train_strings": 12, "dev_strings": 4, "test_strings": 12, "speeds": (1.0,)}
    prepare("digit-strings", tmp_path, source=DATA / "audiomnist", **sizes)
    rows_of = find_recordings(DATA / "audiomnist")
    sounds: dict[tuple[str, str], set[int]] = {}
    before_s = []
    speakers = []
    for split in SPLITS:
        found = Prepared(tmp_path, split)
        speakers.append({example.speaker for example in found.examples})
        for example in found.examples:
            assert [time.word for time in example.word_times] == text_of(example).split()
            for word, start_s, end_s in example.word_times:
                if (example.speaker, word) not in sounds:
                    for said, clips in load_clips(rows_of[example.speaker], RATE).items():
                        sounds[example.speaker, said] = {b - a for _, (a, b) in clips}
                        before_s += [clip.sound[0] / RATE for clip in clips]
                assert round((end_s - start_s) * RATE) in sounds[example.speaker, word]
    assert not speakers[0] & speakers[2]
    assert not speakers[0] & speakers[1]
    assert len(speakers[2]) == 12
    assert 0.08 < np.median(before_s) < 0.1  # a clip begins so long before its word
