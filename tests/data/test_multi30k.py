"""Multi30k: both of its layouts, both directions, and what can be wrong with it."""

import pickle
import shutil

import pytest

from brctc.data import FeatureConfig, PreparationError, Prepared, prepare_corpus
from brctc.data.split import splits_in
from tests.cli.commands import brctc
from tests.data.folders import contents, states
from tests.data.pairs import ENGLISH, GERMAN, corpus_of, prepare, texts_of, write_lines, write_table

STEMS = ("train", "val", "test_2016_flickr", "test_2017_mscoco")
SPLITS = ["train", "dev", "test_2016_flickr", "test_2017_mscoco"]
PAIR = ("Zwei Hunde laufen über Gras.", "Two dogs are running on grass.")


@pytest.fixture
def lines(tmp_path):
    """As it is published: STEM.de and STEM.en, other languages beside them."""
    folder = tmp_path / "raw"
    for stem in STEMS:
        write_lines(folder / f"{stem}.de", GERMAN)
        write_lines(folder / f"{stem}.en", ENGLISH)
        write_lines(folder / f"{stem}.fr", GERMAN[:1])
    return folder


@pytest.fixture
def tables(tmp_path):
    folder = tmp_path / "tables"
    for stem in STEMS:
        rows = [(f"{stem}_{n:05d}", *pair) for n, pair in enumerate(zip(GERMAN, ENGLISH, strict=True))]
        write_table(folder / f"{stem}.tsv", rows)
    (folder / "LICENSE").write_text("")
    return folder


def test_splits(lines, tmp_path):
    corpus = corpus_of("multi30k", tmp_path / "out", source=lines)
    assert corpus.input == "text"
    assert list(corpus.split_names()) == SPLITS
    summaries = prepare_corpus(corpus)
    assert {split: summary.examples for split, summary in summaries.items()} == dict.fromkeys(SPLITS, 3)
    assert texts_of(tmp_path / "out", "dev")["val_00001"] == PAIR  # white space made one
    assert list(texts_of(tmp_path / "out", "test_2017_mscoco")) == [
        f"test_2017_mscoco_{n:05d}" for n in range(3)
    ]
    with pytest.raises(ValueError, match="multi30k is not audio: it has no features to choose"):
        prepare_corpus(corpus, FeatureConfig())


def test_both_layouts_are_the_same_corpus(lines, tables, tmp_path):
    prepare("multi30k", tmp_path / "a", source=lines)
    before = states(tmp_path / "a")
    prepare("multi30k", tmp_path / "b", source=tables, jobs=2)
    a, b = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert a.keys() == b.keys()
    assert {name for name in a if a[name] != b[name]} == {f"{split}.json" for split in SPLITS}  # the folder
    prepare("multi30k", tmp_path / "a", source=lines)
    assert states(tmp_path / "a") == before


def test_the_other_direction(tables, tmp_path):
    prepare("multi30k", tmp_path / "out", source=tables, reverse=True)
    assert texts_of(tmp_path / "out", "train")["train_00001"] == PAIR[::-1]
    there, back = (
        corpus_of("multi30k", tmp_path, source=tables, reverse=reverse) for reverse in (False, True)
    )
    assert there.sources()["dev"].digest() != back.sources()["dev"].digest()


def test_changes_are_noticed(lines, tmp_path):
    corpus = corpus_of("multi30k", tmp_path / "out", source=lines)
    prepare_corpus(corpus)
    stored = {split: Prepared(tmp_path / "out", split).source_digest for split in SPLITS}
    digests = lambda: {split: source.digest() for split, source in corpus.current_sources().items()}  # noqa: E731
    assert digests() == stored
    write_lines(lines / "val.en", ENGLISH[::-1])
    assert {split for split, digest in digests().items() if digest != stored[split]} == {"dev"}
    (lines / "train.en").unlink()
    assert corpus.current_sources() == {}
    shutil.rmtree(lines)  # what is prepared can be trained on without it
    assert corpus.current_sources() == {}
    assert {*corpus.split_names()} <= {*splits_in(tmp_path / "out")}


