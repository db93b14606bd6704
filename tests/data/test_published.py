"""Corpora as they are published: GRID and LibriSpeech."""

import logging
from pathlib import Path

import numpy as np
import pytest

from brctc.data import (
    FeatureConfig,
    PreparationError,
    Prepared,
    extract_features,
    load_audio,
    prepare_corpus,
    read_manifest,
    write_manifest,
)
from tests.data.corpora import SPLITS, corpus_of, prepare, text_of
from tests.data.folders import states
from tests.data.published import write_librispeech
from tests.data.sounds import DATA, RATE, cut_off, needs, write_sentences


@needs("grid_s1")
def test_grid(tmp_path):
    rows = {row.id: row for row in read_manifest(DATA / "grid_s1" / "manifest.tsv")[::25]}
    write_manifest(tmp_path / "m.tsv", list(rows.values()))
    sizes = {"dev_sentences": 5, "test_sentences": 15}
    summaries = prepare("grid", tmp_path / "a", source=tmp_path / "m.tsv", **sizes)
    assert [summaries[split].examples for split in SPLITS] == [60, 5, 15]
    ids = []
    for split in SPLITS:
        for example in Prepared(tmp_path / "a", split).examples:
            if "_sp" in example.id:
                continue
            ids.append(example.id)
            row = rows[example.id]
            assert text_of(example) == row.text
            assert example.word_times == row.word_times
            assert example.duration_s == pytest.approx(row.duration, abs=0.005)
    assert sorted(ids) == sorted(rows)
    with pytest.raises(ValueError, match="40 sentences, dev and test alone take 40"):
        prepare("grid", tmp_path / "b", source=tmp_path / "m.tsv", dev_sentences=20, test_sentences=20)


def test_grid_of_a_folder_is_divided_by_its_seed(tmp_path, monkeypatch):
    write_sentences(tmp_path / "grid")
    sizes = {"dev_sentences": 3, "test_sentences": 5, "speeds": (1.0,)}

    def divided(seed: int, source: Path | str = tmp_path / "grid") -> dict[str, list[str]]:
        corpus = corpus_of("grid", tmp_path / "out", source=source, seed=seed, **sizes)
        return {split: [row.id for row in source.items()] for split, source in corpus.sources().items()}

    found = divided(0)
    assert [len(found[split]) for split in SPLITS] == [12, 3, 5]
    assert sorted(id for ids in found.values() for id in ids) == sorted(f"s{n}" for n in range(20))
    assert divided(0) == found != divided(1)
    prepare("grid", tmp_path / "out", source=tmp_path / "grid", **sizes)
    before = {path: state for path, state in states(tmp_path / "out").items() if "/" in path}
    monkeypatch.chdir(tmp_path)
    prepare("grid", Path("out"), source="grid", **sizes)  # the same files, called otherwise
    assert {path: state for path, state in states(tmp_path / "out").items() if "/" in path} == before


@pytest.fixture
def librispeech(tmp_path) -> Path:
    return write_librispeech(tmp_path / "LibriSpeech")


def test_librispeech(librispeech, tmp_path):
    corpus = corpus_of("librispeech", tmp_path / "out", source=librispeech)
    assert list(corpus.split_names()) == ["train", "dev", "test-clean"]
    summaries = prepare_corpus(corpus)
    assert {split: summary.examples for split, summary in summaries.items()} == {
        "train": 9, "dev": 1, "test-clean": 2
    }  # fmt: skip
    assert summaries["train"].speakers == 2
    train = Prepared(tmp_path / "out", "train")
    plain = {example.id: example for example in train.examples if "_sp" not in example.id}
    assert {id: text_of(example) for id, example in plain.items()} == {
        "1-10-0000": "THE FIRST LINE",
        "1-10-0001": "A SECOND ONE",
        "2-20-0000": "ANOTHER SPEAKER SAYS THIS",
    }
    assert list(plain) == sorted(plain)
    assert {example.speaker for example in plain.values()} == {"1", "2"}
    assert [example.duration_s for example in plain.values()] == [1.0, 2.0, 1.0]
    test = Prepared(tmp_path / "out", "test-clean")
    flac = librispeech / "test-clean" / "4" / "40" / "4-40-0001.flac"
    expected = extract_features(load_audio(flac, RATE), FeatureConfig())
    np.testing.assert_array_equal(test.features(1), expected.astype(np.float16))
    before = states(tmp_path / "out")
    prepare_corpus(corpus)
    assert states(tmp_path / "out") == before


def test_librispeech_that_is_not_there(librispeech, tmp_path):
    with pytest.raises(ValueError, match=rf"{librispeech} has none of train-clean-100, train-clean-360$"):
        prepare(
            "librispeech", tmp_path, source=librispeech, train_parts=["train-clean-100", "train-clean-360"]
        )
    with pytest.raises(ValueError, match=rf"{librispeech} has none of dev-clean$"):
        prepare("librispeech", tmp_path, source=librispeech, dev_parts=["dev-clean"])
    with pytest.raises(ValueError, match="has none of train-clean-100"):
        prepare("librispeech", tmp_path, source=tmp_path / "nowhere")


def test_damaged_files_of_librispeech_are_named(librispeech, tmp_path):
    flac = librispeech / "test-clean" / "4" / "40" / "4-40-0001.flac"
    cut_off(flac)
    with pytest.raises(PreparationError, match=r"1 problem\s+4-40-0001: .*4-40-0001\.flac: truncated"):
        prepare("librispeech", tmp_path / "out", source=librispeech, store="audio")
    flac.write_bytes(b"")
    with pytest.raises(ValueError, match=rf"{flac}"):
        prepare("librispeech", tmp_path / "out", source=librispeech, store="audio")


def test_lines_of_librispeech_without_audio_are_told(librispeech, tmp_path, caplog):
    (librispeech / "test-clean" / "4" / "40" / "4-40-0001.flac").unlink()
    with caplog.at_level(logging.WARNING):
        summaries = prepare("librispeech", tmp_path / "out", source=librispeech, store="audio")
    assert summaries["test-clean"].examples == 1
    assert any("4-40-0001.flac" in record.getMessage() for record in caplog.records)
