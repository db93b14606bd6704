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
        (("--attention", "--utterance", "test-00001", "--out", "maps"), ["test-00001.png"]),
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
        (("--evolution", "--attention"), "give --evolution or --attention, not both"),
        (("--out", "a.gif"), "--out a.gif: pictures are .png, .svg, .pdf"),
        (("--evolution", "--utterance", "x"), "not all runs have a snapshot of x, but of dev-00000"),
    ],
)
def test_refusals(trained, options, message):
    found = brctc(trained[0], "plot", "vanilla", *options)
    assert (found.code, found.err) == (2, f"brctc plot: {message}\n")


def test_evaluations_become_one_picture(trained):
    folder, _ = trained
    quick = ("--limit", "2", "--repeats", "1", "--beams", "2", "--split", "test", "dev")
    assert brctc(folder, "evaluate", "vanilla", "brctc", *quick, "--out", "here.json").code == 0
    found = brctc(folder, "plot", "here.json", "here.json", "--out", "corpora.png")
    assert (found.code, found.out) == (0, "corpora.png\n"), found.err
    assert (folder / "corpora.png").read_bytes().startswith(PNG)
    assert brctc(folder, "evaluate", "vanilla", *quick, "--out", "one.json").code == 0
    for names, options, message in (
        (("here.json", "one.json"), (), "the evaluations have different numbers of systems"),
        (("here.json",), ("--attention",), "evaluations become one picture: give --out FILE alone"),
    ):
        refused = brctc(folder, "plot", *names, *options, "--out", "x.png")
        assert (refused.code, refused.err) == (2, f"brctc plot: {message}\n")
