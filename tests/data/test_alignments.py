"""Times that other aligners have found, in Kaldi's and Praat's formats, good ones and others."""

import dataclasses
import re

import numpy as np
import pytest

from brctc.data import Row, WordTime, import_reference_times, read_ctm_alignment, read_textgrids
from brctc.data.alignments import match_words
from brctc.data.checks import word_time_problems
from brctc.data.reference_times import AlignmentError
from brctc.decode import Result, write_ctm, write_textgrid

# of a Kaldi recipe for Aishell: words of its lexicon, hundredths, confidences
CTM = """;; made by steps/get_train_ctm.sh
BAC009S0150W0001 1 0.00 0.42 <eps> 1.00
BAC009S0150W0001 1 0.42 0.40 设定 1.00
BAC009S0150W0001 1 0.82 0.60 二十九 0.98
BAC009S0150W0001 1 1.42 0.30 度
BAC009S0150W0001 1 1.72 0.70 SIL

libri-1 A 0.5 0.25 HELLO NA lex spk1
libri-1 A 0.75 0.1 sil
libri-1 A 0.9 0.5 <UNK> 0.3
libri-1 A 1.4 0.1 WELL 0.9
libri-1 A 1.5 0.2 KNOWN 0.9
another 1 nonsense 0.1 x
"""


def rows_of(tmp_path):
    audio = tmp_path / "audio"
    return [
        Row("BAC009S0150W0001", "设定二十九度", audio / "a.wav", 2.42, "S0150"),
        Row("libri-1", "Hello, Quine well-known", audio / "b.wav", 1.7),
    ]


def import_ctm(tmp_path, content, rows=None, **options):
    path = tmp_path / "ali.ctm"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    rows = rows_of(tmp_path) if rows is None else rows
    return import_reference_times(rows, read_ctm_alignment(path, rows), **options)


def close(times):
    return tuple((word, pytest.approx(start), pytest.approx(end)) for word, start, end in times)


CHINESE = (("设定", 0.42, 0.82), ("二十九", 0.82, 1.42), ("度", 1.42, 1.72))
ENGLISH = (("Hello,", 0.5, 0.75), ("Quine", 0.9, 1.4), ("well-known", 1.4, 1.7))


def test_ctm(tmp_path):
    """Silences are left out, the unknown is what the text says, and words are as the text writes them."""
    seen = []
    found = import_ctm(tmp_path, CTM, progress=lambda *done: seen.append(done))
    assert found.failures == []
    assert found.aligned == 2
    assert [row.word_times for row in found.rows] == [close(CHINESE), close(ENGLISH)]
    assert seen == [(1, 2), (2, 2)]


