"""The shards are lhotse's: it reads them itself. Names inside are safe, whatever an id is."""

import dataclasses
import gzip
import json
import tarfile
from pathlib import Path

import lhotse
import numpy as np
import pytest

from brctc.data import FeatureConfig, Prepared, Row, RowSource, Storage, WordTime, prepare, prepare_split
from brctc.data.shards import safe_name
from tests.data.sounds import RATE, noise, write
from tests.data.splits import ArrayItem, ArraySource

CONFIG = FeatureConfig(num_bins=20)


@pytest.fixture
def rows(tmp_path, monkeypatch) -> list[Row]:
    monkeypatch.setattr(prepare, "LEAST_ITEMS", 2)
    times = (WordTime("zwei", 0.05, 0.1), WordTime("Wörter", 0.1, 0.3))
    made = []
    for n in range(5):
        path = write(tmp_path / "audio" / f"{n}.wav", noise(0.4 + 0.1 * n, n))
        row = Row(f"utt.{n}", "zwei Wörter", path, 0.4 + 0.1 * n, f"s{n % 2}", translation=f"two words {n}")
        made.append(dataclasses.replace(row, word_times=times if n == 2 else None))
    return made


def folder_of(out: Path, split: str = "train") -> Path:
    return next(out.glob(f"{split}-*"))


def check_cuts(cuts: list, ours: Prepared) -> None:
    assert len(cuts) == len(ours.examples)
    for cut, example in zip(cuts, ours.examples, strict=True):
        lhotse.validate(cut)
        assert cut.id == example.id
        assert cut.duration == example.duration_s
        (supervision,) = cut.supervisions
        assert supervision.id == example.id
        assert supervision.text == "zwei Wörter"
        assert supervision.custom == {"translation": example.texts["translation"]}
        assert supervision.speaker == example.speaker
        assert cut.custom["num_frames"] == example.num_frames
    assert [tuple(time) for time in cuts[2].custom["word_times"]] == list(ours.examples[2].word_times)


def test_lhotse_reads_features(rows, tmp_path):
    prepare_split(RowSource(rows), tmp_path / "out", "train", Storage.of_audio(CONFIG, "features", (1.0,)))
    ours = Prepared(tmp_path / "out", "train")
    assert len(ours.shards) == 3
    cuts = list(lhotse.CutSet.from_shar(in_dir=folder_of(tmp_path / "out")))
    check_cuts(cuts, ours)
    for index, cut in enumerate(cuts):
        assert cut.num_frames == ours.examples[index].num_frames
        assert cut.num_features == 20
        assert cut.frame_shift == 0.01
        np.testing.assert_array_equal(cut.load_features(), ours.features(index))


def test_lhotse_reads_audio(rows, tmp_path):
    prepare_split(RowSource(rows), tmp_path / "out", "train", Storage.of_audio(CONFIG, "audio", (1.0, 1.1)))
    ours = Prepared(tmp_path / "out", "train")
    cuts = list(lhotse.CutSet.from_shar(in_dir=folder_of(tmp_path / "out")))
    check_cuts(cuts, ours)
    for index, cut in enumerate(cuts):
        assert cut.sampling_rate == RATE
        (samples,) = cut.load_audio()
        np.testing.assert_allclose(samples, noise(0.4 + 0.1 * index, index), atol=1 / 2**15)


def test_lhotse_reads_columns(tmp_path):
    """Features that are not of audio."""
    items = [ArrayItem(f"c{n}", {"transcript": "12"}, np.full((20 + n, 8), n, np.float32)) for n in range(3)]
    prepare_split(ArraySource(items), tmp_path, "train", Storage("features", None, 8, 0.01))
    for n, cut in enumerate(lhotse.CutSet.from_shar(in_dir=folder_of(tmp_path))):
        lhotse.validate(cut)
        assert cut.load_features().shape == (20 + n, 8)
        assert (cut.load_features() == n).all()


def test_texts_are_a_line_each(tmp_path):
    rows = [Row(f"t{n}", f"Satz {n} ß", translation=f"sentence {n}") for n in range(3)]
    prepare_split(RowSource(rows), tmp_path, "train", Storage("text"))
    (path,) = folder_of(tmp_path).iterdir()
    assert path.name == "pairs.000000.jsonl.gz"
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    assert lines[1] == {"id": "t1", "source": "Satz 1 ß", "translation": "sentence 1"}


