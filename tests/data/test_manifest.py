"""The manifest is read as it was written, and says what is wrong with it."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brctc.data import PreparationError, Row, WordTime, read_manifest, write_manifest

HEADER = "id\ttext\tpath\tduration\n"


def manifest(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "m.tsv"
    path.write_text(content, encoding="utf-8")
    return path


def test_round_trip(tmp_path):
    rows = [
        Row("a", "bin blue", tmp_path / "x" / "a.flac", 2.5, "s1", 10, 40000, (WordTime("bin", 0.1, 0.25),)),
        Row("b", "été: 10-20", Path("/elsewhere/b.wav"), 1.0625),
    ]
    path = tmp_path / "m.tsv"
    write_manifest(path, rows)
    assert read_manifest(path) == rows
    assert "\tx/a.flac\t" in path.read_text(encoding="utf-8")  # the folder can be moved


def test_optional_columns_and_foreign_ones(tmp_path):
    path = manifest(
        tmp_path,
        "gender\tduration\tpath\tid\ttext\tword_times\r\n"
        "f\t1.5\ta.wav\tu1\t two  words \ttwo:0-0.5 words:0.5-1.25\r\n\r\n"
        "m\t2\tb.wav\tu2\tx\t\r\n",
    )
    first, second = read_manifest(path)
    assert first == Row(
        "u1",
        "two words",
        tmp_path / "a.wav",
        1.5,
        word_times=(("two", 0.0, 0.5), ("words", 0.5, 1.25)),
        others=(("gender", "f"),),
    )
    assert second.word_times is None
    assert second.speaker is None
    write_manifest(tmp_path / "again.tsv", [first, second, Row("u3", "y", tmp_path / "c.wav", 1.0)])
    assert [row.others for row in read_manifest(tmp_path / "again.tsv")] == [
        (("gender", "f"),),
        (("gender", "m"),),
        (("gender", ""),),
    ]


def test_byte_order_mark_is_no_part_of_a_name(tmp_path):
    assert read_manifest(manifest(tmp_path, "\ufeff" + HEADER + "u\tt\tp\t1\n"))[0].id == "u"


def test_every_malformed_line_is_named(tmp_path):
    path = manifest(
        tmp_path,
        HEADER.replace("duration", "duration\tstart_sample\tnum_samples\tword_times")
        + "good\tt\tp\t1\t0\t5\t\n"
        + "u2\tt\tp\tlong\t\t\t\n"
        + "u3\tt\tp\t-1\t\t\t\n"
        + "u4\tt\tp\tnan\t\t\t\n"
        + "u5\tt\tp\t1\t-3\t\t\n"
        + "u6\tt\tp\t1\t\t0\t\n"
        + "u7\tt\tp\n"
        + "\tt\tp\t1\t\t\t\n"
        + "u9\tt\t\t1\t\t\t\n"
        + "u10\tt\tp\t1\t\t\tt:5\n"
        + "good\tt\tp\t1\t\t\t\n",
    )
    with pytest.raises(PreparationError) as caught:
        read_manifest(path)
    ids = [problem.id for problem in caught.value.problems]
    assert ids == ["u2", "u3", "u4", "u5", "u6", "u7", "line 9", "u9", "u10", "good"]
    message = str(caught.value)
    assert "10 problems" in message
    assert "u2: duration is 'long', expected seconds above 0" in message
    assert "u7: 3 fields, expected the header's 7" in message
    assert "u10: word_times has 't:5', expected word:start-end" in message
    assert "good: the id is used by an earlier row" in message


def test_a_header_that_lacks_a_column(tmp_path):
    with pytest.raises(ValueError, match=r"lacks the columns \['duration'\].*'seconds'"):
        read_manifest(manifest(tmp_path, "id\ttext\tpath\tseconds\nu\tt\tp\t1\n"))
    with pytest.raises(ValueError, match="lacks the columns"):
        read_manifest(manifest(tmp_path, ""))
    with pytest.raises(ValueError, match=r"\['text'\] more than once"):
        read_manifest(manifest(tmp_path, "id\ttext\tpath\tduration\ttext\n"))


def test_another_encoding_is_named(tmp_path):
    path = tmp_path / "m.tsv"
    path.write_bytes(HEADER.encode() + "u\tété\tp\t1\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"m\.tsv is not UTF-8: .* at byte 24"):
        read_manifest(path)


def test_what_a_line_cannot_hold_is_not_written(tmp_path):
    with pytest.raises(ValueError, match=r"u: the text .* tab or a line break"):
        write_manifest(tmp_path / "m.tsv", [Row("u", "a\tb", tmp_path / "p", 1)])


words = st.text(st.characters(exclude_categories=("Z", "C")), min_size=1)


@settings(deadline=None)
@given(st.lists(words, min_size=1), st.floats(0.001, 1e4))
def test_any_words_survive(tmp_path_factory, chosen, duration):
    path = tmp_path_factory.getbasetemp() / "any.tsv"
    times = tuple(WordTime(word, i / 4, i / 4 + 0.125) for i, word in enumerate(chosen))
    row = Row("u", " ".join(chosen), path.parent / "a.wav", round(duration, 6), "speaker", 0, 1, times)
    write_manifest(path, [row])
    assert read_manifest(path) == [row]
