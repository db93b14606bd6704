"""`brctc latency` on Chinese: from what a model says, through other aligners' formats, to its drift."""

import dataclasses
import json

import numpy as np
import pytest

from brctc.data import Row, read_manifest, write_manifest
from tests.cli.commands import brctc
from tests.data.sounds import write
from tests.decode.test_streaming import sound
from tests.evaluate.online_toys import online_model, store

HALF_FRAME_S = 0.02
PREPARE = ("--features.num-bins", "16", "--speeds", "1", "--store", "audio", "--jobs", "1")


@pytest.fixture(scope="module")
def decoded(tmp_path_factory):
    """A folder with a model of characters, a manifest of what it says, and when, as CTM and TextGrids."""
    folder = tmp_path_factory.mktemp("chinese")
    store(online_model("char", "一二六ok"), folder / "model")
    rows = [Row(f"u{n}", "一", write(folder / f"{n}.wav", sound(n, 4.0)), 4.0) for n in range(3)]
    write_manifest(folder / "untold.tsv", rows)
    found = brctc(
        folder, "decode", "model", "--manifest", "untold.tsv",
        "--ctm", "words.ctm", "--textgrid", "grids", "--jsonl", "all.jsonl",
    )  # fmt: skip
    assert found.code == 0, found.err
    said = dict(line.split("\t") for line in found.out.splitlines())
    write_manifest(folder / "test.tsv", [dataclasses.replace(row, text=said[row.id]) for row in rows])
    results = map(json.loads, (folder / "all.jsonl").read_text(encoding="utf-8").splitlines())
    return folder, {result["id"]: result["word_times"] for result in results}


@pytest.mark.parametrize("option", [("--from-ctm", "words.ctm"), ("--from-textgrids", "grids")])
def test_drift_of_characters(decoded, option):
    """Each begins with its spike: the drift is how long a spike is, to the middle of its last frame."""
    folder, times = decoded
    timed = f"test{option[0]}.tsv"
    found = brctc(folder, "reference-times", "test.tsv", *option, "--out", timed)
    assert found.code == 0, found.err
    assert found.out.splitlines()[1].split() == ["3", "3", "0", "3"]
    for row in read_manifest(folder / timed):
        assert [time.word for time in row.word_times] == [time["text"] for time in times[row.id]]
        assert "".join(time.word for time in row.word_times) == row.text
    prepared = f"prepared{option[0]}"
    found = brctc(folder, "prepare", timed, "--split", "test", "--out", prepared, *PREPARE)
    assert found.code == 0, found.err
    found = brctc(folder, "latency", "model", "--prepared", prepared)
    assert found.code == 0, found.err
    online = json.loads((folder / "latency.json").read_text())["trials"][0]["online"]
    spikes = [time for words in times.values() for time in words]
    drifts = [1000 * (time["end_s"] - HALF_FRAME_S - time["start_s"]) for time in spikes]
    assert (online["unit"], online["error"]["errors"]) == ("char", 0)
    assert online["drift"]["counted"] == len(spikes) > 30
    assert online["drift"]["mean_ms"] == pytest.approx(np.mean(drifts), abs=1)  # milliseconds in a CTM
    assert "over the words that both have (of Chinese and Japanese, characters)" in " ".join(
        (folder / "latency.html").read_text().split()
    )


def test_what_does_not_fit(decoded, tmp_path):
    """All of it is named, and nothing is written, unless it is to be left out."""
    folder, _ = decoded
    rows = read_manifest(folder / "test.tsv")
    rows[1] = dataclasses.replace(rows[1], text="二二")
    rows.append(dataclasses.replace(rows[2], id="u3"))
    write_manifest(tmp_path / "m.tsv", rows)
    command = ("reference-times", "m.tsv", "--from-ctm", folder / "words.ctm", "--out", "timed.tsv")
    found = brctc(tmp_path, *command)
    assert (found.code, found.out) == (2, "")
    first, second, third = found.err.splitlines()
    assert first == f"brctc reference-times: {folder / 'words.ctm'}: 2 problems"
    assert second.startswith("  u1: the alignment says '")
    assert second.endswith("the text says '二二'")
    assert third == "  u3: the alignment lacks it"
    assert not (tmp_path / "timed.tsv").exists()
    found = brctc(tmp_path, *command, "--skip-bad")
    assert found.code == 0, found.err
    assert found.out.splitlines()[1].split() == ["4", "2", "2", "2"]
    assert "  u3: the alignment lacks it" in found.out
    written = read_manifest(tmp_path / "timed.tsv")
    assert [row.word_times is None for row in written] == [False, True, False, True]


def test_bad_options(decoded, tmp_path):
    folder, _ = decoded
    command = ("reference-times", folder / "test.tsv", "--out", tmp_path / "out.tsv")
    for options, message in [
        (("--from-ctm", "a", "--from-textgrids", "b"), "give one of --from-ctm and --from-textgrids"),
        (("--skip-bad",), "--skip-bad belongs to --from-ctm and --from-textgrids"),
        (("--from-ctm", "gone.ctm"), "gone.ctm"),
        (("--from-textgrids", "gone"), "gone is not a directory"),
        (
            ("--from-textgrids", folder / "grids", "--tier", "phones"),
            "has no tier 'phones' of intervals, but 'words'",
        ),
    ]:
        found = brctc(folder, *command, *options)
        assert found.code == 2
        assert found.err.startswith("brctc reference-times: ")
        assert message in found.err
        assert "Traceback" not in found.err
    assert not (tmp_path / "out.tsv").exists()