IDS = [
    "plain",
    "dot.ted.id",
    "a/b",
    "/etc/passwd",
    "../../outside",
    "..",
    ".",
    ".hidden",
    "./x",
    "x/",
    "x/..",
    "back\\slash",
    "C:\\x",
    "with space",
    "quote\"'",
    "%2e%2e",
    "日本語",
    "été",
    "e\u0301te",  # the same to the eye
    "\U0001f600",
    "x" * 101,
    "y" * 300,
    "日" * 300,
    "日" * 301,
    "../" * 100,
    "a-b",
    "a_sp",
    "-rf",
    "~root",
    "$HOME",
    "*",
    "nul",
    "x.npy",
    "x.json",
    "x.nodata",
    "x.flac",
]


@pytest.mark.parametrize("kind", ["features", "audio"])
def test_ids_never_become_paths(tmp_path, kind):
    """Neither outside the folder nor inside the archive; and they come back as they were."""
    wav = write(tmp_path / "a.wav", noise(0.1))
    rows = [Row(id, f"text {n}", wav, 0.1) for n, id in enumerate(IDS)]
    out = tmp_path / "below" / "out"
    prepare_split(RowSource(rows), out, "train", Storage.of_audio(CONFIG, kind, (1.0,)))
    assert {path.name for path in tmp_path.iterdir()} == {"a.wav", "below"}
    assert {path.name for path in (tmp_path / "below").iterdir()} == {"out"}
    assert {path.name.split(".")[0] for path in folder_of(out).iterdir()} == {
        "cuts",
        {"features": "features", "audio": "recording"}[kind],
    }
    (tar_file,) = folder_of(out).glob("*.tar")
    with tarfile.open(tar_file) as tar:
        names = tar.getnames()
        assert len(names) == len({*names}) == 2 * len(IDS)
        for member in tar.getmembers():
            assert member.isfile()
            assert Path(member.name).name == member.name
            assert not member.name.startswith(".")
            assert len(member.name.encode()) <= 255
        tar.extractall(tmp_path / "extracted", filter="data")
    assert len(list((tmp_path / "extracted").iterdir())) == 2 * len(IDS)
    found = Prepared(out, "train")
    assert [example.id for example in found.examples] == IDS
    assert [example.texts["transcript"] for example in found.examples] == [
        f"text {n}" for n in range(len(IDS))
    ]
    assert {found.features(n).shape for n in range(len(IDS))} == {(10, 20)}
    cuts = list(lhotse.CutSet.from_shar(in_dir=folder_of(out)))
    assert [cut.supervisions[0].id for cut in cuts] == IDS
    assert all(len(cut.load_features() if kind == "features" else cut.load_audio()) for cut in cuts)


def test_names_of_different_ids_differ():
    assert safe_name("plain.id") == "plain.id"
    assert len({safe_name(id) for id in IDS}) == len(IDS)
    assert len({safe_name("日" * 300 + str(n)) for n in range(50)}) == 50
    assert safe_name("a/b") == safe_name("a/b")


def test_an_empty_shard_harms_nobody(tmp_path, monkeypatch):
    """All its items were left out."""
    monkeypatch.setattr(prepare, "LEAST_ITEMS", 2)
    shape = Storage("features", None, 2, 0.01)
    items = [
        ArrayItem(f"u{n}", {"transcript": "t"}, np.zeros((3, 2 if n in (0, 5) else 3))) for n in range(6)
    ]
    summary = prepare_split(ArraySource(items), tmp_path, "train", shape, skip_bad=True)
    assert [problem.id for problem in summary.skipped] == ["u1", "u2", "u3", "u4"]
    found = Prepared(tmp_path, "train")
    assert [shard["examples"] for shard in found.shards] == [1, 0, 1]
    assert [example.id for example in found.examples] == ["u0", "u5"]
    assert [cut.id for cut in lhotse.CutSet.from_shar(in_dir=folder_of(tmp_path))] == ["u0", "u5"]
