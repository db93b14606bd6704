"""`brctc prepare` on real files, good and bad."""

import os
import signal
import time

import pytest

from brctc.data import Prepared, Row, write_manifest
from tests.cli.commands import Command, brctc
from tests.data.folders import contents, states
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
    assert header.split() == ["split", "examples", "hours", "frames", "words", "speakers"]
    assert train.split()[:2] == ["train", "9"]  # three speeds
    assert dev.split() == ["dev", "1", "0.00", "130", "2", "1"]
    assert last == "prepared in prepared"
    assert [u.id for u in Prepared(tmp_path / "prepared", "dev").examples] == ["u3"]


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
    found = brctc(tmp_path, "prepare", "handwriting", "--out", "p", "--set", *sizes)
    assert found.code == 0, found.err
    assert [line.split()[:2] for line in found.out.splitlines()[1:4]] == [
        ["train", "5"],
        ["dev", "2"],
        ["test", "3"],
    ]


def test_where_splits_come_from_changes_with_them_only(tmp_path):
    handwriting = ("prepare", "handwriting", "--out", "p", "--set", "dev_strings=2")
    assert brctc(tmp_path, *handwriting, "train_strings=5", "test_strings=3").code == 0
    origin = Prepared(tmp_path / "p", "train").origin
    assert (origin["corpus"]["kind"], origin["corpus"]["train_strings"]) == ("handwriting", 5)
    before = contents(tmp_path / "p")
    assert brctc(tmp_path, *handwriting, "sed=1").code == 2
    assert contents(tmp_path / "p") == before
    assert brctc(tmp_path, *handwriting, "train_strings=6", "test_strings=3").code == 0
    changed = Prepared(tmp_path / "p", "train")
    assert (len(changed), changed.origin["corpus"]["train_strings"]) == (6, 6)


def test_a_file_called_like_a_corpus_is_a_manifest(tmp_path, rows):
    write_manifest(tmp_path / "grid", rows)
    found = brctc(tmp_path, "prepare", "grid", "--split", "test", "--out", "p")
    assert found.code == 0, found.err
    assert len(Prepared(tmp_path / "p", "test")) == 4


def test_texts_alone(tmp_path):
    rows = [Row(f"t{i}", f"guten Tag {i}", translation=f"good day {i}") for i in range(3)]
    write_manifest(tmp_path / "train.tsv", rows)
    found = brctc(tmp_path, "prepare", "train.tsv", "--out", "p")
    assert found.code == 0, found.err
    prepared = Prepared(tmp_path / "p", "train")
    assert prepared.storage.kind == "text"
    assert prepared.examples[1].texts == {"source": "guten Tag 1", "translation": "good day 1"}