def test_known_times_are_kept_and_compared(tmp_path):
    chinese, english = rows_of(tmp_path)
    known = tuple(WordTime(word, start - 0.1, end) for word, start, end in CHINESE)
    kept = dataclasses.replace(chinese, word_times=known)
    found = import_ctm(tmp_path, CTM, [kept, english])
    assert found.rows[0] == kept
    assert found.rows[1].word_times == close(ENGLISH)
    np.testing.assert_allclose(found.start_differences_ms, [100] * 3)
    assert import_ctm(tmp_path, CTM, [kept], replace=True).rows[0].word_times == close(CHINESE)
    elsewhere = dataclasses.replace(kept, id="elsewhere")  # nothing is asked of the alignment
    assert import_ctm(tmp_path, CTM, [elsewhere, english]).failures == []
    (failure,) = import_ctm(tmp_path, CTM, [elsewhere, english], replace=True).failures
    assert failure == ("elsewhere", "the alignment lacks it")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "0.82 0.60 二十九",
            "0.82 0.60 二十",
            "the alignment says '设定 二十 度', the text says '设定二十九度'",
        ),
        ("1.72 0.70 SIL", "1.72 0.20 吧", "says '设定 二十九 度 吧'"),
        ("1.42 0.30 度", "1.42 0.30 SIL", "the alignment says '设定 二十九', the text"),
        ("1.42 0.30 度", "1.42 0.30", r"line 5 of .*ali.ctm: 4 fields, expected utterance, channel, start"),
        ("1.42 0.30 度", "1.42 0.30 度 数", "line 5 of .*: the confidence is '数', expected a number from 0"),
        ("1.42 0.30 度", "1.4z 0.30 度", "line 5 of .*: the start is '1.4z', expected a number from 0"),
        ("1.42 0.30 度", "1_0 0.30 度", "the start is '1_0'"),
        ("1.42 0.30 度", "-1.42 0.30 度", "the start is '-1.42'"),
        ("1.42 0.30 度", "1.42 -0.30 度", "the duration is '-0.30', expected a number from 0"),
        ("1.42 0.30 度", "1.42 nan 度", "the duration is 'nan'"),
        ("1.42 0.30 度", "1.42 inf 度", "the duration is 'inf'"),
        ("1 1.42 0.30 度", "2 1.42 0.30 度", "line 5 of .*: the channel is 2, before it was 1"),
        (
            "1.42 0.30 度\nBAC009S0150W0001 1 1.72 0.70 SIL",
            "1.42 1.20 度",
            "word_times have '度' from 1.42 to 2.62 s: out of order or too late",
        ),
        (
            "1.42 0.30 度",
            "1.22 0.30 度",
            r"'度' from 1.22 to 1.52 s is out of order, or overlaps '二十九' from 0.82",
        ),
        ("1.42 0.30 度", "0.10 0.30 度", "'度' from 0.1 to 0.4 s is out of order"),
    ],
)
def test_faults_are_named_and_cost_one_row(tmp_path, before, after, message):
    assert before in CTM
    found = import_ctm(tmp_path, CTM.replace(before, after))
    (failure,) = found.failures
    assert failure.id == "BAC009S0150W0001"
    assert re.search(message, failure.what)
    assert found.rows[0] == rows_of(tmp_path)[0]
    assert found.rows[1].word_times == close(ENGLISH)


def test_roundings_are_no_overlap(tmp_path):
    found = import_ctm(tmp_path, CTM.replace("1.42 0.30 度", "1.40 0.30 度"))
    assert found.failures == []


def test_a_ctm_of_something_else(tmp_path):
    for content in (
        CTM.replace("BAC009S0150W0001", "S0150-W0001").replace("libri-1", "x"),
        "",
        ";; nothing\n",
    ):
        with pytest.raises(
            ValueError, match="none of the 2 ids is in the alignment, such as 'BAC009S0150W0001'"
        ):
            import_ctm(tmp_path, content)
    with pytest.raises(ValueError, match=r"ali.ctm is not UTF-8: invalid .* at byte 29 of line 3"):
        import_ctm(tmp_path, CTM.encode("gb18030"))
    with pytest.raises(FileNotFoundError):
        read_ctm_alignment(tmp_path / "gone.ctm", [])
    twins = [Row("a b", "x", tmp_path / "a.wav", 1.0), Row("a_b", "x", tmp_path / "a.wav", 1.0)]
    with pytest.raises(ValueError, match="a b and a_b are both a_b in a CTM"):
        import_ctm(tmp_path, CTM, twins)


def test_texts_have_no_times(tmp_path):
    found = import_ctm(tmp_path, CTM, [*rows_of(tmp_path), Row("t", "guten Tag", translation="good day")])
    assert found.failures == [("t", "there is no audio, only text")]


def test_cut_off_anywhere(tmp_path):
    """Whatever is missing at the end, no row has other times than those that are written."""
    for end in range(CTM.index("<eps>"), len(CTM), 5):
        found = import_ctm(tmp_path, CTM[:end])
        for row, expected in zip(found.rows, (CHINESE, ENGLISH), strict=True):
            assert row.word_times in (None, close(expected))


def said(text, step=0.1):
    return [WordTime(word, k * step, (k + 1) * step) for k, word in enumerate(text.split())]


