"""Trainings on this machine, side by side: each has its own GPU, as far as there are some."""

import os
import time
from pathlib import Path

import pytest

from brctc.train.launch import last_record
from brctc.train.local import LocalWorkers
from tests.train.tiny import tiny_recipe


def environment_of(training) -> dict[str, str]:
    """What a training's process was started with."""
    content = Path(f"/proc/{training._process.pid}/environ").read_bytes()
    return dict(item.split("=", 1) for item in os.fsdecode(content).split("\0") if item)


@pytest.fixture
def start(tmp_path):
    """Starts trainings that do not end by themselves; stops them at the end."""
    stages = {"first": tiny_recipe(tmp_path).model_dump(mode="json")["stages"]["first"] | {"steps": 100_000}}
    recipe = tiny_recipe(tmp_path, stages=stages)
    started = []

    def begin(workers):
        run = tmp_path / f"run{len(started)}"
        started.append(workers.start(recipe, run))
        while started[-1].running() and last_record(run).get("step", 0) < 1:
            time.sleep(0.02)
        assert started[-1].running(), started[-1].failure()
        return started[-1]

    yield begin
    for training in started:
        training.stop()
        training.wait()


@pytest.mark.slow
def test_each_training_gets_the_gpu_that_is_used_least(start):
    workers = LocalWorkers(gpus=2)
    trainings = [start(workers) for _ in range(3)]
    given = [environment_of(training)["CUDA_VISIBLE_DEVICES"] for training in trainings]
    assert given == ["0", "1", "0"]
    trainings[0].stop()
    trainings[2].stop()
    for training in (trainings[0], trainings[2]):
        while training.running():
            time.sleep(0.02)
    assert environment_of(start(workers))["CUDA_VISIBLE_DEVICES"] == "0"  # the other one is taken


@pytest.mark.slow
def test_without_gpus_nothing_is_said_of_them(start, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = environment_of(start(LocalWorkers(gpus=0)))
    assert "CUDA_VISIBLE_DEVICES" not in found
    assert found["OMP_NUM_THREADS"] == "1"
