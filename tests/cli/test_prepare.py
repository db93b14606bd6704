"""`brctc prepare` on real files, good and bad."""

import pytest

from brctc.data import Prepared, Row, write_manifest
from tests.cli.commands import brctc
from tests.data.sounds import cut_off, noise, write


@pytest.fixture
def rows(tmp_path):
    return [
        Row(f"u{i}", "ten words", write(tmp_path / f"{i}.wav", noise(1 + i / 10, i)), 1 + i / 10, f"s{i % 2}")
        for i in range(4)
    ]


def test_manifests(tmp_path, rows):
    write_manifest(tmp_path / "train.tsv", rows[:3])
    write_manifest(tmp_path / "dev.tsv", rows[3:])
    found = brctc(tmp_path, "prepare", "train.tsv", "dev.tsv", "--out", "prepared")
    assert found.code == 0, found.err
    header, train, dev, last = found.out.splitlines()
    assert header.split() == ["split", "utterances", "hours", "frames", "words", "speakers"]
    assert train.split()[:2] == ["train", "9"]  # three speeds
    assert dev.split() == ["dev", "1", "0.00", "130", "2", "1"]
    assert last == "prepared in prepared"
    assert [u.id for u in Prepared(tmp_path / "prepared", "dev").utterances] == ["u3"]


def test_options(tmp_path, rows):
    write_manifest(tmp_path / "all.tsv", rows)
    options = ("--split", "train", "--speeds", "1.0", "--features.num-bins", "40", "--subsampling", "2")
    found = brctc(tmp_path, "prepare", "all.tsv", "--out", "prepared", *options)
    assert found.code == 0, found.err
    prepared = Prepared(tmp_path / "prepared", "train")
    assert (len(prepared), prepared.feature_dim) == (4, 40)


def test_bpe_of_the_training_texts(tmp_path, rows):
    texts = ["the cat sat on the mat", "the rat sat on the cat", "a cat and a rat"]
    train = [Row(r.id, text, r.path, r.duration) for r, text in zip(rows, texts, strict=False)]
    write_manifest(tmp_path / "train.tsv", train)
    write_manifest(tmp_path / "dev.tsv", [Row("u3", "cat", rows[3].path, rows[3].duration)])
    bpe = ("--tokens.kind", "bpe", "--tokens.size", "24")
    found = brctc(tmp_path, "prepare", "train.tsv", "dev.tsv", "--out", "prepared", *bpe)
    assert found.code == 0, found.err  # three letters alone make no vocabulary of 24


def test_all_planted_faults_are_listed(tmp_path, rows):
    text = tmp_path / "text.wav"
    text.write_text("not audio")
    whole = write(tmp_path / "cut.wav", noise(1.0))
    planted = [
        Row("missing", "a", tmp_path / "missing.wav", 1.0),
        Row("not-audio", "a", text, 1.0),
        Row("cut", "a", cut_off(whole), 1.0),
        Row("no-text", "", rows[0].path, rows[0].duration),
        Row("long", "a long story " * 20, rows[1].path, rows[1].duration),
        Row("duration", "a", rows[2].path, 9.0),
        Row("u0", "a", rows[0].path, rows[0].duration),
    ]
    write_manifest(tmp_path / "train.tsv", [*rows, *planted])
    write_manifest(tmp_path / "dev.tsv", rows[3:])
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("torn\tb\n")
    found = brctc(tmp_path, "prepare", "train.tsv", "dev.tsv", "--out", "prepared")
    assert found.code == 2
    first, *problems, last = found.err.splitlines()
    assert first == "brctc prepare: train.tsv: 10 problems"  # the long one at three speeds
    ids = {line.split(":")[0].strip() for line in problems}
    expected = {"missing", "not-audio", "cut", "no-text", "long", "duration", "u0", "torn"}
    assert {id.partition("_sp")[0] for id in ids} == expected
    assert "--skip-bad" in last
    assert not (tmp_path / "prepared" / "train.json").exists()
    assert found.out.splitlines()[1].startswith("dev ")  # it is well, and prepared

    found = brctc(tmp_path, "prepare", "train.tsv", "--out", "prepared", "--skip-bad", "--speeds", "1")
    assert found.code == 0, found.err
    assert "train: 8 left out:\n" in found.out
    assert len(Prepared(tmp_path / "prepared", "train")) == 4


def test_corpus(tmp_path):
    sizes = ("train_strings=5", "dev_strings=2", "test_strings=3")
    found = brctc(tmp_path, "prepare", "--corpus", "handwriting", "--out", "p", "--set", *sizes)
    assert found.code == 0, found.err
    assert [line.split()[:2] for line in found.out.splitlines()[1:4]] == [
        ["train", "5"],
        ["dev", "2"],
        ["test", "3"],
    ]


