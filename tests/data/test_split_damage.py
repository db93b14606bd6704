"""What of a prepared split is damaged, cut off or exchanged is noticed, and named."""

import copy
import gzip
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brctc.data import FeatureConfig, Prepared, Row, RowSource, Storage, prepare, prepare_split
from brctc.data.description import seal, unseal
from brctc.data.shards import HEAD_BYTES
from tests.data.sounds import noise, write
from tests.data.splits import ArrayItem, ArraySource, write_split
from tests.data.utterances import SHAPE, features_of, item, shards_of


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(prepare, "LEAST_ITEMS", 2)


@pytest.fixture
def corpus(tmp_path, small_shards) -> Path:
    """Five utterances in three shards."""
    prepare_split(ArraySource([item(n) for n in range(5)]), tmp_path, "train", SHAPE)
    return tmp_path


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
    description = unseal(json.loads((folder / "train.json").read_text()))
    description["shards"][0]["files"][0] = _complete(path)
    (folder / "train.json").write_text(json.dumps(seal(description)))


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
    return folder, unseal(json.loads((folder / "train.json").read_text()))


INFINITE, UNDEFINED = float("inf"), float("nan")
WRONG = [KeyError, None, -1, 0, 10**30, 1.5, INFINITE, UNDEFINED, "", "x", "../../etc", [], [[]], {}, True]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_every_damage_of_a_description_is_named(described, wrong):
    """Each value at each depth: missing, of another type, out of range. What can be opened can be used, even
    if somebody has sealed it."""
    folder, content = described
    places = paths_in(content)
    assert len(places) > 60
    refused = 0
    for place in places:
        changed = copy.deepcopy(content)
        set_in(changed, place, wrong)
        (folder / "train.json").write_text(json.dumps(seal(changed)))
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


def test_numbers_that_could_be_right_are_noticed(described):
    folder, content = described
    sealed = seal(content)
    for place in paths_in(content):
        value = content
        for key in place:
            value = value[key]
        if isinstance(value, int | float):
            changed = copy.deepcopy(sealed)
            set_in(changed, place, value + 1)
            if place[:1] == ("shards",) and place[-1] == "examples":
                changed["examples"] += 1  # so that the sum is right
            (folder / "train.json").write_text(json.dumps(changed))
            assert f"{folder / 'train.json'} " in refusal(Prepared, folder, "train"), place
    for whole in (content, sealed):
        (folder / "train.json").write_text(json.dumps(whole))
        assert len(Prepared(folder, "train").examples) == content["examples"]


def test_descriptions_that_are_something_else(described):
    folder, content = described
    description = folder / "train.json"
    content = seal(content)
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
        (tmp_path / "here" / "train.json").write_text(json.dumps(seal({**content, "folder": name})))
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


@pytest.mark.parametrize("total", [0, 5, 2**30, 2**36 - 1])
def test_stored_audio_with_another_length_in_its_header(recordings, total):
    """It is refused before memory is taken for it."""
    found = Prepared(recordings, "train")
    place = found._places[3][1]
    tar = shards_of(recordings) / "recording.000000.tar"
    content = bytearray(tar.read_bytes())
    first, last = place.offset + 18, place.offset + 26
    packed = int.from_bytes(content[first:last], "big")
    content[first:last] = (packed >> 36 << 36 | total).to_bytes(8, "big")
    tar.write_bytes(content)
    with pytest.raises(ValueError, match=rf"cuts\.000000\.jsonl\.gz at byte {place.offset} cannot be read"):
        found.features(3)


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
