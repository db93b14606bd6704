"""What is written is read back; what is damaged, cut off or exchanged is noticed, and named."""

import copy
import gzip
import io
import json
import os
import pickle
import random
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from brctc.data import FeatureConfig, Prepared, Row, RowSource, Storage, WordTime, prepare, prepare_split
from brctc.data.shards import HEAD_BYTES
from brctc.data.split import MOST_OPEN
from tests.data.sounds import noise, write
from tests.data.splits import ArrayItem, ArraySource, write_split

LENGTHS = (30, 5, 61, 1, 44)
SHAPE = Storage("features", FeatureConfig(num_bins=6), 6, 0.01)


def features_of(index: int, dim: int = 6) -> np.ndarray:
    return np.random.default_rng(index).normal(-7, 3, (LENGTHS[index % 5], dim)).astype(np.float32)


def item(index: int) -> ArrayItem:
    times = (WordTime("é", 0.0, 0.1), WordTime("b", 0.1, 0.25)) if index == 2 else None
    text = {"transcript": f"text {index} é"}
    return ArrayItem(f"utt-{index}", text, features_of(index), "s1" if index else None, times)


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(prepare, "LEAST_ITEMS", 2)


@pytest.fixture
def corpus(tmp_path, small_shards) -> Path:
    """Five utterances in three shards."""
    prepare_split(ArraySource([item(n) for n in range(5)]), tmp_path, "train", SHAPE)
    return tmp_path


def shards_of(corpus: Path) -> Path:
    return next(corpus.glob("train-*"))


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


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def exchange(path: Path) -> None:
    """A file of this name and size from elsewhere."""
    content = path.read_bytes()
    path.write_bytes(bytes(255 - byte for byte in content[:100]) + content[100:])


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [truncate, empty, exchange, Path.unlink, make_folder])
@pytest.mark.parametrize("name", ["cuts.000001.jsonl.gz", "features.000002.tar"])
def test_damaged_shards_are_named(corpus, damage, name):
    damage(shards_of(corpus) / name)
    with pytest.raises(
        ValueError, match=rf"{name} is (missing|truncated|damaged).*\n  prepare the split anew"
    ):
        Prepared(corpus, "train")


@pytest.mark.parametrize("name", ["cuts.000001.jsonl.gz", "features.000001.tar"])
def test_shards_of_another_corpus_are_refused(corpus, tmp_path_factory, name):
    """Of the same name, and made in the same way."""
    other = tmp_path_factory.mktemp("other")
    items = [item(n)._replace(features=features_of(n) + 1, speaker="s2") for n in range(5)]
    prepare_split(ArraySource(items), other, "train", SHAPE)
    shutil.copy(shards_of(other) / name, shards_of(corpus) / name)
    with pytest.raises(ValueError, match=rf"{name} is (truncated|damaged) or foreign"):
        Prepared(corpus, "train")


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x20
    path.write_bytes(content)


