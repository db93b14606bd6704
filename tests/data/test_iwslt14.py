"""IWSLT 2014 in miniature: tags, entities, cleaning, and sides that do not go together."""

import logging

import pytest

from brctc.data import FeatureConfig, prepare_corpus
from brctc.data.corpora.iwslt14 import TOKEN, lengths_fit
from brctc.data.split import splits_in
from tests.cli.commands import brctc
from tests.data.pairs import corpus_of, prepare, texts_of, write_lines
from tests.data.published import talks, write_iwslt14, xml_segments


@pytest.fixture
def archive(tmp_path):
    return write_iwslt14(tmp_path / "de-en")


def test_splits(archive, tmp_path):
    corpus = corpus_of("iwslt14", tmp_path / "out", source=archive)
    assert list(corpus.split_names()) == ["train", "dev", "test"]
    summaries = prepare_corpus(corpus)
    assert [summary.examples for summary in summaries.values()] == [60, 2, 15]
    dev = texts_of(tmp_path / "out", "dev")  # lines 23 and 46, from 1: with the title and the description
    assert dev == {
        f"talks_{n:06d}": (f'Satz {n - 2} is "here", isn\'t it?', f'Sentence {n - 2} is "here", isn\'t it?')
        for n in (22, 45)
    }
    train = texts_of(tmp_path / "out", "train")
    assert not train.keys() & dev.keys()
    assert train["talks_000000"] == ("Satz: Title & more", "Sentence: Title & more")
    assert train["talks_000001"] == ("About: Satz things.", "About: Sentence things.")
    assert not any("<" in side or "ted.com" in side for pair in train.values() for side in pair)
    test = texts_of(tmp_path / "out", "test")
    assert list(test)[::3] == ["dev2010_0001", "dev2012_0001", "tst2010_0001", "tst2011_0001", "tst2012_0001"]
    assert test["tst2010_0002"] == ("de tst2010 2 <b> & c", "en tst2010 2 <b> & c")
    with pytest.raises(ValueError, match="iwslt14 is not audio"):
        prepare_corpus(corpus, FeatureConfig())


def test_the_folder_above_and_the_other_direction(archive, tmp_path):
    prepare("iwslt14", tmp_path / "out", source=tmp_path, reverse=True, jobs=2)
    assert texts_of(tmp_path / "out", "test")["dev2010_0001"] == (
        "en dev2010 1 <b> & c",
        "de dev2010 1 <b> & c",
    )


def test_spanish_with_the_sets_that_are_there(tmp_path):
    write_iwslt14(tmp_path / "es-en", "es-en", ("dev2010", "tst2010"))
    prepare("iwslt14", tmp_path / "out", source=tmp_path, languages="es-en")
    assert len(texts_of(tmp_path / "out", "test")) == 6
    assert texts_of(tmp_path / "out", "train")["talks_000001"][0] == "About: Frase things."


def test_cleaning(archive, tmp_path, caplog):
    german, english = list(talks("de")), list(talks("en"))
    german[10], english[11] = "", "   "
    german[12], english[12] = "", ""
    german[13] = "eins " * 17
    german[14] = english[14] = "word " * 176
    write_lines(archive / "train.tags.de-en.de", tuple(german))
    write_lines(archive / "train.tags.de-en.en", tuple(english))
    with caplog.at_level(logging.WARNING, "brctc.data"):
        prepare("iwslt14", tmp_path / "out", source=archive)
    train = texts_of(tmp_path / "out", "train")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1  # once, however often the files are read
    assert "57 pairs; left out: 3 with an empty side, 2 too long or of too different lengths" in told[0]
    assert not {f"talks_{n:06d}" for n in range(6, 11)} & train.keys()
    assert train["talks_000011"][0].startswith("Satz 9 ")  # nothing is shifted against its translation
    assert train["talks_000011"][1].startswith("Sentence 9 ")


