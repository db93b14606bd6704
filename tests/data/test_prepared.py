"""What is written is read back, by us and by lhotse; what is damaged or cut off is noticed."""

import json
import multiprocessing
import os
import resource
import signal
from pathlib import Path

import lhotse
import numpy as np
import pytest
import torch

from brctc.data import FeatureConfig, Prepared, PreparedWriter, WordTime, feature_statistics, prepared

LENGTHS = (30, 5, 61, 1, 44)


def features_of(index: int, dim: int = 6) -> np.ndarray:
    return np.random.default_rng(index).normal(-7, 3, (LENGTHS[index], dim)).astype(np.float32)


def fill(writer: PreparedWriter) -> None:
    for index in range(len(LENGTHS)):
        times = (WordTime("é", 0.0, 0.1), WordTime("b", 0.1, 0.25)) if index == 2 else None
        writer.add(f"utt-{index}", f"text {index} é", features_of(index), "s1" if index else None, times)


def write(directory: Path, split: str = "train") -> None:
    config = FeatureConfig(num_bins=6)
    with PreparedWriter(directory, split, feature_dim=6, frame_shift_s=0.01, feature_config=config) as writer:
        fill(writer)


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(prepared, "SHARD_BYTES", 70 * 6 * 2)


@pytest.fixture
def corpus(tmp_path, small_shards) -> Path:
    write(tmp_path)
    return tmp_path


def test_read_back(corpus):
    found = Prepared(corpus, "train")
    assert len(found) == len(LENGTHS)
    assert found.feature_dim == 6
    assert found.frame_shift_s == 0.01
    assert found.feature_config == FeatureConfig(num_bins=6)
    assert sorted(path.name for path in corpus.iterdir()) == [
        "train.cuts.jsonl.gz",
        "train.features-00.npy",
        "train.features-01.npy",
        "train.features-02.npy",
        "train.json",
    ]
    for index, utterance in enumerate(found.utterances):
        assert utterance.id == f"utt-{index}"
        assert utterance.text == f"text {index} é"
        assert utterance.num_frames == LENGTHS[index]
        assert utterance.duration_s == LENGTHS[index] / 100
        assert utterance.speaker == ("s1" if index else None)
        features = found.features(index)
        assert features.dtype == np.float32
        np.testing.assert_array_equal(features, features_of(index).astype(np.float16))
    assert found.utterances[2].word_times == (("é", 0.0, 0.1), ("b", 0.1, 0.25))
    assert found.utterances[2].word_times[0].end_s == 0.1
    assert found.utterances[1].word_times is None


def test_lhotse_reads_the_cuts_and_their_features(corpus):
    ours = Prepared(corpus, "train")
    cuts = lhotse.CutSet.from_file(corpus / "train.cuts.jsonl.gz").with_features_path_prefix(corpus)
    assert len(list(cuts)) == len(LENGTHS)
    for index, cut in enumerate(cuts):
        lhotse.validate(cut)
        assert cut.id == f"utt-{index}"
        assert cut.supervisions[0].text == f"text {index} é"
        assert cut.num_frames == LENGTHS[index]
        assert cut.custom["num_frames"] == LENGTHS[index]
        assert cut.custom["shard"].startswith("train.features-")
        np.testing.assert_array_equal(cut.load_features(), ours.features(index))
    assert [tuple(time) for time in list(cuts)[2].custom["word_times"]] == [
        ("é", 0.0, 0.1),
        ("b", 0.1, 0.25),
    ]


def test_same_input_same_bytes(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / name)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
    assert (tmp_path / "a" / "train.cuts.jsonl.gz").read_bytes()[4:8] == bytes(4)  # gzip's clock


def test_statistics(corpus):
    mean, std = feature_statistics(Prepared(corpus, "train"))
    every = torch.from_numpy(np.concatenate([features_of(i) for i in range(len(LENGTHS))]))
    assert mean.dtype == std.dtype == torch.float32
    torch.testing.assert_close(mean, every.mean(0), rtol=0, atol=1e-3)
    torch.testing.assert_close(std, every.std(0, correction=0), rtol=0, atol=1e-3)


def test_statistics_of_a_bin_that_never_changes(tmp_path):
    features = np.stack([np.full(50, 1000.0), np.arange(50)], 1)
    with PreparedWriter(tmp_path, "x", feature_dim=2, frame_shift_s=0.01) as writer:
        writer.add("u", "t", features)
    mean, std = feature_statistics(Prepared(tmp_path, "x"))
    assert mean.tolist() == [1000, 24.5]
    torch.testing.assert_close(std, torch.tensor([1.0, np.std(np.arange(50))], dtype=torch.float32))


def test_a_new_split_replaces_the_old_one_with_all_its_shards(corpus):
    with PreparedWriter(corpus, "train", feature_dim=6, frame_shift_s=0.02) as writer:
        writer.add("only", "t", features_of(0))
    assert [u.id for u in Prepared(corpus, "train").utterances] == ["only"]
    assert len(list(corpus.glob("*.npy"))) == 1


def test_an_error_leaves_what_was_there(corpus):
    before = {path.name: path.read_bytes() for path in corpus.iterdir()}
    with pytest.raises(ValueError, match="a: the id was used before"):
        fail_late(corpus)
    assert {path.name: path.read_bytes() for path in corpus.iterdir()} == before