def test_audio_is_stored_once(tmp_path, rows):
    """Its features, at all speeds, are made when it is read."""
    write_manifest(tmp_path / "train.tsv", rows)
    for store in ("features", "audio"):
        found = brctc(tmp_path, "prepare", "train.tsv", "--out", store, "--store", store)
        assert found.code == 0, found.err
    features, audio = (Prepared(tmp_path / store, "train") for store in ("features", "audio"))
    assert (len(features), len(audio)) == (12, 4)
    assert audio.storage.speeds == (0.9, 1.0, 1.1)
    plain = [example.id for example in features.examples].index("u2")
    # 16 bits of audio, and of features
    assert audio.features(2) == pytest.approx(features.features(plain), abs=0.05)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A folder with a manifest of seven shards, and what one process makes of it."""
    folder = tmp_path_factory.mktemp("many")
    path = write(folder / "a.wav", noise(0.5))
    write_manifest(folder / "dev.tsv", [Row(f"u{i:03d}", "a", path, 0.5) for i in range(350)])
    found = brctc(folder, "prepare", "dev.tsv", "--out", "one", "--jobs", "1")
    assert found.code == 0, found.err
    assert len(list(folder.glob("one/dev-*/*.tar"))) == 7
    return folder, contents(folder / "one")


def test_several_processes_write_the_same(many):
    folder, expected = many
    found = brctc(folder, "prepare", "dev.tsv", "--out", "two", "--jobs", "2")
    assert found.code == 0, found.err
    assert contents(folder / "two") == expected
    before = states(folder / "two")
    again = brctc(folder, "prepare", "dev.tsv", "--out", "two", "--jobs", "2")
    assert (again.code, again.out) == (0, found.out)
    assert states(folder / "two") == before  # up to date, and kept


def reported(out):
    """The numbers of the shards that are known to be done."""
    return {path.stem for path in out.glob(".dev-*/[0-9]*.json")}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_or_stopped_and_continued(many, number):
    folder, expected = many
    out = folder / number.name
    arguments = ("prepare", "dev.tsv", "--out", out.name, "--jobs", "2")
    command = Command(folder, *arguments)
    while command.process.is_alive() and len(reported(out)) < 2:
        time.sleep(0.001)
    os.kill(command.process.pid, number)
    stopped = command.finish()
    if number == signal.SIGINT:
        assert (stopped.code, stopped.err) == (130, "brctc prepare: stopped\n")
    assert not (out / "dev.json").exists()
    incomplete = brctc(folder, "prepare", "--verify", "--out", out.name)
    assert incomplete.code == 2
    done = {name: state for name, state in states(out).items() if name.split(".")[1] in reported(out)}
    assert len(done) >= 4  # lists and data
    found = brctc(folder, *arguments)
    assert found.code == 0, found.err
    assert contents(out) == expected
    assert {name: states(out)[name] for name in done} == done  # not written again


def test_verify_names_what_is_damaged(many):
    folder, _ = many
    assert brctc(folder, "prepare", "dev.tsv", "--out", "whole").code == 0
    found = brctc(folder, "prepare", "--verify", "--out", "whole")
    assert found == (0, "dev: 7 shards, 350 examples: as they were written\n", "")
    (shard,) = (folder / "whole").glob("dev-*/features.000003.tar")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    damaged = brctc(folder, "prepare", "--verify", "--out", "whole")
    assert (damaged.code, damaged.out) == (2, "")
    assert damaged.err.startswith("brctc prepare: dev: ")
    assert str(shard.relative_to(folder)) in damaged.err
    assert damaged.err.count(".tar") == 1  # and no other
    nothing = brctc(folder, "prepare", "--verify", "--out", "nowhere")
    assert (nothing.code, nothing.err) == (2, "brctc prepare: nowhere has no prepared splits\n")
    assert not (folder / "nowhere").exists()


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
        ((), "name manifests, or one of the corpora aishell1, aishell2, bass, digit-strings, "),
        (("a.tsv", "b.tsv", "--split", "train"), "2 manifests need as many different splits, got train"),
        (("a/x.tsv", "b/x.tsv"), "2 manifests need as many different splits, got x, x"),
        (("a.tsv",), "a.tsv: No such file or directory; known corpora are aishell1, aishell2, bass, "),
        (
            ("handwritting", "--set", "seed=1"),
            "handwritting: No such file or directory; known corpora are aishell1, aishell2, bass",
        ),
        (("manifests",), "manifests: No such file or directory; known corpora are aishell1, aishell2, bass"),
        (("..",), "..: Is a directory"),
        (("there.tsv", "--set", "seed=1"), "--set is for a known corpus, not for manifests"),
        (("there.tsv", "--source", "x"), "--source is for a known corpus, not for manifests"),
        (("handwriting", "--speeds", "1"), "--speeds is for audio, and handwriting is not audio"),
        (("handwriting", "--store", "audio"), "--store is for audio, and handwriting is not audio"),
        (("handwriting", "--features.num-bins", "40"), "--features is for audio, and handwriting is not"),
        (("grid", "--skip-bad"), "--skip-bad is for manifests: a corpus has its options in --set"),
        (("grid", "--split", "train"), "--split is for manifests"),
        (("grid", "--subsampling", "2"), "--subsampling is for manifests"),
        (("grid", "--tokens.kind", "word"), "--tokens is for manifests"),
        (("digit-strings",), "digit-strings: source: missing"),
        (("handwriting", "--set", "seed"), "--set takes key=value, got 'seed'"),
        (("handwriting", "--set", "sed=1"), "handwriting: sed: unknown key; did you mean seed?"),
        (("handwriting", "--jobs", "0"), "jobs is 0, expected at least 1"),
    ],
)
def test_refusals(tmp_path, arguments, message):
    write_manifest(tmp_path / "there.tsv", [])
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
    assert "a_sp0.9: the id ends like that of a copy at another speed" in found.err
    found = brctc(tmp_path, "prepare", "train.tsv", "--out", "p", "--speeds", "0.9", "1", "--skip-bad")
    assert found.code == 0, found.err
    assert "train: 1 left out:\n  a_sp0.9: the id ends like that of a copy at another speed" in found.out
