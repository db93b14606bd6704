"""What is written is read back; what is damaged, cut off or exchanged is noticed, and named."""

import gzip
import io
import os
import pickle
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from brctc.data import FeatureConfig, Prepared, Row, RowSource, Storage, prepare, prepare_split
from brctc.data.split import MOST_OPEN
from tests.data.sounds import noise, write
from tests.data.splits import ArraySource, write_split
from tests.data.utterances import LENGTHS, SHAPE, features_of, item, shards_of


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(prepare, "LEAST_ITEMS", 2)


@pytest.fixture
def corpus(tmp_path, small_shards) -> Path:
    """Five utterances in three shards."""
    prepare_split(ArraySource([item(n) for n in range(5)]), tmp_path, "train", SHAPE)
    return tmp_path


def test_read_back(corpus):
    found = Prepared(corpus, "train")
    assert len(found) == len(found.examples) == len(LENGTHS)
    assert found.feature_dim == 6
    assert found.frame_shift_s == 0.01
    assert found.feature_config == FeatureConfig(num_bins=6)
    assert sorted(path.name for path in corpus.iterdir()) == [".lock", shards_of(corpus).name, "train.json"]
    assert sorted(path.name for path in shards_of(corpus).iterdir()) == [
        "cuts.000000.jsonl.gz",
        "cuts.000001.jsonl.gz",
        "cuts.000002.jsonl.gz",
        "features.000000.tar",
        "features.000001.tar",
        "features.000002.tar",
    ]
    for index, example in enumerate(found.examples):
        assert example.id == f"utt-{index}"
        assert example.texts == {"transcript": f"text {index} é"}
        assert example.num_frames == LENGTHS[index]
        assert example.duration_s == LENGTHS[index] / 100
        assert example.speaker == ("s1" if index else None)
        features = found.features(index)
        assert features.dtype == np.float32
        np.testing.assert_array_equal(features, features_of(index).astype(np.float16))
    assert found.examples[2].word_times == (("é", 0.0, 0.1), ("b", 0.1, 0.25))
    assert found.examples[2].word_times[0].end_s == 0.1
    assert found.examples[1].word_times is None
    assert list(found.iterate()) == found.examples
    assert found.longest == ("utt-2", 0.61)
    assert found.duration_s == pytest.approx(sum(LENGTHS) / 100)
    with pytest.raises(IndexError):
        found.features(5)
    found.verify()


def test_what_is_read_can_be_written_to(corpus):
    """The loader pads and augments in place of nobody else's memory."""
    features = Prepared(corpus, "train").features(0)
    features += 1
    assert not np.array_equal(features, Prepared(corpus, "train").features(0))


def test_statistics(corpus):
    mean, std = Prepared(corpus, "train").statistics()
    every = np.concatenate([features_of(i).astype(np.float16) for i in range(5)]).astype(np.float64)
    assert mean.dtype == std.dtype == torch.float32
    np.testing.assert_allclose(mean.numpy(), every.mean(0), rtol=1e-6)
    np.testing.assert_allclose(std.numpy(), every.std(0), rtol=1e-6)


def test_statistics_do_not_cancel(tmp_path, small_shards):
    """Large means, small deviations, in many shards of different lengths."""
    rng = np.random.default_rng(0)
    given = {f"u{n}": 2000 + rng.normal(0, 3, (rng.integers(1, 60), 3)).astype(np.float32) for n in range(9)}
    found = write_split(tmp_path, "x", {id: ("t", features, None) for id, features in given.items()})
    assert len(found.shards) == 5
    every = np.concatenate(list(given.values())).astype(np.float16).astype(np.float64)
    mean, std = found.statistics()
    np.testing.assert_allclose(mean.numpy(), every.mean(0), rtol=1e-7)
    np.testing.assert_allclose(std.numpy(), every.std(0), rtol=1e-5)


def test_statistics_of_a_bin_that_never_changes(tmp_path):
    features = np.stack([np.full(50, 1000.0), np.arange(50)], 1)
    mean, std = write_split(tmp_path, "x", {"u": ("t", features, None)}).statistics()
    assert mean.tolist() == [1000, 24.5]
    torch.testing.assert_close(std, torch.tensor([1.0, np.std(np.arange(50))], dtype=torch.float32))


def test_a_new_split_replaces_the_old_one_with_all_its_shards(corpus):
    found = write_split(corpus, "train", {"only": ("t", features_of(0), None)}, frame_shift_s=0.02)
    assert [example.id for example in found.examples] == ["only"]
    assert found.examples[0].duration_s == 0.6
    assert len(list(corpus.rglob("*.tar"))) == 1


def test_the_folder_can_be_moved(corpus, tmp_path_factory):
    digest = Prepared(corpus, "train").digest()
    moved = tmp_path_factory.mktemp("moved") / "here"
    shutil.copytree(corpus, moved)
    shutil.rmtree(shards_of(corpus))
    found = Prepared(moved, "train")
    assert found.digest() == digest
    np.testing.assert_array_equal(found.features(2), features_of(2).astype(np.float16))
    assert str(corpus) not in "".join(
        (gzip.decompress(p.read_bytes()) if p.suffix == ".gz" else p.read_bytes()).decode("latin-1")
        for p in moved.rglob("*.*")
        if p.is_file()
    )