def fail_late(directory: Path) -> None:
    with PreparedWriter(directory, "train", feature_dim=6, frame_shift_s=0.01) as writer:
        for id in ("a", "b", "a"):  # a shard is written before the error
            writer.add(id, "t", np.zeros((100, 6)))


def in_child(job, *arguments) -> int | None:
    """The exit code of a process of its own."""
    process = multiprocessing.get_context("fork").Process(target=job, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def be_killed(directory: Path) -> None:
    with PreparedWriter(directory, "train", feature_dim=6, frame_shift_s=0.01) as writer:
        fill(writer)
        os.kill(os.getpid(), signal.SIGKILL)


def fill_the_disk(directory: Path, num_frames: int, text: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
    try:
        with PreparedWriter(directory, "train", feature_dim=6, frame_shift_s=0.01) as writer:
            writer.add("u", text, np.zeros((num_frames, 6)))
    except OSError:
        os._exit(7)


def test_a_killed_preparation_is_noticed_and_can_be_repeated(tmp_path, small_shards):
    assert in_child(be_killed, tmp_path) == -signal.SIGKILL
    assert list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="'train' is incomplete; prepare it anew"):
        Prepared(tmp_path, "train")
    write(tmp_path)
    Prepared(tmp_path, "train")
    assert not list(tmp_path.glob("*.new*"))


def test_a_killed_preparation_leaves_what_was_there(corpus):
    assert in_child(be_killed, corpus) == -signal.SIGKILL
    assert len(Prepared(corpus, "train")) == len(LENGTHS)


@pytest.mark.parametrize(("num_frames", "text"), [(60, "t"), (1, " ".join(map(str, range(2000))))])
def test_a_full_disk_leaves_what_was_there(corpus, num_frames, text):
    """Whether the features or the cuts are too much for it."""
    before = {path.name: path.read_bytes() for path in corpus.iterdir()}
    assert in_child(fill_the_disk, corpus, num_frames, text) == 7
    assert {path.name: path.read_bytes() for path in corpus.iterdir()} == before


def test_a_replacement_cut_off_half_way_is_noticed(corpus):
    (corpus / "train.features-09.npy").mkdir()  # cannot be removed as a file is
    with pytest.raises(OSError, match="features-09"):
        write(corpus)
    with pytest.raises(ValueError, match="'train' is incomplete; prepare it anew"):
        Prepared(corpus, "train")


def damage_shard(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def lose_shard(path: Path) -> None:
    path.unlink()


def exchange_shard(path: Path) -> None:
    np.save(path, np.zeros((3, 6), np.float16))


@pytest.mark.parametrize("damage", [damage_shard, lose_shard, exchange_shard])
def test_damaged_shards_are_named(corpus, damage):
    damage(corpus / "train.features-01.npy")
    with pytest.raises(ValueError, match=r"features-01\.npy (is missing or damaged|holds float16 \(3)"):
        Prepared(corpus, "train")


def test_damaged_cuts_are_named(corpus):
    cuts = corpus / "train.cuts.jsonl.gz"
    content = cuts.read_bytes()
    for wrong in (content[:-20], b"", content[:50] + b"xx" + content[52:], b"text"):
        cuts.write_bytes(wrong)
        with pytest.raises(ValueError, match=r"train\.cuts\.jsonl\.gz (is missing or damaged|holds 0 cuts)"):
            Prepared(corpus, "train")


def test_damaged_descriptions_are_named(corpus):
    description = corpus / "train.json"
    content = description.read_text()
    for wrong in ("", content[:20], "[]", json.dumps({**json.loads(content), "format": 99})):
        description.write_text(wrong)
        with pytest.raises(ValueError, match=r"train\.json (is damaged|does not describe)"):
            Prepared(corpus, "train")


def test_other_splits(corpus, tmp_path_factory):
    with pytest.raises(ValueError, match=r"no prepared split 'dev'; found: \['train'\]"):
        Prepared(corpus, "dev")
    with pytest.raises(ValueError, match="no prepared split"):
        Prepared(tmp_path_factory.mktemp("nothing") / "here", "train")


def test_what_cannot_be_stored_is_refused(tmp_path):
    with PreparedWriter(tmp_path, "x", feature_dim=2, frame_shift_s=0.01) as writer:
        writer.add("a", "t", np.zeros((3, 2)))
        for features in (np.zeros((3, 3)), np.zeros(3), np.zeros((0, 2))):
            with pytest.raises(ValueError, match=r"b: features of shape .* expected \(T, 2\)"):
                writer.add("b", "t", features)
        for value in (np.nan, np.inf, 1e6):
            with pytest.raises(ValueError, match="b: a feature is not finite"):
                writer.add("b", "t", np.full((3, 2), value))
        with pytest.raises(ValueError, match="a: the id was used before"):
            writer.add("a", "t", np.zeros((3, 2)))
    assert len(Prepared(tmp_path, "x")) == 1
    with (
        pytest.raises(ValueError, match=r"'y' of .* would be empty"),
        PreparedWriter(tmp_path, "y", feature_dim=2, frame_shift_s=0.01),
    ):
        pass
    for split in ("", "a/b", "../x", "a b"):
        with pytest.raises(ValueError, match="expected a name of letters"):
            PreparedWriter(tmp_path, split, feature_dim=2, frame_shift_s=0.01)
