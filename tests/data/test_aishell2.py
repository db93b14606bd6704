"""Aishell-2 in its published layout: training of iOS, and development and test sets of three devices."""

# ruff: noqa: RUF001  (letters of full width are tested)

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

from brctc.data import FeatureConfig, PreparationError, Prepared, extract_features, load_audio, prepare_corpus
from brctc.data.corpora.aishell2 import spoken
from brctc.data.split import splits_in
from tests.cli.commands import brctc
from tests.data.corpora import corpus_of, prepare, text_of
from tests.data.folders import states
from tests.data.published import AISHELL2, write_aishell2
from tests.data.sounds import RATE, noise, write


@pytest.fixture
def published(tmp_path):
    return write_aishell2(tmp_path / "aishell2")


def test_splits(published, tmp_path):
    corpus = corpus_of("aishell2", tmp_path / "out", source=published, speeds=[1.0])
    assert list(corpus.split_names()) == ["train", "dev", "ios", "android", "mic"]
    assert corpus.test_names() == ["ios", "android", "mic"]
    summaries = prepare_corpus(corpus)
    assert [summary.examples for summary in summaries.values()] == [4, 1, 1, 1, 1]
    train = Prepared(tmp_path / "out", "train")
    found = {f"{example.speaker}/{example.id}": text_of(example) for example in train.examples}
    assert found == {path: text for path, (_, text) in AISHELL2.items()}
    assert list(found) == sorted(AISHELL2)
    assert [example.duration_s for example in train.examples] == [1.0, 1.25, 1.5, 1.75]
    first = [Prepared(tmp_path / "out", name).examples[0] for name in ("dev", "ios", "android", "mic")]
    assert [(example.id, text_of(example)) for example in first] == [
        ("ID0012W0001", "打开IOS"),
        ("IT0012W0001", "打开IOS"),
        ("AT0012W0001", "打开ANDROID"),
        ("MT0012W0001", "打开MIC"),
    ]
    wav = published / "AISHELL-2" / "iOS" / "data" / "wav" / "C0010" / "IC0010W0228.wav"
    expected = extract_features(load_audio(wav, RATE), FeatureConfig())
    np.testing.assert_array_equal(train.features(3), expected.astype(np.float16))
    before = states(tmp_path / "out")
    prepare_corpus(corpus)
    assert states(tmp_path / "out") == before


def test_the_folder_may_be_elsewhere(published, tmp_path):
    def digests(source: Path) -> list[str]:
        return [source.digest() for source in corpus_of("aishell2", "p", source=source).sources().values()]

    before = digests(published)
    published.rename(tmp_path / "moved")
    assert digests(tmp_path / "moved") == before
    elsewhere = corpus_of("aishell2", "p", source=tmp_path / "nowhere")
    assert list(elsewhere.split_names()) == ["train", "dev"]  # prepared elsewhere


def test_other_places_and_fewer_devices(published, tmp_path):
    """iOS beside its own development and test sets, and no other devices."""
    (published / "AISHELL-2" / "iOS").rename(published / "iOS")
    for split in ("dev", "test"):
        shutil.move(published / "AISHELL-DEV-TEST-SET" / "iOS" / split, published / "iOS" / split)
    shutil.rmtree(published / "AISHELL-DEV-TEST-SET")
    summaries = prepare("aishell2", tmp_path / "out", source=published, speeds=[1.0])
    assert {split: summary.examples for split, summary in summaries.items()} == {
        "train": 4, "dev": 1, "ios": 1
    }  # fmt: skip


def test_what_is_left_out_is_counted(published, tmp_path, caplog):
    data = published / "AISHELL-2" / "iOS" / "data"
    for number in (7, 9):
        write(data / "wav" / "C0002" / f"IC0002W000{number}.wav", noise(1))
    write(data / "wav" / "C0002" / "IC0002W0008.wav", noise(1))
    with (data / "trans.txt").open("a", encoding="utf-8") as file:
        file.write("IC0002W0008\n\nIC0099W0001\t没有录音\n")
    with caplog.at_level(logging.WARNING, "brctc.data"):
        summaries = prepare("aishell2", tmp_path / "out", source=published, speeds=[1.0])
    assert summaries["train"].examples == 4
    assert [record.getMessage() for record in caplog.records] == [
        f"{data}: left out: 2 without a transcript (IC0002W0007 first), 1 without text (IC0002W0008 first), "
        "1 without audio (IC0099W0001 first)"
    ]  # once, however often the files are read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("听beat it", "听BEAT IT"),
        ("帮我放一首歌Let's", "帮我放一首歌LET'S"),
        ("搬不走的要及时'关停并转'", "搬不走的要及时关停并转"),
        ("'小成'", "小成"),
        ("wi-fi，好吗?", "WI FI好吗"),
        ("我要ＡＴＭ", "我要ATM"),
        (" 二 〇 一 五 年 ", "二〇一五年"),
        ("𫖯 首", "𫖯首"),
    ],
)
def test_texts(text, said):
    assert spoken(text) == said


def test_what_is_missing_is_named(published, tmp_path):
    def refused(message: str) -> None:
        with pytest.raises(ValueError, match=message):
            prepare("aishell2", tmp_path / "out", source=published)
        assert not splits_in(tmp_path / "out")

    mic = published / "AISHELL-DEV-TEST-SET" / "Mic" / "test"
    shutil.rmtree(mic / "wav")
    refused(rf"{mic} has no utterance that can be used$")  # before anything is prepared
    (mic / "wav").mkdir()
    (mic / "wav" / "T0012.tar.gz").write_bytes(b"")
    refused(rf"{mic}/wav: 1 of 1 archives are not unpacked, T0012\.tar\.gz first")
    (mic / "trans.txt").write_text("A 一\nB 二\nA 三\n", encoding="utf-8")
    (mic / "wav" / "T0012").mkdir()
    refused(rf"{mic}/trans\.txt: line 3 has the id A of an earlier line")
    (mic / "trans.txt").unlink()
    refused(rf"{mic}/trans\.txt: No such file or directory")
    shutil.rmtree(published / "AISHELL-DEV-TEST-SET")
    refused(rf"{published} has none of AISHELL-2/iOS/dev, AISHELL-DEV-TEST-SET/iOS/dev, iOS/dev$")
    shutil.rmtree(published / "AISHELL-2")
    refused(rf"{published} has none of AISHELL-2/iOS/data, ")


def test_bad_files_are_named_or_skipped(published, tmp_path):
    wav = published / "AISHELL-2" / "iOS" / "data" / "wav" / "C0002" / "IC0002W0003.wav"
    wav.write_bytes(b"")
    with pytest.raises(PreparationError, match=r"1 problem\s+IC0002W0003: .*W0003\.wav: the file is empty"):
        prepare("aishell2", tmp_path / "out", source=published)
    arguments = ("--source", "aishell2", "--out", "p", "--set", "skip_bad=true", "--speeds", "1")
    done = brctc(tmp_path, "prepare", "aishell2", *arguments)
    assert done.code == 0, done.err
    assert "1 left out" in done.out
    assert len(Prepared(tmp_path / "p", "train").examples) == 3
