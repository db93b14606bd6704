"""MuST-C in its published layout: talks as wav files, and where their sentences are in YAML."""

import logging
import shutil

import numpy as np
import pytest
import soundfile

from brctc.data import FeatureConfig, PreparationError, Prepared, extract_features, prepare_corpus
from brctc.data.corpora.must_c_v2 import Place, read_places
from brctc.data.split import splits_in
from tests.cli.commands import brctc
from tests.data.corpora import corpus_of, prepare
from tests.data.folders import contents, states
from tests.data.pairs import write_lines
from tests.data.published import (
    ENGLISH,
    GERMAN,
    MUST_C_SPLITS,
    PLACES,
    TALKS,
    entry,
    write_must_c,
    write_talks,
)


@pytest.fixture
def published(tmp_path):
    return write_must_c(tmp_path / "must-c")


def test_splits(published, tmp_path):
    corpus = corpus_of("must-c-v2", tmp_path / "out", source=published, speeds=[1.0])
    assert list(corpus.split_names()) == MUST_C_SPLITS
    assert corpus.test_names() == ["tst-COMMON", "tst-HE"]
    summaries = prepare_corpus(corpus)
    assert [summary.examples for summary in summaries.values()] == [4, 4, 4, 4]
    train = Prepared(tmp_path / "out", "train")
    assert {example.id: tuple(example.texts.values()) for example in train.examples} == {
        "ted_767_0000": ("Hello there.", "Hallo."),
        "ted_767_0001": ("(Applause) So, I said: “no”.", "(Applaus) Ich sagte also: „Nein“."),
        "ted_767_0002": ("It's 3.5 &amp; more.", "Es sind 3,5 &amp; mehr."),
        "ted_1_0000": ("Thank you.", "Danke."),
    }
    assert all(list(example.texts) == ["transcript", "translation"] for example in train.examples)
    assert [example.speaker for example in train.examples] == ["spk.767"] * 3 + ["spk.1"]
    assert [example.duration_s for example in train.examples] == [1.5, 0.99, 2.0, 1.0]
    for number, (wav, (start, duration)) in enumerate(zip(TALKS, PLACES, strict=True)):
        path = published / "en-de" / "data" / "tst-HE" / "wav" / wav
        samples, rate = soundfile.read(path, dtype="float32")
        by_hand = samples[round(start * rate) : round((start + duration) * rate)]  # one ends after the talk
        expected = extract_features(by_hand, FeatureConfig()).astype(np.float16)
        np.testing.assert_array_equal(Prepared(tmp_path / "out", "tst-HE").features(number), expected)
    before = states(tmp_path / "out")
    prepare_corpus(corpus)
    assert states(tmp_path / "out") == before


def test_the_folder_of_the_languages_and_several_processes(published, tmp_path):
    prepare("must-c-v2", tmp_path / "a", source=published / "en-de", store="audio")
    prepare("must-c-v2", tmp_path / "b", source=published / "en-de", store="audio", jobs=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_other_languages_and_fewer_test_sets(published, tmp_path):
    for split in ("train", "dev", "tst-COMMON"):
        write_talks(published / "en-zh" / "data" / split, "zh")
    corpus = corpus_of("must-c-v2", tmp_path / "out", source=published, languages="en-zh")
    assert list(corpus.split_names()) == MUST_C_SPLITS[:3]
    assert corpus.sources()["train"].size() == 4
    elsewhere = corpus_of("must-c-v2", tmp_path / "out", source=tmp_path / "nowhere")
    assert list(elsewhere.split_names()) == ["train", "dev"]  # prepared elsewhere


@pytest.mark.parametrize(
    ("content", "places"),
    [
        ("- {duration: 3, offset: 0, rW: 9, uW: 0, speaker_id: spk.1, wav: a.wav}\n", [("a.wav", 0, 3)]),
        ("- {wav: 'a, b.wav', speaker_id: spk.1, offset: 1e-2, duration: 2.5}", [("a, b.wav", 0.01, 2.5)]),
        (
            "- {duration: 3.5, offset: 1.0,\n    speaker_id: spk.1, wav: a.wav}\n\n"
            "- {duration: 1.0, offset: 4.5, speaker_id: spk.1, wav: a.wav}\n",
            [("a.wav", 1, 3.5), ("a.wav", 4.5, 1)],
        ),
        ("", []),
    ],
)
def test_places(tmp_path, content, places):
    (tmp_path / "x.yaml").write_text(content)
    assert list(read_places(tmp_path / "x.yaml")) == [Place(*place, "spk.1") for place in places]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- duration: 3\n  wav: a.wav\n", r"x\.yaml: line 1 is not - \{duration: \.\.\., offset"),
        ("- {duration: 3,\n  offset: 1.0\n", r"x\.yaml: line 1 is not - "),
        ("\n- {duration: 3, offset: 1}\n", r"x\.yaml: line 2 is '- \{duration: 3, offset: 1\}', expected - "),
        ("- {duration: a, offset: 1, speaker_id: s, wav: w}", r"x\.yaml: line 1 is .*, expected - "),
        ("- {duration: 3, offset: [, speaker_id: s, wav: w}", r"x\.yaml: line 1 is .*, expected - "),
        ("{}", r"x\.yaml: line 1 is '\{\}', expected - "),
        (
            "- {duration: 0, offset: 1, speaker_id: s, wav: w}",
            r"x\.yaml: line 1 has the offset 1 and the duration 0$",
        ),
        (
            "- {duration: .nan, offset: 1, speaker_id: s, wav: w}",
            r"x\.yaml: line 1 has the offset 1 and the duration nan$",
        ),
    ],
)
def test_places_that_are_none(tmp_path, content, message):
    (tmp_path / "x.yaml").write_text(content)
    with pytest.raises(ValueError, match=message):
        list(read_places(tmp_path / "x.yaml"))