@pytest.mark.parametrize(
    ("alignment", "text", "words"),
    [
        ("设定 二十九 度", "设定二十九度", "设定 二十九 度"),
        ("设 定 二 十 九 度", "设定二十九度", "设 定 二 十 九 度"),
        ("设 定 二十九 度", "设定 二十九度", "设 定 二十九 度"),
        ("想 听 LET IT GO", "想听let it go", "想 听 let it go"),
        ("想听 let it go", "想听let it go", "想听 let it go"),
        ("你好 世界", "《你好》世界。", "《你好》 世界。"),
        ("don't stop", "Don't stop!", "Don't stop!"),
        ("don 't stop", "don't stop", "don't stop"),
        ("i <unk> you <UNK>", "I love you Zoe", "I love you Zoe"),
        ("我 <unk> 你", "我爱你", "我 爱 你"),  # a character
        ("我 <SPOKEN_NOISE> 你", "我 喜欢 你", "我 喜欢 你"),  # or a word
        ("sp a sil b sp", "a b", "a b"),
        ("sil a <eps>", "sil a", "sil a"),  # here it is a word
        ("हिंदी में", "हिंदी में", "हिंदी में"),
    ],
)
def test_words_that_match(alignment, text, words):
    found = match_words(said(alignment), text)
    assert [time.word for time in found] == words.split()
    assert [(t.start_s, t.end_s) for t in found] == sorted((t.start_s, t.end_s) for t in found)


@pytest.mark.parametrize(
    ("alignment", "text"),
    [
        ("设定 二十九", "设定二十九度"),
        ("设定 二十九 度 度", "设定二十九度"),
        ("设定二 十九 度", "设定 二十九 度"),  # over a space
        ("icecream", "ice cream"),
        ("hel lo world", "hello worlds"),
        ("a b", "b a"),
        ("我 <unk> <unk> 你", "我爱你"),
        ("我 <unk> 你", "我喜欢你"),  # one of its characters, or all of the sentence: neither fits
        ("कि", "की"),
        ("", "a"),
        ("sil", "a"),
        ("ab cd", "abc d"),
    ],
)
def test_words_that_do_not(alignment, text):
    with pytest.raises(AlignmentError, match="the alignment says"):
        match_words(said(alignment), text)


def result(id, duration_s, text, words):
    times = tuple(WordTime(*word) for word in words)
    tokens = list(range(len(times)))
    return Result(id, text, tokens, 0.0, 1.0, duration_s, 0.0, 0.0, tokens, tokens, times, times, None)


RESULTS = [
    result(
        "a b/1", 2.0, "想听let it", [("想", 0.1, 0.14), ("听", 0.3, 0.38), ("let", 0.5, 1), ("it", 1.1, 2)]
    ),
    result("2", 1.3, 'say "so" don\'t', [("say", 0.125, 0.3), ('"so"', 0.3, 0.4), ("don't", 1.0, 1.25)]),
]


@pytest.fixture
def decoded(tmp_path):
    """Rows whose texts are what was decoded."""
    audio = tmp_path / "audio"
    return [Row(r.id, r.text, audio / f"{n}.wav", r.duration_s) for n, r in enumerate(RESULTS)]


def test_ctm_that_decode_has_written(decoded, tmp_path):
    write_ctm(tmp_path / "out.ctm", RESULTS)
    found = import_reference_times(decoded, read_ctm_alignment(tmp_path / "out.ctm", decoded))
    assert found.failures == []
    assert [row.word_times for row in found.rows] == [close(r.word_times) for r in RESULTS]


