"""`brctc reference-times` on files that can be aligned, and on others."""

import dataclasses

from brctc.data import Row, read_manifest, write_manifest
from tests.cli.commands import brctc
from tests.data.sounds import DATA, needs, noise, write


def test_failures_are_named_and_the_rest_is_written(tmp_path):
    rows = [
        Row("noise", "bin blue", write(tmp_path / "noise.wav", noise(1)), 1.0),
        Row("word", "bin zzyzx", tmp_path / "noise.wav", 1.0),
        Row("missing", "bin", tmp_path / "missing.wav", 1.0),
    ]
    write_manifest(tmp_path / "m.tsv", rows)
    found = brctc(tmp_path, "reference-times", "m.tsv", "--out", "new/times.tsv")
    assert found.code == 0, found.err
    assert found.out.splitlines() == [
        "rows  aligned  failed  with times",
        "3           0       3           0",
        "failed:",
        "  noise: no alignment found: the audio does not fit the text",
        "  word: not in the dictionary: zzyzx",
        "  missing: missing.wav: no such file",
        "written to new/times.tsv",
    ]
    assert found.err == ""  # not a word of pocketsphinx itself
    written = read_manifest(tmp_path / "new" / "times.tsv")
    assert [(row.id, row.text, row.word_times) for row in written] == [(r.id, r.text, None) for r in rows]
    assert written[0].path.samefile(rows[0].path)  # from another folder


def test_bad_input(tmp_path):
    write_manifest(tmp_path / "m.tsv", [])
    found = brctc(tmp_path, "reference-times", "m.tsv", "--out", "times.tsv")
    assert found == (2, "", "brctc reference-times: m.tsv has no rows\n")
    with (tmp_path / "m.tsv").open("a") as file:
        file.write("torn\tb\n")
    found = brctc(tmp_path, "reference-times", "m.tsv", "--out", "times.tsv")
    assert found.code == 2
    assert "torn: 2 fields, expected the header's 4" in found.err
    assert not (tmp_path / "times.tsv").exists()


@needs("grid_s1")
def test_real_sentences(tmp_path):
    rows = read_manifest(DATA / "grid_s1" / "manifest.tsv")[:4]
    rows[0] = dataclasses.replace(rows[0], word_times=None)
    write_manifest(tmp_path / "m.tsv", rows)
    found = brctc(tmp_path, "reference-times", "m.tsv", "--out", "m.tsv")  # in place
    assert found.code == 0, found.err
    lines = [line.split() for line in found.out.splitlines()]
    assert lines[1] == ["4", "4", "0", "4"]
    assert found.out.splitlines()[2] == "distance from the 18 times that were known before, in ms:"
    assert lines[3] == ["median", "90th", "percentile"]
    for (name, median, p90), expected in zip(lines[4:6], ("start", "end"), strict=True):
        assert name == expected
        assert int(median) <= 30
        assert int(median) <= int(p90) < 150
    first, *others = read_manifest(tmp_path / "m.tsv")
    assert [time.word for time in first.word_times] == rows[0].text.split()
    assert others == rows[1:]
