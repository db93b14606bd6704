"""Tatoeba's sentences: a TSV file for each split."""

import pytest

from brctc.data import PreparationError
from tests.cli.commands import brctc
from tests.data.pairs import ENGLISH, GERMAN, corpus_of, prepare, texts_of, write_table

ROWS = [(f"t{n}", *pair) for n, pair in enumerate(zip(GERMAN, ENGLISH, strict=True))]


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "dev"):
        write_table(tmp_path / "tatoeba" / f"{split}.tsv", ROWS)
    return tmp_path / "tatoeba"


def test_splits(folder, tmp_path):
    corpus = corpus_of("tatoeba", tmp_path, source=folder)
    assert list(corpus.split_names()) == ["train", "dev"]
    write_table(folder / "test.tsv", ROWS[:1])
    assert list(corpus.split_names()) == ["train", "dev", "test"]
    summaries = prepare("tatoeba", tmp_path / "out", source=folder, reverse=True, jobs=2)
    assert [summary.examples for summary in summaries.values()] == [3, 3, 1]
    assert texts_of(tmp_path / "out", "test") == {"t0": (ENGLISH[0], GERMAN[0])}


def test_what_is_missing(folder, tmp_path):
    (folder / "dev.tsv").unlink()
    with pytest.raises(ValueError, match=r"tatoeba has no dev\.tsv"):
        prepare("tatoeba", tmp_path / "out", source=folder)
    write_table(folder / "dev.tsv", [("d0", ""), ("d1", "Ja.", ""), ("d2", "Nein.", "No.")])
    with pytest.raises(PreparationError, match=r"d0: 2 fields, .*header's 3\s+d1: the translation is empty"):
        prepare("tatoeba", tmp_path / "out", source=folder)


def test_command(folder, tmp_path):
    done = brctc(tmp_path, "prepare", "tatoeba", "--source", "tatoeba", "--out", "p", "--jobs", "2")
    assert done.code == 0, done.err
    assert texts_of(tmp_path / "p", "dev")["t0"] == (GERMAN[0], ENGLISH[0])
    refused = brctc(tmp_path, "prepare", "tatoeba", "--source", "tatoeba", "--out", "p", "--speeds", "1")
    assert refused.code == 2
    assert "--speeds is for audio, and tatoeba is not audio" in refused.err
