"""`brctc demo` in small: stopped, continued, complete."""

import json
import os
import re
import signal
import time

import numpy as np
import pytest

from brctc.cli.comparison import compare
from brctc.cli.shared import find_recipe, parse_assignments
from brctc.train import latest_checkpoint, load_recipe, parse_recipe, read_metrics
from brctc.train.launch import last_record, train_all
from brctc.train.local import LocalWorkers
from tests.cli.commands import CONTEXT, SMALL, Command, brctc
from tests.data.splits import write_split

CHANGES = [change for change in SMALL if "prepared" not in change]


def processes_of(folder) -> list[str]:
    """Processes whose command line names the folder."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                found += [entry] if str(folder).encode() in file.read() else []
        except OSError:
            continue
    return found


def wait_for_steps(command, out, steps):
    while command.process.is_alive() and any(
        last_record(out / name).get("step", 0) < steps for name in ("vanilla", "brctc")
    ):
        time.sleep(0.05)


@pytest.mark.slow
def test_stopped_and_continued(tmp_path):
    out = tmp_path / "demo"
    arguments = (
        "demo",
        "--out",
        out,
        "--set",
        *CHANGES,
        "stages.first.steps=150",
        "checkpoints.every_steps=100",
    )
    command = Command(tmp_path, *arguments)
    wait_for_steps(command, out, 2)
    os.kill(command.process.pid, signal.SIGINT)
    stopped = command.finish()
    assert stopped.code == 130
    assert stopped.err.endswith("brctc demo: stopped\nThe same command continues.\n")
    assert "Traceback" not in stopped.err
    assert processes_of(out) == []
    for name in ("vanilla", "brctc"):
        _, checkpoint = latest_checkpoint(out / name / "checkpoints")
        assert checkpoint.state["done"] == last_record(out / name)["step"] < 150

    other = brctc(tmp_path, *arguments, "seed=1")
    assert other.code == 2
    assert "demo/vanilla was begun with another recipe: seed was 0, now it is 1" in other.err
    assert "Traceback" not in other.err
    assert processes_of(out) == []

    found = brctc(tmp_path, *arguments)
    assert found.code == 0, found.err
    for name in ("vanilla", "brctc"):
        assert "resumed from" in (out / name / "train.log").read_text()
        steps = [record["step"] for record in read_metrics(out / name) if "loss" in record]
        assert steps == list(range(1, 155))
    assert "difference to vanilla" in found.out
    assert re.search(rf"\d+ min \d+ s\. The report is {out}/report\.html\.\n$", found.out)
    assert "<svg" in (out / "report.html").read_text()
    assert re.search(r"vanilla: 154 of 154, loss.*\nbrctc: 154 of 154, loss.*factor", found.err)


@pytest.mark.slow
def test_a_training_ends_with_whoever_waits_for_it(tmp_path):
    """Killed, a demo cannot tell its trainings to stop."""
    longer = {"stages.first.steps": 5000, "corpus.prepared": str(tmp_path / "prepared")}
    changes = parse_assignments((CHANGES,)) | longer
    killed = CONTEXT.Process(target=wait_for_training, args=(changes, tmp_path))
    killed.start()
    while killed.is_alive() and last_record(tmp_path / "vanilla").get("step", 0) < 1:
        time.sleep(0.05)
    assert processes_of(tmp_path)
    killed.kill()
    deadline = time.monotonic() + 30
    while processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(tmp_path) == []
    _, checkpoint = latest_checkpoint(tmp_path / "vanilla" / "checkpoints")
    assert checkpoint.state["done"] == last_record(tmp_path / "vanilla")["step"]


def wait_for_training(changes, folder):
    train_all({"vanilla": load_recipe(find_recipe("handwriting/vanilla"), changes)}, folder, LocalWorkers())


def test_last_record(tmp_path):
    assert last_record(tmp_path) == {}
    path = tmp_path / "metrics.jsonl"
    lines = [f'{{"step": {i}, "loss": {i / 2}}}\n' for i in range(5000)]
    path.write_text("".join([*lines, "\0\0\n", '{"step": 4999, "dev_error": 0.5}\n', '{"step": 50']))
    assert last_record(tmp_path) == {"step": 4999, "loss": 2499.5, "dev_error": 0.5}


def test_compare_without_a_test_split_is_refused_before_it_trains(tmp_path):
    recipe = load_recipe(find_recipe("handwriting/vanilla"))
    manifests = {"train": "train.tsv", "dev": "dev.tsv"}
    corpus = {"kind": "manifests", "manifests": manifests, "prepared": str(tmp_path / "prepared")}
    for split in ("train", "dev"):
        write_split(tmp_path / "prepared", split, {"a": ("1", np.zeros((20, 40), np.float32), None)})
    changes = {"corpus": corpus, "features": {"num_bins": 40}}
    recipe = parse_recipe(recipe.model_dump(mode="json") | changes)
    with pytest.raises(ValueError, match="the corpus has no test: name what there is, as in --split dev"):
        compare({"vanilla": recipe}, tmp_path / "exp")
    assert not (tmp_path / "exp").exists()


@pytest.mark.slow
def test_compare_trains_decodes_and_reports(tmp_path):
    recipes = ("handwriting/vanilla", "handwriting/brctc")
    done = brctc(tmp_path, "compare", *recipes, "--out", "exp", "--set", *SMALL)
    assert done.code == 0, done.err
    assert "brctc" in done.out
    assert "The report is exp/report.html" in done.out
    page = (tmp_path / "exp" / "report.html").read_text()
    assert page.index("vanilla") < page.index("brctc")
    assert json.loads((tmp_path / "exp" / "report.json").read_text())["split"] == "test"
    other = ("--split", "dev", "--rtf-share", "1/88")
    again = brctc(tmp_path, "compare", *recipes, "--out", "exp", *other, "--set", *SMALL)
    assert again.code == 0, again.err
    numbers = json.loads((tmp_path / "exp" / "report.json").read_text())
    assert (numbers["split"], numbers["rtf_of"]) == ("dev", "the first 1/88 of the test set")
    for name in ("vanilla", "brctc"):
        assert [record["step"] for record in read_metrics(tmp_path / "exp" / name)][-1] == 10


@pytest.mark.parametrize(
    ("recipes", "culprit"),
    [
        (("handwriting/brctc", "grid/transducer-brctc"), "transducer-brctc has another corpus"),
        (("handwriting/brctc", "handwriting/brctc"), "same file name"),
        ((), "give at least one RECIPE"),
        (("handwriting/brctc", "handwriting/brtc"), "did you mean handwriting/brctc"),
    ],
)
def test_compare_refuses_what_cannot_be_compared(tmp_path, recipes, culprit):
    done = brctc(tmp_path, "compare", *recipes, "--out", "exp")
    assert done.code == 2
    assert culprit in done.err
    assert not (tmp_path / "exp").exists()
