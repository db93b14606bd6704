"""WenetSpeech in its published layout: one JSON file, and hours of speech in opus files."""

import logging
import pickle
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile

from brctc.data import FeatureConfig, PreparationError, Prepared, extract_features, prepare_corpus
from brctc.data.audio import resample
from brctc.data.corpora.wenetspeech import Segments
from brctc.data.split import splits_in
from tests.cli.commands import brctc
from tests.data.corpora import corpus_of, prepare, text_of
from tests.data.folders import contents, states
from tests.data.published import (
    DEV,
    MEETING,
    NET,
    WENETSPEECH,
    YOUTUBE,
    audio,
    segment,
    write_json,
    write_wenetspeech,
)
from tests.data.sounds import RATE, cut_off


@pytest.fixture
def published(tmp_path):
    return write_wenetspeech(tmp_path / "wenetspeech")


def cut(path: Path, start_s: float, end_s: float) -> np.ndarray:
    """The features of a part of a file that is decoded whole."""
    samples, rate = soundfile.read(path, dtype="float32")
    part = samples[round(start_s * rate) : round(end_s * rate)]
    return extract_features(resample(part, rate, RATE), FeatureConfig())


def test_splits(published, tmp_path):
    corpus = corpus_of("wenetspeech", tmp_path / "out", source=published, speeds=[1.0])
    assert list(corpus.split_names()) == ["train", "dev", "test_net", "test_meeting"]
    summaries = prepare_corpus(corpus)
    assert [summary.examples for summary in summaries.values()] == [4, 2, 1, 1]
    assert [summary.resampled for summary in summaries.values()] == [(), (48000,), (), (24000,)]
    train = Prepared(tmp_path / "out", "train")
    assert {example.id: text_of(example) for example in train.examples} == {
        "Y01_S0": "怎么样这些日子",
        "Y01_S1": "住得OK吗",
        "Y01_S2": "HELLO WORLD",
        "Y01_S4": "最后",
    }
    assert [example.duration_s for example in train.examples] == [1.75, 0.75, 1.56, 0.8]
    assert {text_of(example) for example in Prepared(tmp_path / "out", "test_net").examples} == {"网络"}
    for split, number, path, start, end in (
        ("train", 0, YOUTUBE, 0.5, 2.25),
        ("train", 2, YOUTUBE, 3.01, 4.567),
        ("train", 3, YOUTUBE, 7.2, 8.0),
        ("dev", 1, DEV, 3.333, 5.1),
        ("test_meeting", 0, MEETING, 1.0, 2.0),
    ):
        found = Prepared(tmp_path / "out", split).features(number)
        np.testing.assert_allclose(found, cut(published / path, start, end), atol=0.01)
    before = states(tmp_path / "out")
    prepare_corpus(corpus)
    assert states(tmp_path / "out") == before


def test_several_processes_make_the_same(published, tmp_path):
    for jobs in (1, 2):
        prepare("wenetspeech", tmp_path / f"p{jobs}", source=published, speeds=[1.0], jobs=jobs)
    assert contents(tmp_path / "p1") == contents(tmp_path / "p2")


@pytest.mark.parametrize(
    ("subset", "ids"),
    [("L", ["Y01_S0", "Y01_S1", "Y01_S2", "Y01_S4"]), ("M", ["Y01_S0", "Y01_S1"]), ("S", ["Y01_S0"])],
)
def test_subsets(published, tmp_path, subset, ids):
    sources = corpus_of("wenetspeech", tmp_path / "out", source=published, subset=subset).sources()
    assert [row.id for row in sources["train"].items()] == ids
    assert [sources[split].size() for split in sources] == [len(ids), 2, 1, 1]


def test_a_file_with_many_segments_is_opened_once(published, monkeypatch):
    source = Segments(published / "WenetSpeech.json", "L")
    opened = []
    real = soundfile.SoundFile.__init__
    monkeypatch.setattr(
        soundfile.SoundFile, "__init__", lambda self, *a, **k: (opened.append(a), real(self, *a, **k))[1]
    )
    rows = list(source.items())
    assert not opened  # what is listed is not looked at
    for row in (rows[2], rows[0], rows[3], rows[1]):
        assert source.load(row).sample_rate == 16000
    assert len(opened) == 1
    assert pickle.loads(pickle.dumps(source)).load(rows[0]).id == "Y01_S0"


def test_digests(published, tmp_path):
    def digest(subset: str = "L", source: Path = published) -> str:
        return Segments(source / "WenetSpeech.json", subset).digest()

    first = digest()
    assert first != digest("M")
    shutil.copytree(published, tmp_path / "copy")
    assert digest(source=tmp_path / "copy") == first  # wherever it is
    for change in ({"begin_time": 0.25}, {"end_time": 2.5}, {"text": "别的"}, {"sid": "Y01_S00"}):
        first_audio = WENETSPEECH[0] | {
            "segments": [WENETSPEECH[0]["segments"][0] | change, *WENETSPEECH[0]["segments"][1:]]
        }
        write_json(published, [first_audio, *WENETSPEECH[1:]])
        assert digest() != first
    write_json(published, [WENETSPEECH[0] | {"path": DEV}, *WENETSPEECH[1:]])
    assert digest() != first
    write_json(published, WENETSPEECH)
    assert digest() == first