def test_the_digest_is_of_the_examples(corpus, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    prepare_split(ArraySource([item(n) for n in range(5)], "another name"), other, "dev", SHAPE)
    assert Prepared(other, "dev").digest() == Prepared(corpus, "train").digest()
    changed = [item(n) for n in range(4)] + [item(4)._replace(speaker="s2")]
    prepare_split(ArraySource(changed), other, "dev", SHAPE)
    assert Prepared(other, "dev").digest() != Prepared(corpus, "train").digest()


def test_other_splits(corpus, tmp_path_factory):
    with pytest.raises(ValueError, match=r"no prepared split 'dev'; found: \['train'\]"):
        Prepared(corpus, "dev")
    with pytest.raises(ValueError, match="no prepared split"):
        Prepared(tmp_path_factory.mktemp("nothing") / "here", "train")


def test_processes_that_load_data_get_no_open_files_and_no_examples(corpus):
    found = Prepared(corpus, "train")
    plain = len(pickle.dumps(found))
    assert len(found.examples) == 5
    expected = [found.features(n) for n in range(5)]
    assert len(pickle.dumps(found)) == plain
    again = pickle.loads(pickle.dumps(found))
    for n in range(5):
        np.testing.assert_array_equal(again.features(n), expected[n])
    assert again.examples == found.examples
    np.testing.assert_array_equal(found.features(0), expected[0])  # it still has its own


def test_processes_that_share_an_open_file_read_what_they_ask_for(tmp_path):
    """A forked process has the files of its parent; their positions would be moved by both."""
    features = {f"u{n}": ("t", np.full((50, 6), n, np.float32), None) for n in range(50)}
    found = write_split(tmp_path, "x", features)
    assert found.features(0)[0, 0] == 0  # now the file is open
    pid = os.fork()
    wrong = sum((found.features(n) != n).any() for _ in range(60) for n in range(50))
    if pid == 0:
        os._exit(min(wrong, 100))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert wrong == 0


def open_files(folder: Path) -> int:
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            found += str(folder) in os.readlink(link)
        except OSError:
            continue
    return found


def test_few_files_are_open_however_many_shards_there_are(tmp_path, small_shards):
    items = [item(n) for n in range(80)]
    prepare_split(ArraySource(items), tmp_path, "train", SHAPE)
    found = Prepared(tmp_path, "train")
    assert len(found.shards) == 40 > 2 * MOST_OPEN
    most = 0
    for index in [*range(80), *range(0, 80, 7), *range(79, 0, -3)]:
        np.testing.assert_array_equal(found.features(index), features_of(index).astype(np.float16))
        most = max(most, open_files(tmp_path))
    assert most == MOST_OPEN == 16


@pytest.fixture
def recordings(tmp_path) -> Path:
    rows = []
    for n in range(6):
        rate = 8000 if n == 5 else 16000
        path = write(tmp_path / f"{n}.wav", 2 * noise(0.3 + 0.1 * n, n, rate), rate)
        rows.append(Row(f"u{n}", "two words", path, 0.3 + 0.1 * n, "s"))
    storage = Storage.of_audio(FeatureConfig(num_bins=20), "audio", (0.9, 1.0, 1.1))
    prepare_split(RowSource(rows), tmp_path / "out", "train", storage)
    return tmp_path / "out"


def test_stored_audio(recordings):
    """16 bits a sample: features are made of these when they are asked for."""
    from brctc.data import audio, extract_features, load_audio

    found = Prepared(recordings, "train")
    config = FeatureConfig(num_bins=20)
    assert [example.id for example in found.examples] == [f"u{n}" for n in range(6)]
    assert found.storage.speeds == (0.9, 1.0, 1.1)
    every = []
    for n, example in enumerate(found.examples):
        samples = load_audio(recordings.parent / f"{n}.wav", 16000)
        kept = np.round(np.clip(samples, -1, 1) * 32768).clip(-32768, 32767).astype(np.float32) / 32768
        assert example.num_frames == 30 + 10 * n
        expected = extract_features(kept, config)
        np.testing.assert_allclose(found.features(n), expected, atol=2e-2 if n == 5 else 1e-6)
        list_file, place = found._places[n]
        np.testing.assert_array_equal(found.load(list_file, place), found.features(n))
        for speed in (0.9, 1.1):
            played = extract_features(audio.change_speed(kept, speed), config)
            np.testing.assert_allclose(found.load(list_file, place, speed), played, atol=2e-2)
        every.append(extract_features(samples, config))
    mean, std = found.statistics()
    np.testing.assert_allclose(mean, np.concatenate(every).mean(0), atol=1e-4)
    np.testing.assert_allclose(std, np.concatenate(every).std(0), atol=1e-4)


def test_tar_members_are_plain_files(corpus):
    with tarfile.open(fileobj=io.BytesIO((shards_of(corpus) / "features.000000.tar").read_bytes())) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == ["utt-0.npy", "utt-0.json", "utt-1.npy", "utt-1.json"]
    assert all(member.isfile() and member.mtime == 0 and member.uid == 0 for member in members)
