"""Ids and names that come from outside: they lead nowhere else, and they are no markup."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brctc.cli.shared import check_names
from brctc.data import Row, write_manifest
from brctc.files import file_name
from tests.cli.commands import brctc
from tests.data.splits import write_split

LONG = "x" * 300
ODD = ("../../escape", "..", "/etc/passwd", LONG, "語" * 150, "a[/red]", ".hidden", "C:\\temp")


@pytest.mark.parametrize(
    "plain", ["test-00001", "1089-134686-0000", "anna 7", "a.b", "語", "x" * 200, "a[red]"]
)
def test_plain_ids_stay(plain):
    assert file_name(plain) == plain


@pytest.mark.parametrize(
    ("odd", "name"),
    [
        ("s/a", "s_a"),
        ("../../a", "___.._a"),
        ("..", "__"),
        (".", "_"),
        ("", "_"),
        (".hidden", "_hidden"),
        ("a\0b", "a_b"),
        ("a\nb", "a_b"),
        ("a\\b", "a_b"),
        ("a\ud800b", "a_b"),
    ],
)
def test_odd_ids_become_names(odd, name):
    assert file_name(odd) == name


def test_long_ids_are_told_apart():
    names = {file_name(LONG + end) for end in ("a", "b", "語")}
    assert len(names) == 3
    assert all(name.startswith("x" * 150) for name in names)
    check_names([LONG + "a", LONG + "b"])
    with pytest.raises(ValueError, match="s/a and s_a would both be written to s_a"):
        check_names(["s/a", "s_a"])


@given(st.text() | st.text(st.sampled_from("./\\\0a語"), max_size=400))
def test_a_file_is_in_its_folder(tmp_path_factory, utterance):
    folder = tmp_path_factory.getbasetemp() / "names"
    folder.mkdir(exist_ok=True)
    path = folder / f"{file_name(utterance)}.TextGrid"
    (folder / f".tmp-1234567-{path.name}").touch()  # as unfinished files are called
    path.write_text("")
    assert path.resolve().parent == folder.resolve()
    for made in folder.iterdir():
        made.unlink()


def files_below(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def test_subtitles_stay_in_their_folder(noises, tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    write_manifest(inner / "odd.tsv", [Row(name, "one", noises / "u0.wav", 1.0) for name in ODD])
    before = files_below(tmp_path)
    out = ("--srt", "srt", "--textgrid", "grids")
    found = brctc(inner, "decode", noises / "model", "--manifest", "odd.tsv", *out)
    assert found.code == 0, found.err
    assert [line.split("\t")[0] for line in found.out.splitlines()] == list(ODD)
    added = files_below(tmp_path) - before - {Path("a/b/.out"), Path("a/b/.err")}
    folders = {Path("a/b/srt"): ".srt", Path("a/b/grids"): ".TextGrid"}
    assert {path.parent for path in added} == set(folders)
    for place, ending in folders.items():
        names = {path.name for path in added if path.parent == place}
        assert names == {file_name(name) + ending for name in ODD}


def test_pictures_stay_in_their_folder(trained, tmp_path):
    inner = shutil.copytree(trained[0], tmp_path / "a" / "b")
    features = np.random.default_rng(0).random((60, 8)).astype(np.float32)
    write_split(inner / "prepared", "test", {name: ("12", features, None) for name in ODD[:4]})
    before = files_below(tmp_path)
    found = brctc(inner, "plot", "vanilla", "--utterance", *ODD[:4], "--out", "pictures")
    assert found.code == 0, found.err
    added = files_below(tmp_path) - before
    assert added == {Path("a/b/pictures") / f"{file_name(name)}.png" for name in ODD[:4]}


def test_names_of_runs_are_no_markup(trained, tmp_path):
    """Neither in tables nor in bars: a folder may be called what it likes."""
    names = ["x[/red]", "y[/red]"]
    for name in names:
        shutil.copytree(trained[0] / "vanilla", tmp_path / name)
    quick = ("--limit", "2", "--repeats", "1", "--beams", "2", "--prepared", trained[0] / "prepared")
    found = brctc(tmp_path, "evaluate", *names, *quick, FORCE_COLOR="1", TERM="xterm")
    assert found.code == 0, found.err
    for name in names:
        assert name in found.out
        assert f"decoding, {name}" in found.err
    assert "difference to x[/red], points" in found.out
