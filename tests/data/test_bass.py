"""Speech with translations in one manifest that says what is for what."""

import pytest

from brctc.data import PreparationError, Prepared, prepare_corpus
from tests.cli.commands import brctc
from tests.data.pairs import corpus_of, write_table
from tests.data.sounds import noise, write

HEADER = "id\tspeaker\ttext\ttranslation\tpath\tduration\tstart_sample\tnum_samples\tsplit\tes"


def row(n: int, split: str, translation: str = "Was willst du?") -> tuple[str, ...]:
    part = (f"{8000 * n}", "8000")
    return (f"b{n}", "foster", f"What you want {n}?", translation, "audio/0.flac", "0.5", *part, split, "Qué")


@pytest.fixture
def folder(tmp_path):
    """Lines of one file, of both splits and in any order."""
    write(tmp_path / "bass" / "audio" / "0.flac", noise(4.0))
    rows = [row(n, "dev" if n % 3 == 0 else "train") for n in range(8)]
    write_table(tmp_path / "bass" / "manifest.tsv", rows, HEADER)
    return tmp_path / "bass"


def test_splits(folder, tmp_path):
    corpus = corpus_of("bass", tmp_path / "out", source=folder)
    assert corpus.small_scale
    assert list(corpus.split_names()) == ["train", "dev"]
    summaries = prepare_corpus(corpus, jobs=2)
    assert [summary.examples for summary in summaries.values()] == [15, 3]
    dev = Prepared(tmp_path / "out", "dev")
    assert [example.id for example in dev.examples] == ["b0", "b3", "b6"]
    assert dev.examples[1].texts == {"transcript": "What you want 3?", "translation": "Was willst du?"}
    assert dev.examples[1].speaker == "foster"
    write_table(folder / "manifest.tsv", [row(0, "train"), row(1, "dev"), row(2, "test")], HEADER)
    assert list(corpus.split_names()) == ["train", "dev", "test"]
    elsewhere = corpus_of("bass", tmp_path / "out", source=tmp_path / "nowhere")
    assert list(elsewhere.split_names()) == ["train", "dev"]


def test_what_is_wrong(folder, tmp_path):
    corpus = corpus_of("bass", tmp_path / "out", source=folder / "manifest.tsv")
    write_table(folder / "manifest.tsv", [row(0, "train"), row(1, "dve"), row(2, "")], HEADER)
    with pytest.raises(
        PreparationError, match=r"2 problems\s+b1: the split is 'dve', .*\s+b2: the split is ''"
    ):
        corpus.sources()
    write_table(folder / "manifest.tsv", [row(0, "train")], HEADER)
    with pytest.raises(ValueError, match=r"manifest\.tsv has no rows whose split is dev"):
        corpus.sources()
    write_table(folder / "manifest.tsv", [row(0, "train"), row(1, "dev", "")], HEADER)
    with pytest.raises(
        PreparationError, match=r"bass/manifest\.tsv \(dev\): 1 problem\s+b1: the translation is"
    ):
        prepare_corpus(corpus)
    without = [values[:3] + values[4:] for values in (row(0, "train"), row(1, "dev"))]
    write_table(folder / "manifest.tsv", without, HEADER.replace("\ttranslation", ""))
    with pytest.raises(ValueError, match=r"manifest\.tsv lacks the column 'translation'"):
        corpus.sources()


def test_command(folder, tmp_path):
    arguments = ("--source", "bass", "--out", "p", "--jobs", "2", "--speeds", "1", "--store", "audio")
    done = brctc(tmp_path, "prepare", "bass", *arguments)
    assert done.code == 0, done.err
    assert len(Prepared(tmp_path / "p", "train").examples) == 5
