"""`brctc explore`: a page to try risks on."""

import json

from tests.cli.commands import brctc


def posteriors_of(path):
    text = path.read_text()
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    keys = [posterior["key"] for posterior in data["posteriors"]]
    return keys, keys[data["first"]]


def test_without_a_run(tmp_path):
    found = brctc(tmp_path, "explore")
    assert (found.code, found.out) == (0, "The page is explore.html.\n"), found.err
    assert posteriors_of(tmp_path / "explore.html") == (["appendix-b", "uniform", "hello"], "uniform")


def test_of_a_run(trained):
    folder, _ = trained
    wanted = ("--utterance", "test-00002", "test-00001", "--out", "new/page.html")
    found = brctc(folder, "explore", "vanilla", *wanted)
    assert (found.code, found.out) == (0, "The page is new/page.html.\n"), found.err
    keys, first = posteriors_of(folder / "new" / "page.html")
    assert keys == ["appendix-b", "uniform", "vanilla:test-00002", "vanilla:test-00001"]
    assert first == "vanilla:test-00002"
    elsewhere = ("--prepared", "prepared", "--split", "dev", "--out", "of-model.html")
    found = brctc(folder, "explore", "brctc/model", *elsewhere)
    assert found.code == 0, found.err
    keys, first = posteriors_of(folder / "of-model.html")
    assert keys[2:] == [first]
    assert first.startswith("brctc:dev-")


def test_refusals(trained):
    folder, _ = trained
    for arguments, message in (
        (("--utterance", "x"), "--utterance is for a trained model: give its RUN, too"),
        (("--prepared", "x"), "--prepared is for a trained model: give its RUN, too"),
        (("vanilla", "--utterance", "nobody"), "prepared (test) has no utterance nobody"),
        (("vanilla", "--out", "."), "--out . is a directory, expected a file"),
        (
            ("vanilla/model",),
            "vanilla/model is not a run directory, so its corpus is not known: give --prepared",
        ),
    ):
        found = brctc(folder, "explore", *arguments)
        assert (found.code, found.err) == (2, f"brctc explore: {message}\n")
