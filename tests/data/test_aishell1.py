"""Aishell-1 in its published layout: data_aishell/wav/{train,dev,test}/SPEAKER/*.wav and one transcript."""

import logging
import shutil
import tarfile

import numpy as np
import pytest

from brctc.data import FeatureConfig, PreparationError, Prepared, extract_features, load_audio, prepare_corpus
from brctc.data.corpora.aishell1 import TRANSCRIPT
from tests.cli.commands import brctc
from tests.data.corpora import corpus_of, prepare, text_of
from tests.data.folders import states
from tests.data.published import write_aishell1
from tests.data.sounds import RATE, cut_off, noise, write

TRAIN = {
    "BAC009S0002W0122": "而对楼市成交抑制作用",
    "BAC009S0002W0123": "K歌和A股",
    "BAC009S0003W0121": "IPHONE三十G",
}


@pytest.fixture
def published(tmp_path):
    return write_aishell1(tmp_path / "aishell" / "data_aishell")


def test_splits(published, tmp_path):
    corpus = corpus_of("aishell1", tmp_path / "out", source=published.parent, speeds=[1.0])
    assert list(corpus.split_names()) == ["train", "dev", "test"]
    summaries = prepare_corpus(corpus)
    assert [summary.examples for summary in summaries.values()] == [3, 1, 1]
    train = Prepared(tmp_path / "out", "train")
    assert {example.id: text_of(example) for example in train.examples} == TRAIN
    assert [example.id for example in train.examples] == sorted(TRAIN)
    assert [example.speaker for example in train.examples] == ["S0002", "S0002", "S0003"]
    assert [example.duration_s for example in train.examples] == [1.0, 1.25, 1.5]
    wav = published / "wav" / "test" / "S0764" / "BAC009S0764W0121.wav"
    expected = extract_features(load_audio(wav, RATE), FeatureConfig())
    np.testing.assert_array_equal(Prepared(tmp_path / "out", "test").features(0), expected.astype(np.float16))
    before = states(tmp_path / "out")
    prepare_corpus(corpus)
    assert states(tmp_path / "out") == before


@pytest.mark.parametrize("source", [".", "../data_aishell", "..", "../../aishell"])
def test_the_folder_itself_or_the_one_above(published, tmp_path, monkeypatch, source):
    monkeypatch.chdir(published)
    rows = list(corpus_of("aishell1", tmp_path / "out", source=source).sources()["train"].items())
    assert {row.id: row.text for row in rows} == TRAIN
    assert all(row.path.is_file() for row in rows)


def test_recordings_without_a_transcript_are_counted(published, tmp_path, caplog):
    for number in (124, 200):
        write(published / "wav" / "train" / "S0002" / f"BAC009S0002W0{number}.wav", noise(1))
    with caplog.at_level(logging.WARNING):
        summaries = prepare("aishell1", tmp_path / "out", source=published, store="audio", speeds=[1.0])
    assert summaries["train"].examples == 3
    told = [record.getMessage() for record in caplog.records if "transcript" in record.getMessage()]
    assert told == [f"{published}: left out: 2 without a transcript (BAC009S0002W0124 first)"]
    assert not logging.getLogger().filters


def pack(folder) -> None:
    """As the archive has it before its archives are unpacked."""
    for speaker in sorted((folder / "wav").glob("*/*")):
        with tarfile.open(folder / "wav" / f"{speaker.name}.tar.gz", "w:gz") as archive:
            archive.add(speaker, f"{speaker.parent.name}/{speaker.name}")


def test_archives_of_speakers(published, tmp_path):
    pack(published)
    assert len(corpus_of("aishell1", tmp_path, source=published).sources()) == 3  # kept beside what they hold
    shutil.rmtree(published / "wav" / "train" / "S0003")
    message = rf"{published}/wav: 1 of 4 archives are not unpacked, S0003\.tar\.gz first: unpack each"
    with pytest.raises(ValueError, match=message):
        prepare("aishell1", tmp_path / "out", source=published)
    for part in ("train", "dev", "test"):
        shutil.rmtree(published / "wav" / part)
    with pytest.raises(ValueError, match=r"4 of 4 archives are not unpacked, S0002\.tar\.gz first"):
        prepare("aishell1", tmp_path / "out", source=published)
    assert not (tmp_path / "out").exists()


def test_what_is_missing_is_named(published, tmp_path):
    with pytest.raises(ValueError, match=rf"^{tmp_path} has no folder data_aishell, and is not that folder$"):
        prepare("aishell1", tmp_path / "out", source=tmp_path)
    with pytest.raises(ValueError, match=r"nowhere has no folder data_aishell"):
        prepare("aishell1", tmp_path / "out", source=tmp_path / "nowhere")
    shutil.rmtree(published / "wav" / "dev" / "S0724")
    with pytest.raises(ValueError, match=rf"{published}/wav/dev has no speakers' folders with wav files"):
        prepare("aishell1", tmp_path / "out", source=published)
    write(published / "wav" / "dev" / "S0724" / "BAC009S0724W0121.wav", noise(1))
    (published / TRANSCRIPT).write_text("BAC009S0002W0122 而\n\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"v0\.8\.txt: line 2 is '', expected an id and its text"):
        prepare("aishell1", tmp_path / "out", source=published)
    (published / TRANSCRIPT).write_bytes("BAC009S0002W0122 而\n".encode("gbk"))
    with pytest.raises(ValueError, match=r"v0\.8\.txt is not UTF-8: .* of line 1"):
        prepare("aishell1", tmp_path / "out", source=published)
    (published / TRANSCRIPT).unlink()
    with pytest.raises(ValueError, match=r"aishell_transcript_v0\.8\.txt: No such file or directory"):
        prepare("aishell1", tmp_path / "out", source=published)


def test_damaged_files_are_named(published, tmp_path):
    wav = published / "wav" / "train" / "S0003" / "BAC009S0003W0121.wav"
    cut_off(wav)
    with pytest.raises(PreparationError, match=r"1 problem\s+BAC009S0003W0121: .*W0121\.wav: truncated"):
        prepare("aishell1", tmp_path / "out", source=published)
    summaries = prepare("aishell1", tmp_path / "out", source=published, skip_bad=True, speeds=[1.0])
    assert summaries["train"].examples == 2
    assert [problem.id for problem in summaries["train"].skipped] == ["BAC009S0003W0121"]
    wav.write_bytes(b"")
    with pytest.raises(ValueError, match=r"BAC009S0003W0121\.wav"):
        prepare("aishell1", tmp_path / "out", source=published)


def test_command(published, tmp_path):
    done = brctc(tmp_path, "prepare", "aishell1", "--source", "aishell", "--out", "p", "--speeds", "1")
    assert done.code == 0, done.err
    assert len(Prepared(tmp_path / "p", "train").examples) == 3