def test_a_flipped_byte_is_found(tmp_path):
    """Behind the part that is looked at when a split is opened."""
    write_split(tmp_path, "train", {f"u{n}": ("t", features_of(n), None) for n in range(50)})
    tar = shards_of(tmp_path) / "features.000000.tar"
    flip(tar, tar.stat().st_size // 2)
    found = Prepared(tmp_path, "train")
    with pytest.raises(ValueError, match=r"features\.000000\.tar is damaged or foreign: .*\n  remove .*anew"):
        found.verify()
    flip(tar, tar.stat().st_size // 2)
    found.verify()


def test_all_damaged_files_are_told_by_a_thorough_look(corpus):
    for number in range(3):
        flip(shards_of(corpus) / f"features.{number:06d}.tar", 9000)
    found = Prepared(corpus, "train")
    with pytest.raises(ValueError, match=r"(?s)features\.000000.*features\.000001.*features\.000002"):
        found.verify()


@pytest.fixture(scope="module")
def long_list(tmp_path_factory) -> Path:
    """A list of examples that is longer than what is looked at."""
    folder = tmp_path_factory.mktemp("long")
    rng = np.random.default_rng(0)
    items = []
    for n in range(50):
        text = "".join(map(chr, rng.integers(0x4E00, 0x9FFF, 100)))
        items.append(ArrayItem(f"u{n}", {"transcript": text}, np.zeros((3, 2), np.float32)))
    prepare_split(ArraySource(items), folder, "train", Storage("features", None, 2, 0.01))
    assert (shards_of(folder) / "cuts.000000.jsonl.gz").stat().st_size > 2 * HEAD_BYTES
    return folder


@pytest.mark.parametrize("width", [1, 50])
@pytest.mark.parametrize("place", range(1, 200, 5))
def test_damage_in_lists_is_named_whatever_it_does(long_list, place, width):
    """It may break the compression, the JSON, or the names inside."""
    path = shards_of(long_list) / "cuts.000000.jsonl.gz"
    whole, noise = path.read_bytes(), b"\x20" if width == 1 else random.Random(place).randbytes(width)
    try:
        content, first = bytearray(whole), HEAD_BYTES + place * (len(whole) - HEAD_BYTES) // 200
        last = min(first + width, len(content))
        content[first:last] = bytes(b ^ r for b, r in zip(content[first:last], noise, strict=False))
        path.write_bytes(content)
        found = Prepared(long_list, "train")
        with pytest.raises(ValueError, match=r"cuts\.000000\.jsonl\.gz is damaged: "):
            list(found.examples)
        with pytest.raises(ValueError, match=r"cuts\.000000\.jsonl\.gz is damaged: "):
            found.features(0)
    finally:
        path.write_bytes(whole)


def rewrite_list(folder: Path, change) -> None:
    """Changes the lines of the first list, and what is known of it, so that it is opened."""
    path = shards_of(folder) / "cuts.000000.jsonl.gz"
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    change(lines)
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    from brctc.data.shards import _complete

    path.rename(path.with_name(f".tmp-{os.getpid()}-{path.name}"))
    description = json.loads((folder / "train.json").read_text())
    description["shards"][0]["files"][0] = _complete(path)
    (folder / "train.json").write_text(json.dumps(description))


def set_in(line: Any, place: tuple, value: Any) -> None:
    for key in place[:-1]:
        line = line[key]
    if value is KeyError:
        del line[place[-1]]
    else:
        line[place[-1]] = value


def refusal(call, *arguments) -> str | None:
    """What a ValueError says; other errors are not caught."""
    try:
        call(*arguments)
    except ValueError as error:
        return str(error)
    return None


LINE_MUTATIONS = [
    (place, value)
    for place in [
        ("custom",),
        ("custom", "num_frames"),
        ("custom", "word_times"),
        ("duration",),
        ("supervisions",),
        ("supervisions", 0, "id"),
        ("supervisions", 0, "text"),
    ]
    for value in (KeyError, None, 5, "x", [], [1], {}, [[1]])
]


@pytest.mark.parametrize(("place", "value"), LINE_MUTATIONS, ids=str)
def test_lists_with_odd_lines_give_examples_or_a_named_error(corpus, place, value):
    """Their description was changed too: somebody has done that by hand."""
    rewrite_list(corpus, lambda lines: set_in(lines[1], place, value))
    found = Prepared(corpus, "train")
    if (error := refusal(list, found.iterate())) is None:
        assert len(found.examples) == 5
    else:
        assert "cuts.000000.jsonl.gz is damaged: " in error


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"offset": 10**9}, "features.000000.tar ends at byte 1000000000: it is truncated"),
        ({"size": 10**9}, "it is truncated"),
        ({"offset": 0}, "cannot be read"),
        ({"size": 3}, "cannot be read"),
        ({"offset": -5}, "cannot be read"),
        ({"size": -5}, "cannot be read"),
    ],
)
def test_data_in_a_wrong_place_are_named(corpus, place, message):
    rewrite_list(corpus, lambda lines: lines[1]["custom"].update(place))
    found = Prepared(corpus, "train")
    with pytest.raises(ValueError, match=r"data of .*cuts\.000000\.jsonl\.gz at byte .* cannot be") as error:
        found.features(1)
    assert message in str(error.value)


def paths_in(content: Any, before: tuple = ()) -> list[tuple]:
    """The place of every value of plain data."""
    if isinstance(content, dict):
        items = list(content.items())
    elif isinstance(content, list):
        items = list(enumerate(content))[:2]
    else:
        items = []
    return [place for key, value in items for place in ((*before, key), *paths_in(value, (*before, key)))]


