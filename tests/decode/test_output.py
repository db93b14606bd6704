"""Files of results, read back by readers that know the formats and nothing else."""

import itertools
import json
import re

import pytest

from brctc.data import WordTime
from brctc.decode import Result, write_ctm, write_jsonl, write_srt, write_textgrid

WORDS = (WordTime("don't", 0.4, 0.62), WordTime('say"so', 0.62, 1.0), WordTime("now", 61.0, 61.25))
TOKENS = tuple(WordTime(f"t{k}", 0.4 + 0.1 * k, 0.45 + 0.1 * k) for k in range(4))


def result(**changes):
    fields = {
        "id": "a file",
        "text": "don't say\"so now",
        "tokens": [3, 1, 2, 2],
        "score": -1.5,
        "factor": 0.25,
        "duration_s": 62.0,
        "encoder_s": 0.01,
        "decoder_s": 0.02,
        "frames": [10, 12, 15, 18],
        "last_frames": [10, 13, 16, 18],
        "token_times": TOKENS,
        "word_times": WORDS,
        "no_times": None,
    }
    return Result(**(fields | changes))


UNTIMED = result(
    frames=None,
    last_frames=None,
    token_times=None,
    word_times=None,
    no_times="the spikes are squeezed to the left",
)


def test_jsonl(tmp_path):
    write_jsonl(tmp_path / "out.jsonl", [result(text="zwölf"), UNTIMED])
    first, second = map(json.loads, (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines())
    assert (first["id"], first["text"], first["tokens"], first["factor"]) == (
        "a file",
        "zwölf",
        [3, 1, 2, 2],
        0.25,
    )
    assert first["frames"] == [10, 12, 15, 18]
    assert first["last_frames"] == [10, 13, 16, 18]
    assert first["word_times"][0] == {"text": "don't", "start_s": 0.4, "end_s": 0.62}
    assert len(first["token_times"]) == 4
    assert (second["word_times"], second["frames"]) == (None, None)
    assert second["no_times"] == "the spikes are squeezed to the left"


def test_ctm(tmp_path):
    write_ctm(tmp_path / "out.ctm", [result(), result(id="b")])
    lines = [line.split() for line in (tmp_path / "out.ctm").read_text(encoding="utf-8").splitlines()]
    assert [len(line) for line in lines] == [5] * 6
    assert [line[0] for line in lines] == ["a_file"] * 3 + ["b"] * 3
    found = [(word, float(start), float(start) + float(length)) for _, _, start, length, word in lines[:3]]
    for (word, *times), expected in zip(found, WORDS, strict=True):
        assert word == expected.word
        assert times == pytest.approx([expected.start_s, expected.end_s], abs=1e-3)


def seconds(stamp):
    hours, minutes, rest = stamp.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(rest.replace(",", "."))


def read_srt(path):
    cues = []
    for number, block in enumerate(path.read_text(encoding="utf-8").strip().split("\n\n"), start=1):
        index, times, text = block.split("\n")
        assert int(index) == number
        match = re.fullmatch(r"(\d\d:\d\d:\d\d,\d{3}) --> (\d\d:\d\d:\d\d,\d{3})", times)
        assert match
        cues.append((text, seconds(match[1]), seconds(match[2])))
    return cues


def test_srt(tmp_path):
    write_srt(tmp_path / "out.srt", result())
    # a pause of a minute makes two subtitles of three words
    assert read_srt(tmp_path / "out.srt") == [("don't say\"so", 0.4, 1.0), ("now", 61.0, 61.25)]


def test_srt_breaks_long_lines(tmp_path):
    words = tuple(WordTime("w" * 9, 0.5 * k, 0.5 * k + 0.4) for k in range(20))
    write_srt(tmp_path / "out.srt", result(text=" ".join(word.word for word in words), word_times=words))
    cues = read_srt(tmp_path / "out.srt")
    assert " ".join(text for text, _, _ in cues).split() == [word.word for word in words]
    assert max(len(text) for text, _, _ in cues) == 79  # eight words; another would make 89
    assert all(start < end for _, start, end in cues)


CHINESE = {
    "text": "想听let it go",
    "word_times": (
        WordTime("想", 0.4, 0.44),
        WordTime("听", 0.6, 0.64),
        WordTime("let", 0.8, 1.0),
        WordTime("it", 1.1, 1.2),
        WordTime("go", 61.0, 61.25),
    ),
}


def test_srt_has_the_spaces_of_the_text(tmp_path):
    write_srt(tmp_path / "out.srt", result(**CHINESE))
    assert read_srt(tmp_path / "out.srt") == [("想听let it", 0.4, 1.2), ("go", 61.0, 61.25)]
    characters = tuple(WordTime("度", 0.1 * k, 0.1 * k + 0.04) for k in range(50))
    write_srt(tmp_path / "long.srt", result(text="度" * 50, word_times=characters))
    assert [len(text) for text, _, _ in read_srt(tmp_path / "long.srt")] == [42, 8]  # twice as wide


def test_a_line_or_interval_for_each_character(tmp_path):
    write_ctm(tmp_path / "out.ctm", [result(**CHINESE)])
    lines = (tmp_path / "out.ctm").read_text(encoding="utf-8").splitlines()
    assert lines[:2] == ["a_file 1 0.400 0.040 想", "a_file 1 0.600 0.040 听"]
    write_textgrid(tmp_path / "out.TextGrid", result(**CHINESE))
    words = read_textgrid(tmp_path / "out.TextGrid")["words"]
    assert tuple(WordTime(*word) for word in words if word[0]) == CHINESE["word_times"]


def read_textgrid(path):
    """Tiers as {name: [(text, start, end) or (text, time)]}, in Praat's long format."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith('File type = "ooTextFile"\nObject class = "TextGrid"\n')
    number, quoted = r"([\d.]+)", r'"((?:[^"]|"")*)"'
    tiers = {}
    for tier in re.split(r"\n    item \[\d+\]:\n", text)[1:]:
        name = re.search(rf"name = {quoted}", tier)[1]
        intervals = re.findall(rf"xmin = {number}\s+xmax = {number}\s+text = {quoted}", tier)
        points = re.findall(rf"number = {number}\s+mark = {quoted}", tier)
        size = int(re.search(r"size = (\d+)", tier)[1])
        tiers[name] = [(t.replace('""', '"'), float(a), float(b)) for a, b, t in intervals]
        tiers[name] += [(t.replace('""', '"'), float(a)) for a, t in points]
        assert len(tiers[name]) == size
        assert float(re.search(rf"xmax = {number}", tier)[1]) == 62.0
    return tiers


def test_textgrid(tmp_path):
    write_textgrid(tmp_path / "out.TextGrid", result())
    tiers = read_textgrid(tmp_path / "out.TextGrid")
    words = tiers["words"]
    assert [w for w in words if w[0]] == [tuple(w) for w in WORDS]
    # from 0 to the end without a gap
    assert words[0][1] == 0
    assert words[-1][2] == 62.0
    assert all(a[2] == b[1] for a, b in itertools.pairwise(words))
    assert [t for t, _ in tiers["tokens"]] == ["t0", "t1", "t2", "t3"]
    assert [time for _, time in tiers["tokens"]] == pytest.approx([0.425, 0.525, 0.625, 0.725])


def test_nothing_said(tmp_path):
    silent = result(text="", tokens=[], frames=[], last_frames=[], token_times=(), word_times=())
    write_ctm(tmp_path / "out.ctm", [silent])
    write_srt(tmp_path / "out.srt", silent)
    write_textgrid(tmp_path / "out.TextGrid", silent)
    assert (tmp_path / "out.ctm").read_text() == (tmp_path / "out.srt").read_text() == ""
    assert read_textgrid(tmp_path / "out.TextGrid") == {"words": [("", 0, 62.0)], "tokens": []}


@pytest.mark.parametrize(
    "write", [write_srt, write_textgrid, lambda path, one: write_ctm(path, [result(), one])]
)
def test_no_times_are_made_up(tmp_path, write):
    with pytest.raises(
        ValueError, match="a file: there are no times to write: the spikes are squeezed to the left"
    ):
        write(tmp_path / "out", UNTIMED)
    assert not (tmp_path / "out").exists()
