"""Trainings on a real Ray cluster of this machine: a killed worker's training is run again."""

import os
import signal
import time

import pytest

from brctc.train import latest_checkpoint, read_metrics, train
from brctc.train.launch import last_record, train_all
from tests.train.tiny import tiny_recipe

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def workers():
    from brctc.train.ray_workers import RayWorkers

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield RayWorkers()
    ray.shutdown()


def ray_tasks() -> list[int]:
    """Processes that run a task of ours."""
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                found += [int(entry)] if b"ray::train_here" in file.read() else []
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_what_is_done_is_not_repeated(workers, tmp_path):
    longer = tiny_recipe(tmp_path).model_dump(mode="json")
    longer["stages"]["first"]["steps"] = 150
    recipe = tiny_recipe(tmp_path, stages=longer["stages"])
    train(recipe, tmp_path / "done", progress=False)  # prepares the corpus, too
    before = (tmp_path / "done" / "train.log").read_text()

    training = workers.start(recipe, tmp_path / "killed")
    while last_record(tmp_path / "killed").get("step", 0) < 20:
        assert training.failure() is None
        time.sleep(0.01)
    (victim,) = ray_tasks()
    os.kill(victim, signal.SIGKILL)
    training.wait()
    assert training.failure() is None

    train_all({"done": recipe, "killed": recipe, "new": recipe}, tmp_path, workers)
    assert (tmp_path / "done" / "train.log").read_text() == before
    assert "resumed from" in (tmp_path / "killed" / "train.log").read_text()
    weights = [
        next((tmp_path / name / "model").glob("*.safetensors")).name for name in ("done", "killed", "new")
    ]
    assert len(set(weights)) == 1  # their name is their checksum
    assert [line["step"] for line in read_metrics(tmp_path / "killed") if "seconds" in line] == list(
        range(1, 159)
    )


@pytest.mark.slow
def test_a_training_that_fails_says_why_and_stops_the_others(workers, tmp_path):
    good = tiny_recipe(tmp_path).model_dump(mode="json")
    good["stages"]["first"]["steps"] = 5000
    good = tiny_recipe(tmp_path, stages=good["stages"])
    bad = tiny_recipe(tmp_path, optimiser={"peak_rate": 1e30, "warmup_steps": 0})
    with pytest.raises(ValueError, match=r"the training of bad has failed: .*step 2 of stage 'first'"):
        train_all({"good": good, "bad": bad}, tmp_path, workers)
    _, checkpoint = latest_checkpoint(tmp_path / "good" / "checkpoints")
    assert checkpoint.state["done"] == last_record(tmp_path / "good")["step"] < 5000