def write_grids(folder, names):
    for one, name in zip(RESULTS, names, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_textgrid(folder / name, one)
    return folder


@pytest.mark.parametrize(
    "names",
    [
        ("a b_1.TextGrid", "2.TextGrid"),  # as decode calls them
        ("anna/a b_1.TextGrid", "carl/deeper/2.textgrid"),
        ("0.TextGrid", "1.TextGrid"),  # as their audio is called
        ("audio/0.TextGrid", "anna/1.TextGrid"),
    ],
)
def test_textgrids_that_decode_has_written(decoded, tmp_path, names):
    decoded[1] = dataclasses.replace(decoded[1], speaker="anna")
    folder = write_grids(tmp_path / "grids", names)
    found = import_reference_times(decoded, read_textgrids(folder, decoded))
    assert found.failures == []
    assert [row.word_times for row in found.rows] == [close(r.word_times) for r in RESULTS]
    for row in found.rows:
        assert word_time_problems(row) == []


def test_textgrids_that_are_another_ones(decoded, tmp_path):
    """A recording of the same name by another speaker, and files that two rows could be."""
    folder = write_grids(tmp_path / "grids", ("berta/0.TextGrid", "anna/1.TextGrid"))
    (tmp_path / "grids" / "carl").mkdir()
    write_textgrid(tmp_path / "grids" / "carl" / "1.TextGrid", RESULTS[1])
    first, second = decoded
    found = import_reference_times(
        [first, dataclasses.replace(second, speaker="carl")], read_textgrids(folder, decoded)
    )
    assert found.failures == [("a b/1", "the alignment lacks it")]
    part = dataclasses.replace(first, speaker="berta", start_sample=0, num_samples=100)  # of a file of many
    other = dataclasses.replace(second, id="1")
    found = import_reference_times([part, other], read_textgrids(folder, decoded))
    assert found.failures[0] == ("a b/1", "the alignment lacks it")
    assert found.failures[1].id == "1"
    assert re.match(
        r"there are several TextGrids: .*anna/1.TextGrid, .*carl/1.TextGrid", found.failures[1].what
    )
    flat = write_grids(tmp_path / "flat", ("0.TextGrid", "1.TextGrid"))
    again = dataclasses.replace(first, id="again")
    twice = import_reference_times([first, again], read_textgrids(flat, [first]))
    assert twice.failures == [("again", f"{flat / '0.TextGrid'} is that of a b/1")]
    with pytest.raises(ValueError, match="none of the 2 ids is in the alignment"):  # which of the two is it?
        import_reference_times([first, again], read_textgrids(flat, [first, again]))


def test_damaged_textgrids_cost_one_row(decoded, tmp_path):
    folder = write_grids(tmp_path / "grids", ("0.TextGrid", "1.TextGrid"))
    path = folder / "0.TextGrid"
    whole = path.read_text()
    for content, message in [
        (whole[:500], "0.TextGrid is truncated: it ends before"),
        (whole.replace('"words"', '"Wörter"'), "has no tier 'words' of intervals, but 'Wörter'"),
        (whole.replace('"听"', '"看"'), "the alignment says '想 看 let it', the text says '想听let it'"),
        (
            whole.replace("xmax = 0.140000", "xmax = 0.340000"),
            "'' from 0.14 to 0.3 s is out of order, or overlaps '想'",
        ),
        (
            whole.replace("xmax = 2.000000\n            text", "xmax = 3.000000\n            text"),
            "'it' from 1.1 to 3 s: out of order or too late",
        ),
        (whole.replace("xmin = 0.100000", "xmin = -0.100000"), "'想' from -0.1 to 0.14 s is out of order"),
    ]:
        assert content != whole
        path.write_text(content)
        (failure,) = import_reference_times(decoded, read_textgrids(folder, decoded)).failures
        assert failure.id == "a b/1"
        assert message in failure.what
    with pytest.raises(ValueError, match="gone is not a directory"):
        read_textgrids(tmp_path / "gone", decoded)


def test_another_tier(decoded, tmp_path):
    """In a grid by hand, characters may be on a tier of their own."""
    folder = write_grids(tmp_path / "grids", ("0.TextGrid", "1.TextGrid"))
    for path in folder.iterdir():
        path.write_bytes(path.read_text().replace('"words"', '"chars"').encode("utf-16"))
    found = import_reference_times(decoded, read_textgrids(folder, decoded, "chars"))
    assert [row.word_times for row in found.rows] == [close(r.word_times) for r in RESULTS]
