"""TextGrids as Praat and the Montreal Forced Aligner write them, and as nobody should."""

import pytest

from brctc.data.textgrid import read_textgrid

LONG = """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 2.43
tiers? <exists>
size = 3
item []:
    item [1]:
        class = "IntervalTier"
        name = "words"
        xmin = 0
        xmax = 2.43
        intervals: size = 4
        intervals [1]:
            xmin = 0
            xmax = 0.31
            text = ""
        intervals [2]:
            xmin = 0.31
            xmax = 0.7
            text = "设定"
        intervals [3]:
            xmin = 0.7
            xmax = 1.5e0
            text = "say ""so"" ! 7"
        intervals [4]:
            xmin = 1.5
            xmax = 2.43
            text = ""
    item [2]:
        class = "TextTier"
        name = "bells"
        xmin = 0
        xmax = 2.43
        points: size = 1
        points [1]:
            number = 0.5
            mark = "ding"
    item [3]:
        class = "IntervalTier"
        name = "phones"
        xmin = 0
        xmax = 2.43
        intervals: size = 1
        intervals [1]:
            xmin = 0
            xmax = 2.43
            text = "spn"
"""
SHORT = """File type = "ooTextFile"
Object class = "TextGrid"

0
2.43
<exists>
3
"IntervalTier"
"words"
0
2.43
4
0
0.31
""
0.31
0.7
"设定"
0.7
1.5
"say ""so"" ! 7"
1.5
2.43
""
"TextTier"
"bells"
0
2.43
1
0.5
"ding"
"IntervalTier"
"phones"
0
2.43
1
0
2.43
"spn"
"""
WORDS = [("", 0.0, 0.31), ("设定", 0.31, 0.7), ('say "so" ! 7', 0.7, 1.5), ("", 1.5, 2.43)]


def write(folder, content, encoding="utf-8"):
    path = folder / "u.TextGrid"
    path.write_bytes(content.encode(encoding) if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("content", [LONG, SHORT, LONG.replace("\n", "\r\n"), f"{SHORT}! 4 more\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_formats(tmp_path, content, encoding):
    path = write(tmp_path, content, encoding)
    assert read_textgrid(path, "words") == WORDS
    assert read_textgrid(path, "phones") == [("spn", 0.0, 2.43)]


def test_big_endian(tmp_path):
    path = write(tmp_path, b"\xfe\xff" + LONG.encode("utf-16-be"))
    assert read_textgrid(path, "words") == WORDS


def test_tiers_of_speakers(tmp_path):
    assert read_textgrid(write(tmp_path, LONG.replace('"words"', '"anna - words"')), "words") == WORDS
    both = LONG.replace('"words"', '"anna - words"').replace('"phones"', '"carl - words"')
    path = write(tmp_path, both)
    assert read_textgrid(path, "carl - words") == [("spn", 0.0, 2.43)]
    with pytest.raises(ValueError, match=r"several tiers 'words' of intervals: 'anna - words', 'carl"):
        read_textgrid(path, "words")


def test_no_tiers(tmp_path):
    path = write(tmp_path, LONG[: LONG.index("tiers?")] + "tiers? <absent>\n")
    with pytest.raises(ValueError, match=r"u.TextGrid has no tier 'words' of intervals, but none"):
        read_textgrid(path, "words")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "0.31\n            xmax = 0.7\n",
            "0.31\n            xmax = 0,7\n",
            "line 22: expected xmax, a number",
        ),
        ("xmax = 0.7\n", "xmax = --\n", "line 22: expected xmax, a number, found '\"设定\"'"),
        ("size = 4", "size = 3", r"line 28: expected class, a text, found '1.5'"),
        ("size = 4", "size = 5", r"line 32: expected xmin, a number, found '\"TextTier\"'"),
        ("size = 4", "size = 999999999", "line 32: expected xmin, a number"),
        ("size = 4", "size = 3.5", "line 14: the size is 3.5, expected a whole number"),
        ("size = 4", "size = -4", "line 14: the size is -4, expected a whole number"),
        ('text = "spn"', 'text = "spn', "line 49: a text in quotes does not end: the file is truncated"),
        ('text = "设定"', 'text = "设定', "a text, found|expected"),
        ("xmin = 0\nxmax = 2.43", "xmin = 3\nxmax = 5.43", "begins at 3 s, expected 0"),
        (
            '"TextTier"',
            '"SomeTier"',
            "line 33: the class of tier 'bells' is 'SomeTier', expected IntervalTier",
        ),
        ('"TextGrid"', '"Pitch 1"', "u.TextGrid is not a TextGrid in text format"),
        ('"words"', '"Words"', r"has no tier 'words' of intervals, but 'Words', 'phones'"),
        ("tiers? <exists>", "tiers?", r"expected tiers, a flag, found '3'"),
        (LONG, "", "u.TextGrid is truncated: it ends before File type"),
        (LONG, "u1 1 0.3 0.4 word\n", "expected File type, a text, found '1'"),
    ],
)
def test_damaged(tmp_path, before, after, message):
    assert before in LONG
    with pytest.raises(ValueError, match=message):
        read_textgrid(write(tmp_path, LONG.replace(before, after, 1)), "words")


@pytest.mark.parametrize("content", [LONG, SHORT])
def test_cut_off_anywhere(tmp_path, content):
    """All that is written or an error, whatever is missing at the end."""
    whole = len(content.rstrip())
    for end in range(0, whole, 7):
        with pytest.raises(ValueError, match=r"u\.TextGrid"):
            read_textgrid(write(tmp_path, content[:end]), "words")
    assert read_textgrid(write(tmp_path, content[:whole]), "words") == WORDS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LONG.encode("gb18030"), "is not UTF-8: invalid .* at byte"),
        (LONG.encode("utf-16")[:-1], "is not UTF-16: truncated data at byte"),
        (b"ooBinaryFile\x08TextGrid\x00\x00\xff", "u.TextGrid is binary: save it as a text file"),
        (b"\xff\xfe", "is truncated"),
    ],
)
def test_not_text(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read_textgrid(write(tmp_path, content), "words")