def test_empty_segments_are_left_out_in_pairs(archive, tmp_path, caplog):
    path = archive / "IWSLT14.TED.tst2010.de-en.de.xml"
    path.write_text(path.read_text().replace("de tst2010 2 &lt;b&gt; &amp; c", ""))
    with caplog.at_level(logging.WARNING, "brctc.data"):
        prepare("iwslt14", tmp_path / "out", source=archive)
    assert any("left out: 1 with an empty side" in record.getMessage() for record in caplog.records)
    test = texts_of(tmp_path / "out", "test")
    assert len(test) == 14
    assert test["tst2010_0003"] == ("de tst2010 3 <b> & c", "en tst2010 3 <b> & c")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("I haven't, you know...", ["I", "haven", "'t", ",", "you", "know", "..."]),
        (
            "A so-called 3.5-fold rise (1,000).",
            ["A", "so-called", "3.5-fold", "rise", "(", "1,000", ")", "."],
        ),
        ("„Weiße“ Über-Ich", ["„", "Weiße", "“", "Über-Ich"]),
    ],
)
def test_tokens(text, tokens):
    assert TOKEN.findall(text) == tokens


def test_lengths():
    assert lengths_fit("a b c", "a b")
    assert not lengths_fit("a b c d", "a b")
    assert not lengths_fit("a b", "a b c d")
    assert lengths_fit("a " * 175, "b " * 175)
    assert not lengths_fit("a " * 176, "b " * 175)
    assert not lengths_fit("", "")


def test_sides_of_different_length(archive, tmp_path):
    path = archive / "train.tags.de-en.de"
    write_lines(path, talks("de", 59))
    with pytest.raises(
        ValueError, match=r"en\.de has 61 lines of text, .*en\.en has 62: they are not transl"
    ):
        prepare("iwslt14", tmp_path / "out", source=archive)
    write_lines(path, talks("de"))
    write_lines(archive / "IWSLT14.TED.tst2011.de-en.en.xml", xml_segments("en", "tst2011", 2))
    with pytest.raises(ValueError, match=r"tst2011\.de-en\.de\.xml has 3 lines of text, .*en\.xml has 2"):
        prepare("iwslt14", tmp_path / "out", source=archive)
    assert "test" not in splits_in(tmp_path / "out")


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (
            "train.tags.de-en.en",
            r"de-en\.en: No such file or directory; train\.tags\.de-en\.de is there with",
        ),
        ("train.tags.de-en.*", r"train\.tags\.de-en\.de: No such file or directory$"),
        (
            "*tst2010*.en.xml",
            r"TED\.tst2010\.de-en\.en\.xml: No such file .*; IWSLT14\.TED\.tst2010\.de-en\.de\.x",
        ),
        (
            "*dev2012*.de.xml",
            r"TEDX\.dev2012\.de-en\.de\.xml: No such file .*; IWSLT14\.TEDX\.dev2012\.de-en\.en",
        ),
        ("*.xml", r"has none of IWSLT14\.TED\.\{dev2010,dev2012,tst2010,tst2011,tst2012\}\.de-en\.\*\.xml"),
    ],
)
def test_missing_files_are_named(archive, tmp_path, missing, message):
    for path in archive.glob(missing):
        path.unlink()
    with pytest.raises(ValueError, match=message):
        prepare("iwslt14", tmp_path / "out", source=archive)


def test_damaged_files_are_named(archive, tmp_path):
    path = archive / "train.tags.de-en.de"
    path.write_bytes(path.read_bytes().replace(b"Satz 7 ", b"S\xe4tze 7 "))
    with pytest.raises(ValueError, match=rf"{path} is not UTF-8: .* of line 14$"):
        prepare("iwslt14", tmp_path / "out", source=archive)
    write_lines(path, talks("de"))
    path = archive / "IWSLT14.TED.tst2010.de-en.de.xml"
    path.write_text(path.read_text().replace("2 &lt;b&gt; &amp; c </seg>", "2"))
    with pytest.raises(ValueError, match=rf'{path}: line 6 is not <seg id="n"> text </seg>'):
        prepare("iwslt14", tmp_path / "out", source=archive)


def test_command(archive, tmp_path):
    done = brctc(tmp_path, "prepare", "iwslt14", "--source", "de-en", "--out", "p", "--jobs", "2")
    assert done.code == 0, done.err
    assert "62 pairs; left out: 0 with an empty side, 0 too long" in done.err
    wrong = brctc(
        tmp_path, "prepare", "iwslt14", "--source", "de-en", "--out", "q", "--set", "languages=fr-en"
    )
    assert wrong.code == 2
    assert "iwslt14: languages: expected 'de-en' or 'es-en'" in wrong.err