def test_empty_sides_are_counted(published, tmp_path, caplog):
    text = published / "en-de" / "data" / "train" / "txt"
    write_lines(text / "train.en", (ENGLISH[0], "", *ENGLISH[2:]))
    write_lines(text / "train.de", (*GERMAN[:3], "  "))
    with caplog.at_level(logging.WARNING, "brctc.data"):
        summaries = prepare("must-c-v2", tmp_path / "out", source=published, speeds=[1.0])
    assert summaries["train"].examples == 2
    folder = text.parent
    told = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert told == [f"{folder} (en-de): left out: 2 with an empty side (ted_767_0001 first)"]
    examples = Prepared(tmp_path / "out", "train").examples
    assert [example.id for example in examples] == ["ted_767_0000", "ted_767_0002"]  # as they were counted


def test_unequal_lengths(published, tmp_path):
    for name, lines, counts in (
        ("tst-HE.de", GERMAN[:3], "4 entries, tst-HE.en 4 lines, tst-HE.de 3 lines"),
        ("tst-HE.en", (*ENGLISH, "More."), "4 entries, tst-HE.en 5 lines, tst-HE.de 3 lines"),
        ("tst-HE.yaml", (entry("ted_1.wav", 0, 1),), "1 entries, tst-HE.en 5 lines, tst-HE.de 3 lines"),
    ):
        write_lines(published / "en-de" / "data" / "tst-HE" / "txt" / name, lines)
        with pytest.raises(ValueError, match=rf"tst-HE\.yaml has {counts}: they do not go together"):
            prepare("must-c-v2", tmp_path / "out", source=published)
        assert not splits_in(tmp_path / "out")  # before anything is prepared


def test_what_is_missing_is_named(published, tmp_path):
    data = published / "en-de" / "data"
    (data / "tst-COMMON" / "txt" / "tst-COMMON.en").unlink()
    with pytest.raises(ValueError, match=rf"{data}/tst-COMMON/txt/tst-COMMON\.en: No such file"):
        prepare("must-c-v2", tmp_path / "out", source=published)
    shutil.rmtree(data / "dev")
    with pytest.raises(ValueError, match=rf"{data}/dev: No such file or directory$"):
        prepare("must-c-v2", tmp_path / "out", source=published)
    with pytest.raises(ValueError, match=r"nowhere/data/train: No such file or directory$"):
        prepare("must-c-v2", tmp_path / "out", source=tmp_path / "nowhere")


def test_bad_files_are_named_or_skipped(published, tmp_path):
    data = published / "en-de" / "data"
    (data / "train" / "wav" / "ted_1.wav").unlink()
    lines = (entry("ted_767.wav", 4.5, 2.0), *(entry(*place) for place in (("ted_767.wav", 0, 1),) * 3))
    write_lines(data / "train" / "txt" / "train.yaml", (*lines[:3], entry("ted_1.wav", 0, 1)))
    message = (
        r"2 problems\s+ted_767_0000: .*ted_767\.wav: samples 72000 to 104000 were asked for, it has 80000\s+"
        r"ted_1_0000: .*/train/wav/ted_1\.wav: no such file"
    )
    with pytest.raises(PreparationError, match=message):
        prepare("must-c-v2", tmp_path / "out", source=published)
    arguments = ("--source", "must-c", "--out", "p", "--set", "skip_bad=true", "--speeds", "1")
    done = brctc(tmp_path, "prepare", "must-c-v2", *arguments)
    assert done.code == 0, done.err
    assert "train: 2 left out" in done.out
    assert len(Prepared(tmp_path / "p", "train").examples) == 2
