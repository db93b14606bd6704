"""`brctc evaluate` and `brctc report` on runs of `brctc train`; test_own_data.py has a whole report."""

import json

from tests.cli.commands import brctc


def test_evaluate(trained):
    folder, _ = trained
    quick = ("--limit", "4", "--repeats", "1", "--beams", "2")
    found = brctc(folder, "evaluate", "vanilla", "brctc", *quick, "--out", "numbers.json")
    assert found.code == 0, found.err
    for word in ("vanilla", "brctc", "error rate", "down-sampling", "real-time factor"):
        assert word in found.out
    assert found.out.endswith("The results are in numbers.json.\n")
    systems = json.loads((folder / "numbers.json").read_text())["systems"]
    assert [system["name"] for system in systems] == ["vanilla", "brctc"]


def test_several_test_sets(trained):
    folder, _ = trained
    quick = ("--limit", "4", "--repeats", "1", "--beams", "2", "--split", "test", "dev", "--rtf-share", "1/2")
    found = brctc(folder, "evaluate", "vanilla", "brctc", *quick, "--out", "sets.json")
    assert found.code == 0, found.err
    assert " on dev" in found.out
    numbers = json.loads((folder / "sets.json").read_text())
    assert numbers["rtf_of"] == "the first 1/2 of the test set"
    assert [(other["split"], other["utterances"]) for other in numbers["others"]] == [("dev", 4)]
    for options, problem in (
        (("--split", "dev", "dev"), "--split: name one split or several, each once"),
        (("--rtf-share", "a/b"), "--rtf-share is 'a/b', expected a share such as 1/88 or 0.1"),
        (("--rtf-share", "2"), "rtf_share is 2, expected a share above 0, at most 1"),
    ):
        refused = brctc(folder, "evaluate", "vanilla", *options)
        assert (refused.code, refused.err) == (2, f"brctc evaluate: {problem}\n")


def test_several_processes_measure_the_same(trained):
    folder, _ = trained
    systems = []
    for jobs in (1, 2):
        quick = ("--repeats", "1", "--beams", "2", "--jobs", jobs, "--out", f"{jobs}.json")
        found = brctc(folder, "evaluate", "vanilla", "brctc", *quick)
        assert found.code == 0, found.err
        systems.append(json.loads((folder / f"{jobs}.json").read_text())["systems"])
    for one, other in zip(*systems, strict=True):
        for measured in ("name", "scores", "differences", "down_sampling"):
            assert one[measured] == other[measured]


def test_prepared_elsewhere(trained, tmp_path):
    """Models alone do not say where their corpus is."""
    folder, _ = trained
    quick = ("--limit", "2", "--repeats", "1", "--beams", "2", "--split", "dev")
    model = folder / "vanilla" / "model"
    found = brctc(tmp_path, "evaluate", model, "--prepared", folder / "prepared", *quick)
    assert found.code == 0, found.err
    assert (tmp_path / "evaluation.json").exists()
    found = brctc(tmp_path, "evaluate", model)
    assert found.code == 2
    assert "is not a run directory, so its corpus is not known: give --prepared" in found.err


def test_refusals(trained):
    folder, _ = trained
    for command in ("evaluate", "report"):
        found = brctc(folder, command, "vanilla", "nowhere")
        assert found.code == 2
        assert found.err.startswith(f"brctc {command}: ")
        assert "nowhere" in found.err
        assert "Traceback" not in found.err
    found = brctc(folder, "report", "vanilla", "brctc", "--evaluation", "vanilla/recipe.json")
    assert found.err.startswith("brctc report: vanilla/recipe.json: not an evaluation")
