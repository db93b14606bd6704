"""Times of words for published corpora, from a CTM."""

import logging

import pytest

from brctc.data import PreparationError, Prepared, WordTime
from tests.cli.commands import brctc
from tests.data.corpora import corpus_of, prepare
from tests.data.published import write_aishell1, write_aishell2, write_wenetspeech

ANDROID = "AT0012W0001 1 0.10 0.30 打开 1.0\nAT0012W0001 1 0.40 0.50 android 1.0\n"
TIMES = (WordTime("打开", 0.1, 0.4), WordTime("ANDROID", 0.4, 0.9))


@pytest.fixture
def published(tmp_path):
    (tmp_path / "times.ctm").write_text(ANDROID, encoding="utf-8")
    return write_aishell2(tmp_path / "aishell2")


def test_times(published, tmp_path, caplog):
    arguments = ("--source", "aishell2", "--out", "p", "--set", "word_times=times.ctm", "--speeds", "1")
    done = brctc(tmp_path, "prepare", "aishell2", *arguments)
    assert done.code == 0, done.err
    (android,) = Prepared(tmp_path / "p", "android").examples
    assert [(time.word, round(time.start_s, 6), round(time.end_s, 6)) for time in android.word_times] == [
        tuple(time) for time in TIMES
    ]
    for split in ("train", "dev", "ios", "mic"):
        assert all(example.word_times is None for example in Prepared(tmp_path / "p", split).examples)


def test_digests(published, tmp_path):
    def digests():
        corpus = corpus_of("aishell2", tmp_path, source=published, word_times=tmp_path / "times.ctm")
        return {name: source.digest() for name, source in corpus.sources().items()}

    without = {
        name: source.digest()
        for name, source in corpus_of("aishell2", tmp_path, source=published).sources().items()
    }
    first = digests()
    assert {name for name in first if first[name] != without[name]} == {"android"}
    (tmp_path / "times.ctm").write_text(ANDROID.replace("0.10", "0.11"), encoding="utf-8")
    assert {name for name in first if first[name] != digests()[name]} == {"android"}


def test_a_part_of_a_file(tmp_path):
    """Times count from the start of a segment."""
    (tmp_path / "times.ctm").write_text(
        "D01_S1 1 0.5 0.25 开发 1\nD01_S1 1 0.75 0.5 集 1\n", encoding="utf-8"
    )
    source = write_wenetspeech(tmp_path / "w")
    options = {"source": source, "word_times": tmp_path / "times.ctm", "speeds": [1.0]}
    prepare("wenetspeech", tmp_path / "out", **options)
    first, second = Prepared(tmp_path / "out", "dev").examples
    assert first.word_times is None
    assert second.word_times == (WordTime("开发", 0.5, 0.75), WordTime("集", 0.75, 1.25))
    assert second.duration_s == 1.77


def test_what_is_lacking_is_told_and_what_is_wrong_refused(tmp_path, caplog):
    published = write_aishell1(tmp_path / "data_aishell")
    ctm = tmp_path / "times.ctm"

    def prepared(**options):
        prepare("aishell1", tmp_path / "out", source=published, word_times=ctm, speeds=[1.0], **options)
        return Prepared(tmp_path / "out", "test").examples

    with pytest.raises(ValueError, match=rf"^{ctm}: No such file or directory$"):
        prepared()
    ctm.write_text("BAC009S0002W0122 1 0 1 而 1\n", encoding="utf-8")  # of train
    with pytest.raises(ValueError, match=rf"^{ctm} has no utterance of dev, test$"):
        prepared()
    ctm.write_text("BAC009S0764W0121 1 0 1 另 1\n", encoding="utf-8")
    with pytest.raises(PreparationError, match=r"times\.ctm: 1 problem\s+BAC009S0764W0121: "):
        prepared()
    with caplog.at_level(logging.WARNING, "brctc.data"):
        assert prepared(skip_bad=True)[0].word_times is None
    assert "1 of 1 utterances of" in caplog.text