@pytest.fixture(scope="module")
def described(tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("described")
    prepare.LEAST_ITEMS, usual = 2, prepare.LEAST_ITEMS
    try:
        prepare_split(ArraySource([item(n) for n in range(5)]), folder, "train", SHAPE, origin={"a": [1]})
    finally:
        prepare.LEAST_ITEMS = usual
    return folder, json.loads((folder / "train.json").read_text())


INFINITE, UNDEFINED = float("inf"), float("nan")
WRONG = [KeyError, None, -1, 0, 10**30, 1.5, INFINITE, UNDEFINED, "", "x", "../../etc", [], [[]], {}, True]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_every_damage_of_a_description_is_named(described, wrong):
    """Each value at each depth: missing, of another type, out of range. What can be opened can be used."""
    folder, content = described
    places = paths_in(content)
    assert len(places) > 60
    refused = 0
    for place in places:
        changed = copy.deepcopy(content)
        set_in(changed, place, wrong)
        (folder / "train.json").write_text(json.dumps(changed))
        error = refusal(Prepared, folder, "train")
        if error is not None:
            assert str(folder) in error, place
            assert any(word in error for word in ("train.json", "is missing", "foreign")), place
            refused += 1
            continue
        found = Prepared(folder, "train")
        assert [example.id for example in found.examples] == [f"utt-{n}" for n in range(5)], place
        assert found.features(4).shape[1] == 6
        if (place, wrong) == (("statistics",), None):
            assert refusal(found.statistics) == f"{folder} (train) has no features to measure"
        else:
            assert found.statistics()[1].isfinite().all()
        assert isinstance(found.digest(), str)
        assert found.longest[1] >= 0
        assert found.frame_shift_s > 0
        assert all(0.5 <= speed <= 2 for speed in found.storage.speeds)
    assert refused > len(places) / 2


def test_descriptions_that_are_something_else(described):
    folder, content = described
    description = folder / "train.json"
    text = json.dumps(content)
    deep = "[" * 100_000 + "]" * 100_000
    wrong = ["", text[:20], text[:-2], "[]", "null", "5", '"x"', "\xff\xfe", "NaN"]
    wrong += [deep, '{"format": ' + deep + "}"]
    wrong += [json.dumps({**content, "format": value}) for value in (99, 1, None, "2", [2])]
    wrong += [json.dumps({**content, "origin": json.loads("[" * 400 + "]" * 400)})]
    for damage in wrong:
        description.write_text(damage, encoding="latin-1")
        with pytest.raises(ValueError, match=r"train\.json (is damaged|does not describe)"):
            Prepared(folder, "train")
    description.write_text(text)
    Prepared(folder, "train").verify()


def test_a_folder_elsewhere_is_not_read(described, tmp_path):
    """What a description names lies beside it."""
    folder, content = described
    moved = tmp_path / "elsewhere"
    shutil.copytree(shards_of(folder), moved)
    for name in (str(moved), "../elsewhere", f"{content['folder']}/../../elsewhere", "..", "."):
        (tmp_path / "here").mkdir(exist_ok=True)
        (tmp_path / "here" / "train.json").write_text(json.dumps({**content, "folder": name}))
        with pytest.raises(ValueError, match=r"train\.json is damaged"):
            Prepared(tmp_path / "here", "train")


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
    from brctc.data import audio, fbank, load_audio

    found = Prepared(recordings, "train")
    config = FeatureConfig(num_bins=20)
    assert [example.id for example in found.examples] == [f"u{n}" for n in range(6)]
    assert found.storage.speeds == (0.9, 1.0, 1.1)
    every = []
    for n, example in enumerate(found.examples):
        samples = load_audio(recordings.parent / f"{n}.wav", 16000)
        kept = np.round(np.clip(samples, -1, 1) * 32768).clip(-32768, 32767).astype(np.float32) / 32768
        assert example.num_frames == 30 + 10 * n
        expected = fbank(kept, config)
        np.testing.assert_allclose(found.features(n), expected, atol=2e-2 if n == 5 else 1e-6)
        list_file, place = found._places[n]
        np.testing.assert_array_equal(found.load(list_file, place), found.features(n))
        for speed in (0.9, 1.1):
            played = fbank(audio.change_speed(kept, speed), config)
            np.testing.assert_allclose(found.load(list_file, place, speed), played, atol=2e-2)
        every.append(fbank(samples, config))
    mean, std = found.statistics()
    np.testing.assert_allclose(mean, np.concatenate(every).mean(0), atol=1e-4)
    np.testing.assert_allclose(std, np.concatenate(every).std(0), atol=1e-4)


def test_damaged_audio_is_named(recordings):
    found = Prepared(recordings, "train")
    place = found._places[3][1]
    tar = shards_of(recordings) / "recording.000000.tar"
    content = bytearray(tar.read_bytes())
    content[place.offset : place.offset + 4] = b"XXXX"
    tar.write_bytes(content)
    with pytest.raises(ValueError, match=rf"cuts\.000000\.jsonl\.gz at byte {place.offset} cannot be read"):
        found.features(3)
    assert len(found.features(2))


def test_tar_members_are_plain_files(corpus):
    with tarfile.open(fileobj=io.BytesIO((shards_of(corpus) / "features.000000.tar").read_bytes())) as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == ["utt-0.npy", "utt-0.json", "utt-1.npy", "utt-1.json"]
    assert all(member.isfile() and member.mtime == 0 and member.uid == 0 for member in members)
