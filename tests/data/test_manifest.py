"""The manifest is read as it was written, and says what is wrong with it."""

import time
import tracemalloc
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brctc.data import PreparationError, Problem, Row, WordTime, read_manifest, write_manifest
from brctc.data.manifest import MOST_COLUMNS, iterate_manifest, manifest_digest

HEADER = "id\ttext\tpath\tduration\n"


def manifest(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "m.tsv"
    path.write_text(content, encoding="utf-8")
    return path


def test_round_trip(tmp_path):
    rows = [
        Row("a", "bin blue", tmp_path / "x" / "a.flac", 2.5, "s1", 10, 40000, (WordTime("bin", 0.1, 0.25),)),
        Row("b", "été: 10-20", Path("/elsewhere/b.wav"), 1.0625),
        Row("c", "yes", tmp_path / "c.wav", 0.5, translation="oui: ça va"),
    ]
    path = tmp_path / "m.tsv"
    write_manifest(path, rows)
    rows[:2] = [replace(row, translation="") for row in rows[:2]]  # a column that is there has a value
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
    with pytest.raises(ValueError, match=r"m\.tsv is not UTF-8: .* at byte 2 of line 2"):
        read_manifest(path)
    path.write_bytes(HEADER.encode() + b"u\tt\tp\t1\nv\tabc\xff\tp\t1\n")
    rows = iterate_manifest(path)
    assert next(rows).id == "u"  # what is before it can be read
    with pytest.raises(ValueError, match=r"m\.tsv is not UTF-8: invalid start byte at byte 5 of line 3"):
        next(rows)
    path.write_bytes("id\ttext\tpath\tduration\n".encode("utf-16"))
    with pytest.raises(ValueError, match=r"m\.tsv is not UTF-8: .* at byte 0 of line 1"):
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


def test_rows_come_one_by_one(tmp_path):
    """A manifest of millions of rows is never held in memory."""
    path = manifest(tmp_path, HEADER + "".join(f"u{n}\tsome words\ta/{n}.wav\t1\n" for n in range(30_000)))
    tracemalloc.start()
    assert [row.id for row in islice(iterate_manifest(path), 3)] == ["u0", "u1", "u2"]
    assert sum(1 for _ in iterate_manifest(path)) == 30_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20  # all rows would be 20


def test_malformed_rows_come_in_their_place(tmp_path):
    path = manifest(tmp_path, HEADER + "a\tt\tp\t1\nb\tt\tp\tsoon\n\n\tt\tp\t1\nc\tt\tp\t1\nc\tt\tp\t1\n")
    found = list(iterate_manifest(path))
    assert [item.id for item in found] == ["a", "b", "line 5", "c", "c"]
    assert [isinstance(item, Problem) for item in found] == [False, True, True, False, False]


def test_translations(tmp_path):
    header = "id\ttext\ttranslation\tpath\tduration\n"
    path = manifest(tmp_path, header + "u\tguten  Tag\t good\u00a0day \ta.wav\t1\n")
    (row,) = read_manifest(path)
    assert row == Row("u", "guten Tag", tmp_path / "a.wav", 1.0, translation="good day")
    assert row.texts == {"transcript": "guten Tag", "translation": "good day"}
    assert read_manifest(manifest(tmp_path, HEADER + "u\tt\tp\t1\n"))[0].texts == {"transcript": "t"}


def test_texts_without_audio(tmp_path):
    path = manifest(tmp_path, "id\ttext\ttranslation\tspeaker\nu\tguten Tag\tgood day\ts1\n")
    (row,) = read_manifest(path)
    assert row == Row("u", "guten Tag", speaker="s1", translation="good day")
    assert row.path is row.duration is None
    assert row.texts == {"source": "guten Tag", "translation": "good day"}
    write_manifest(tmp_path / "again.tsv", [row])
    assert read_manifest(tmp_path / "again.tsv") == [row]
    assert (tmp_path / "again.tsv").read_text().startswith("id\ttext\ttranslation\tspeaker\n")


@pytest.mark.parametrize(
    ("header", "missing"),
    [
        ("id\ttext", ["path", "duration"]),
        ("id\ttext\ttranslation\tpath", ["duration"]),
        ("id\ttext\ttranslation\tduration", ["path"]),
        ("text\ttranslation", ["id"]),
        ("id\ttranslation", ["text"]),
    ],
)
def test_what_speech_and_texts_need(tmp_path, header, missing):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read_manifest(manifest(tmp_path, header + "\n"))
    assert f"lacks the columns {missing}" in str(caught.value)


def test_columns_beyond_reason_are_refused_at_once(tmp_path):
    names = [f"c{n}" for n in range(MOST_COLUMNS - 4)]
    row = "\t".join("utp1" + "x" * 196)
    most = manifest(tmp_path, "\t".join([HEADER.strip(), *names]) + f"\n{row}\n")
    assert len(read_manifest(most)[0].others) == 196
    one_more = manifest(tmp_path, "\t".join([HEADER.strip(), *names, "more"]) + "\n")
    with pytest.raises(ValueError, match=r"m\.tsv has 201 columns, expected at most 200"):
        read_manifest(one_more)
    wide = "\t".join([HEADER.strip(), *(f"c{n}" for n in range(20_000))])
    path = manifest(tmp_path, wide + "\n" + wide + "\n")
    start = time.monotonic()
    with pytest.raises(ValueError, match="has 20004 columns, expected at most 200"):
        read_manifest(path)
    assert time.monotonic() - start < 1


@pytest.mark.parametrize(
    ("id", "what"),
    [
        ("a\0b", "the id has control characters: U+0000"),
        ("a\x1b[31mb", "the id has control characters: U+001B"),
        ("a\u202eb\x07", "the id has control characters: U+0007, U+202E"),
        ("a\u200bb", "the id has control characters: U+200B"),
        ("a\u2028b", "the id has control characters: U+2028"),
        ("x" * 501, "the id has 501 characters, expected at most 500"),
        ("x" * 100_000, "the id has 100000 characters, expected at most 500"),
    ],
)
def test_ids_that_no_name_can_be_made_of(tmp_path, id, what):
    found = list(iterate_manifest(manifest(tmp_path, HEADER + f"{id}\tt\tp\t1\nnext\tt\tp\t1\n")))
    assert [str(item.what) for item in found[:1]] == [what]
    assert found[1].id == "next"
    printed = str(found[0])
    assert printed.isprintable()
    assert len(printed) < 1000


@pytest.mark.parametrize(
    "id", ["x" * 500, "../../etc/passwd", "a b", "日本", "été", ".hidden", "a:b|c", "\U0001f600"]
)
def test_other_ids_are_the_users_business(tmp_path, id):
    assert read_manifest(manifest(tmp_path, HEADER + f"{id}\tt\tp\t1\n"))[0].id == id


def test_the_digest_is_of_what_is_read(tmp_path):
    def digest(content: str) -> str:
        return manifest_digest(manifest(tmp_path, content))

    plain = digest(HEADER + "u\tt\tp\t1\n")
    assert plain == digest("gender\tid\ttext\tpath\tduration\nf\tu\tt\tp\t1\n")
    assert plain == digest("gender\tid\ttext\tpath\tduration\nm\tu\tt\tp\t1\n")
    assert plain == digest("text\tid\tpath\tduration\nt\tu\tp\t1\n")
    others = [
        HEADER + "u\tT\tp\t1\n",
        HEADER + "u\tt\tp2\t1\n",
        HEADER + "u\tt\tp\t2\n",
        HEADER + "v\tt\tp\t1\n",
        HEADER + "u\tt\tp\t1\nv\tt\tp\t1\n",
        HEADER.replace("duration", "duration\tspeaker") + "u\tt\tp\t1\ts\n",
        HEADER.replace("duration", "duration\ttranslation") + "u\tt\tp\t1\ts\n",
    ]
    assert len({plain, *map(digest, others)}) == 1 + len(others)
