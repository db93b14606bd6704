"""What has a time in a text: words, and the characters of texts that have none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brctc.data import WordTime, read_manifest
from brctc.data.units import count_parts, timed_units, times_in
from tests.data.sounds import DATA, needs


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("设定二十九度", "设 定 二 十 九 度"),
        ("想听歌曲let it go", "想 听 歌 曲 let it go"),
        ("听YESTERDAY ONCE MORE", "听 YESTERDAY ONCE MORE"),
        ("百盛天山店a楼", "百 盛 天 山 店 a 楼"),
        ("闯码头d j版", "闯 码 头 d j 版"),
        ("二 十九 度", "二 十 九 度"),
        ("开到29度", "开 到 29 度"),
        ("don't stop, please -- now", "don't stop, please -- now"),  # words stay words
        ("하나 둘", "하나 둘"),  # Korean has spaces
        ("時々コーヒー", "時 々 コ ー ヒ ー"),
        ("你好。世界。", "你 好。 世 界。"),  # a mark belongs to what is before it
        ("《听》iPhone。很好", "《听》 iPhone。 很 好"),
        ("听⁇⁇歌", "听 ⁇ ⁇ 歌"),  # what a model does not know is no mark
        ("𠮷野", "𠮷 野"),  # beyond 16 bits
        ("゛", "゛"),
        ("", ""),
    ],
)
def test_units_of_texts(text, units):
    assert timed_units(text, "char") == units.split()
    assert timed_units(text, "word") == text.split()


@given(st.text(alphabet="ab 二十。《⁇゛'9가"))
def test_nothing_is_lost(text):
    units = timed_units(text, "char")
    assert "".join(units) == "".join(text.split())
    assert all(units)
    assert count_parts(units, text) == [len(timed_units(word, "char")) for word in text.split()]
    assert count_parts(text.split(), text) == [1] * len(text.split())


@pytest.mark.parametrize(
    ("parts", "text", "counts"),
    [
        ("设 定 二 十 九 度", "设定二十九度", [6]),
        ("设定 二十九 度", "设定二十九度", [3]),
        ("设定 二 十九", "设定 二十九", [1, 2]),
        ("听 YESTERDAY ONCE MORE", "听YESTERDAY ONCE MORE", [2, 1, 1]),
        ("two words", "two words", [1, 1]),
        ("two wo rds", "two words", None),  # letters have no times
        ("two", "two words", None),
        ("two words more", "two words", None),
        ("twowords", "two words", None),
        ("设定二 十九", "设定 二十九", None),  # over a space
        ("听YES TERDAY", "听YESTERDAY", None),
        ("你 好 。", "你好。", None),
        ("设 订", "设定", None),
        ("0 4 1 7", "0417", None),
        ("", "", []),
        ("", "a", None),
        ("a", "", None),
    ],
)
def test_parts_of_words(parts, text, counts):
    assert count_parts(parts.split(), text) == counts


def test_a_word_is_shared_evenly():
    """设定 from 0.2 to 0.6 s: 设 until 0.4; the Latin word is one of three."""
    times = [WordTime("设定", 0.2, 0.6), WordTime("听OK吧", 1.0, 1.75)]
    assert times_in("char", times, "设定听OK吧") == (
        ("设", 0.2, pytest.approx(0.4)),
        ("定", pytest.approx(0.4), 0.6),
        ("听", 1.0, 1.25),
        ("OK", 1.25, 1.5),
        ("吧", 1.5, 1.75),
    )


def test_characters_make_up_words():
    times = [WordTime("设", 0.2, 0.3), WordTime("定", 0.35, 0.6), WordTime("度", 0.7, 0.9)]
    assert times_in("word", times, "设定 度") == (("设定", 0.2, 0.6), ("度", 0.7, 0.9))
    assert times_in("char", times, "设定 度") == tuple(times)
    assert times_in("word", times_in("char", [WordTime("设定", 0.1, 0.4)], "设定"), "设定") == (
        ("设定", 0.1, 0.4),
    )


@pytest.mark.parametrize("unit", ["word", "char"])
@pytest.mark.parametrize("text", ["two words", "0417", "another text"])
def test_other_times_are_as_they_are(unit, text):
    """Of words, of handwritten digits, and of a corpus whose times are not those of all its words."""
    words = list(text) if text.isdecimal() else ["two", "words"]
    times = [WordTime(word, k / 3, k / 3 + 0.1) for k, word in enumerate(words)]
    assert times_in(unit, times, text) == tuple(times)


@needs("aishell_sample")
def test_real_texts():
    rows = read_manifest(DATA / "aishell_sample" / "manifest.tsv")
    units = [unit for row in rows for unit in timed_units(row.text, "char")]
    latin = [unit for unit in units if unit.isascii()]
    assert len(rows) == 500
    assert {len(unit) for unit in units if not unit.isascii()} == {1}
    assert {"loft", "let", "it", "go", "a"} <= set(latin)
    assert all(unit.isalnum() for unit in latin)
