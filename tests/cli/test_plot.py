"""`brctc plot`: pictures of finished runs."""

import pytest

from tests.cli.commands import brctc

PNG = b"\x89PNG"


@pytest.mark.parametrize(
    ("options", "files"),
    [
        (("--out", "one.png"), ["one.png"]),
        (("--utterance", "test-00002", "test-00001", "--out", "many"), ["test-00002.png", "test-00001.png"]),
        (("--evolution", "--out", "new/evolution.svg"), ["evolution.svg"]),
        (("--evolution", "--utterance", "dev-00000", "--out", "folder"), ["dev-00000.png"]),
    ],
)
def test_pictures(trained, options, files):
    folder, _ = trained
    found = brctc(folder, "plot", "vanilla", "brctc", *options)
    assert found.code == 0, found.err
    paths = [folder / line.split("\t")[1] for line in found.out.splitlines()]
    assert [path.name for path in paths] == files
    for path in paths:
        content = path.read_bytes()
        assert len(content) > 10_000
        assert content.startswith(PNG) == (path.suffix == ".png")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--utterance", "nobody"), "prepared (test) has no utterance nobody"),
        (("--utterance", "a", "b"), "--out alignment.png is one picture for 2 utterances: give a folder"),
        (("--out", "a.gif"), "--out a.gif: pictures are .png, .svg, .pdf"),
        (("--evolution", "--utterance", "x"), "not all runs have a snapshot of x, but of dev-00000"),
    ],
)
def test_refusals(trained, options, message):
    found = brctc(trained[0], "plot", "vanilla", *options)
    assert (found.code, found.err) == (2, f"brctc plot: {message}\n")