def test_segments_without_text_are_counted(published, tmp_path, caplog):
    empty = audio(YOUTUBE, segment("Y02_S0", 0, 1, " ", "L"), segment("Y02_S1", 1, 2, "", "L"))
    write_json(published, [*WENETSPEECH, empty])
    with caplog.at_level(logging.WARNING, "brctc.data"):
        summaries = prepare("wenetspeech", tmp_path / "out", source=published, speeds=[1.0])
    assert summaries["train"].examples == 4
    told = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert told == [f"{published}/WenetSpeech.json (L): left out: 2 without text (Y02_S0 first)"]


def test_missing_files_are_named_or_skipped(published, tmp_path):
    (published / DEV).unlink()
    message = rf"2 problems\s+D01_S0: {published / DEV}: no such file\s+D01_S1: .*: no such file$"
    with pytest.raises(PreparationError, match=message):
        prepare("wenetspeech", tmp_path / "out", source=published, speeds=[1.0])
    shutil.copy(published / NET, published / DEV)
    (published / YOUTUBE).unlink()
    with pytest.raises(PreparationError, match="4 problems"):
        prepare("wenetspeech", tmp_path / "all", source=published, skip_bad=True)  # nothing is left
    other = audio(NET, segment("N02_S0", 2, 3, "还在", "L"))
    write_json(published, [*WENETSPEECH, other])
    summaries = prepare("wenetspeech", tmp_path / "out", source=published, skip_bad=True, speeds=[1.0])
    assert summaries["train"].examples == 1
    assert len(summaries["train"].skipped) == 4


def test_bad_segments_are_named(published, tmp_path):
    beyond = audio(YOUTUBE, segment("Y03_S0", 7.5, 9.0, "太长", "L"), segment("Y03_S1", 20, 21, "太晚", "L"))
    backwards = audio(YOUTUBE, segment("Y04_S0", 2.0, 1.0, "倒", "L"), segment("Y04_S1", -1, 1, "负", "L"))
    broken = audio(YOUTUBE, {"sid": "Y05_S0", "subsets": ["L"]}, ["L"], {"subsets": None})
    write_json(published, [*WENETSPEECH, beyond, backwards, broken, {"aid": "x"}, "nothing"])
    with pytest.raises(PreparationError) as caught:
        prepare("wenetspeech", tmp_path / "out", source=published, speeds=[1.0])
    found = [str(problem) for problem in caught.value.problems]
    expected = "expected an object with sid, text, subsets, and begin_time and end_time in seconds"
    assert found == [
        f"segment 0 of {YOUTUBE}: Y04_S0 is from 2.0 to 1.0 s",
        f"segment 1 of {YOUTUBE}: Y04_S1 is from -1 to 1 s",
        f"segment 0 of {YOUTUBE}: {expected}",
        f"segment 1 of {YOUTUBE}: {expected}",
        f"segment 2 of {YOUTUBE}: {expected}",
        "audio 7: expected an object with path and segments",
        "audio 8: expected an object with path and segments",
        f"Y03_S0: {published / YOUTUBE}: samples 120000 to 144000 were asked for, it has 128000",
        f"Y03_S1: {published / YOUTUBE}: samples 320000 to 336000 were asked for, it has 128000",
    ]


def test_what_is_missing_is_named(published, tmp_path):
    def refused(message: str) -> None:
        with pytest.raises(ValueError, match=message):
            prepare("wenetspeech", tmp_path / "out", source=published)
        assert not splits_in(tmp_path / "out")

    write_json(published, WENETSPEECH[:3])
    refused(r"WenetSpeech\.json \(TEST_MEETING\) has no utterance that can be used$")
    cut_off(published / "WenetSpeech.json")
    refused(r"WenetSpeech\.json is not JSON: it ends too early")
    (published / "WenetSpeech.json").unlink()
    refused(rf"{published}/WenetSpeech\.json: No such file or directory$")


def test_millions_of_segments_need_no_memory(tmp_path):
    audios = [
        audio(f"a/{n}.opus", *(segment(f"Y{n}_S{m}", m, m + 1, "怎么样" * 5, "L") for m in range(500)))
        for n in range(200)
    ]
    write_json(tmp_path / "w", audios, indent=None)
    del audios
    source = Segments(tmp_path / "w" / "WenetSpeech.json", "L")
    assert source.path.stat().st_size > 12 << 20
    tracemalloc.start()
    assert source.size() == 100_000  # of its items, one after the other
    assert source.digest()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 << 20  # all rows would be 40


def test_command(published, tmp_path):
    arguments = ("--source", "wenetspeech", "--out", "p", "--set", "subset=M", "--store", "audio")
    done = brctc(tmp_path, "prepare", "wenetspeech", *arguments)
    assert done.code == 0, done.err
    assert len(Prepared(tmp_path / "p", "train").examples) == 2
