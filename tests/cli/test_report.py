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