def test_sources_are_light(lines, tmp_path):
    source = corpus_of("multi30k", tmp_path, source=lines).sources()["train"]
    assert len(pickle.dumps(source)) < 1000
    assert pickle.loads(pickle.dumps(source)).digest() == source.digest()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train.de", r"raw/train\.de: No such file or directory; train\.en is there without it"),
        ("val.en", r"raw/val\.en: No such file or directory; val\.de is there without it"),
        ("test_2016_flickr.de", r"test_2016_flickr\.de: No such file or directory; test_2016_flickr\.en is"),
    ],
)
def test_a_missing_side(lines, tmp_path, name, message):
    (lines / name).unlink()
    with pytest.raises(ValueError, match=message):
        prepare("multi30k", tmp_path / "out", source=lines)
    assert splits_in(tmp_path / "out") == []


def test_a_missing_split(tables, tmp_path):
    (tables / "val.tsv").unlink()
    with pytest.raises(ValueError, match=r"tables has neither val\.tsv nor val\.de and val\.en"):
        prepare("multi30k", tmp_path / "out", source=tables)
    with pytest.raises(ValueError, match=r"nowhere has neither train\.tsv nor train\.de and train\.en"):
        prepare("multi30k", tmp_path / "out", source=tmp_path / "nowhere")


def test_sides_of_different_length(lines, tmp_path):
    write_lines(lines / "val.en", ENGLISH[:2])
    with pytest.raises(ValueError, match=r"raw/val\.de has 3 lines, .*raw/val\.en has 2: they are not trans"):
        prepare("multi30k", tmp_path / "out", source=lines)


def test_problems_are_listed_by_id(lines, tmp_path):
    write_lines(lines / "train.de", ("", GERMAN[1], GERMAN[2]))
    write_lines(lines / "train.en", (ENGLISH[0], "  ", "a\ufffdb"))
    for reverse in (False, True):  # what is wrong with a file does not depend on the direction
        with pytest.raises(PreparationError, match=r"raw/train\.de and train\.en: 3 problems") as caught:
            prepare("multi30k", tmp_path / "out", source=lines, reverse=reverse)
        assert [str(problem) for problem in caught.value.problems] == [
            "train_00000: the text is empty",
            "train_00001: the translation is empty",
            "train_00002: the translation has characters that are not text: U+FFFD",
        ]


def test_bytes_that_are_not_utf_8(lines, tables, tmp_path):
    for path in (lines / "val.de", tables / "val.tsv"):
        path.write_bytes(path.read_bytes().replace("über".encode(), "über".encode("latin-1")))
        message = rf"{path} is not UTF-8: invalid .* at byte \d+ of line {2 + (path.suffix == '.tsv')}$"
        with pytest.raises(ValueError, match=message):
            prepare("multi30k", tmp_path / "out", source=path.parent)


def test_bad_tables(tables, tmp_path):
    write_table(tables / "val.tsv", [("v0", "Satz")], "id\ttext")
    with pytest.raises(ValueError, match=r"val\.tsv lacks the columns .*'translation' for texts alone"):
        prepare("multi30k", tmp_path / "out", source=tables)
    write_table(tables / "val.tsv", [("v0", "Satz", "a.wav", "1.0")], "id\ttext\tpath\tduration")
    with pytest.raises(ValueError, match=r"val\.tsv lacks the column 'translation'"):
        prepare("multi30k", tmp_path / "out", source=tables)
    write_table(tables / "val.tsv", [("v0", "Satz"), ("v1", "a", "b"), ("v1", "c", "d")])
    with pytest.raises(PreparationError, match=r"v0: 2 fields, .*header's 3\s+v1: the id is used by an ear"):
        prepare("multi30k", tmp_path / "out", source=tables)


def test_command(lines, tmp_path):
    wanted = ("prepare", "multi30k", "--source", "raw", "--jobs", "2")
    done = brctc(tmp_path, *wanted, "--out", "p", "--set", "reverse=true")
    assert done.code == 0, done.err
    assert "test_2017_mscoco  " in done.out
    assert texts_of(tmp_path / "p", "dev")["val_00001"] == PAIR[::-1]
    write_lines(lines / "train.de", ("", *GERMAN[1:]))
    failed = brctc(tmp_path, *wanted, "--out", "q")
    assert failed.code == 2
    assert "raw/train.de and train.en: 1 problem\n  train_00000: the text is empty" in failed.err