def test_where_splits_come_from_is_forgotten_with_them_only(tmp_path):
    origin = tmp_path / "p" / "corpus.json"
    handwriting = ("prepare", "--corpus", "handwriting", "--out", "p", "--set", "dev_strings=2")
    assert brctc(tmp_path, *handwriting, "train_strings=5", "test_strings=3").code == 0
    origin.write_text("{}")  # as a recipe leaves it
    assert brctc(tmp_path, *handwriting, "sed=1").code == 2
    assert origin.exists()
    assert brctc(tmp_path, *handwriting, "train_strings=6", "test_strings=3").code == 0
    assert not origin.exists()


def test_splits_of_different_features_are_refused(tmp_path):
    path = write(tmp_path / "a.wav", noise(1.0, rate=16000), 16000)
    for split in ("train", "test"):
        write_manifest(tmp_path / f"{split}.tsv", [Row("a", "b", path, 1.0)])
    bins = ("--features.num-bins", "40")
    assert brctc(tmp_path, "prepare", "train.tsv", "--out", "p", *bins).code == 0
    found = brctc(tmp_path, "prepare", "test.tsv", "--out", "p")
    assert found.code == 2
    assert found.err.startswith("brctc prepare: p has the split 'train' with features num_bins=40")
    assert brctc(tmp_path, "prepare", "test.tsv", "--out", "p", *bins).code == 0


def test_resampling_is_told(tmp_path):
    path = write(tmp_path / "a.wav", noise(1.0, rate=8000), 8000)
    write_manifest(tmp_path / "test.tsv", [Row("a", "b", path, 1.0)])
    found = brctc(tmp_path, "prepare", "test.tsv", "--out", "p")
    assert "test: resampled from 8000 Hz" in found.out
    assert "8000 Hz is resampled to 16000 Hz" in found.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say either MANIFEST... or --corpus"),
        (("a.tsv", "--corpus", "grid"), "say either MANIFEST... or --corpus"),
        (("a.tsv", "b.tsv", "--split", "train"), "2 manifests need as many different splits, got train"),
        (("a/x.tsv", "b/x.tsv"), "2 manifests need as many different splits, got x, x"),
        (("a.tsv",), "a.tsv: No such file or directory"),
        (("..",), "..: Is a directory"),
        (("a.tsv", "--set", "seed=1"), "--set is for a --corpus, not for manifests"),
        (("a.tsv", "--source", "x"), "--source is for a --corpus, not for manifests"),
        (
            ("--corpus", "handwriting", "--speeds", "1"),
            "--speeds is for manifests: a corpus has its options in",
        ),
        (("--corpus", "grid", "--features.num-bins", "40"), "--features is for manifests"),
        (("--corpus", "digit-strings"), "digit-strings: source: Field required"),
        (("--corpus", "handwriting", "--set", "seed"), "--set takes key=value, got 'seed'"),
        (
            ("--corpus", "handwriting", "--set", "sed=1"),
            "handwriting has no option 'sed': did you mean 'seed'?",
        ),
    ],
)
def test_refusals(tmp_path, arguments, message):
    found = brctc(tmp_path, "prepare", *arguments, "--out", "prepared")
    assert found.code == 2
    assert found.err.startswith(f"brctc prepare: {message}")
    assert "Traceback" not in found.err


def test_speeds_are_whole_percents(tmp_path):
    path = write(tmp_path / "a.wav", noise(1.0, rate=16000), 16000)
    write_manifest(tmp_path / "train.tsv", [Row("a", "b", path, 1.0)])
    for speed in ("0", "-1", "1.004"):
        found = brctc(tmp_path, "prepare", "train.tsv", "--out", "p", "--speeds", speed)
        assert found.code == 2
        assert f"speeds has {speed}, expected 0.5 to 2 in whole hundredths" in found.err


def test_what_cannot_be_stored_is_listed(tmp_path):
    fine = write(tmp_path / "a.wav", noise(1.0, rate=16000), 16000)
    rows = [Row("a", "b", fine, 1.0), Row("a_sp0.9", "b", fine, 1.0)]
    write_manifest(tmp_path / "train.tsv", rows)
    found = brctc(tmp_path, "prepare", "train.tsv", "--out", "p", "--speeds", "0.9", "1")
    assert found.code == 2
    assert "a_sp0.9: the id was used before" in found.err
    found = brctc(tmp_path, "prepare", "train.tsv", "--out", "p", "--speeds", "0.9", "1", "--skip-bad")
    assert found.code == 0, found.err
    assert "train: 1 left out:\n  a_sp0.9: the id was used before" in found.out
