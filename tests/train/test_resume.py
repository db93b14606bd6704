"""A run that is killed, at whatever moment, and resumed ends with the very same weights."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from brctc.models import load_model
from brctc.train import latest_checkpoint, list_checkpoints, read_metrics, signals
from brctc.train.signals import StopSignal
from tests.train.children import start_training
from tests.train.tiny import best_recipe, tiny_recipe


def steps_done(run_dir: Path) -> int:
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b'"seconds"') if path.exists() else 0


def wait_for(child, run_dir, steps):
    """Until so many steps are done, or the child is."""
    while child.is_alive() and steps_done(run_dir) < steps:
        time.sleep(0.001)


def without_times(metrics):
    return [{k: v for k, v in line.items() if "seconds" not in k} for line in metrics]


def assert_same(run, other):
    """Model, last weights, Adam's state and all losses, to the last bit."""
    models = [sorted(path.name for path in (d / "model").iterdir()) for d in (run, other)]
    assert models[0] == models[1]  # the weights' name is their checksum
    checkpoints = [latest_checkpoint(d / "checkpoints") for d in (run, other)]
    (_, first), (_, second) = checkpoints
    for a, b in ((first.model, second.model), (first.optimiser, second.optimiser)):
        assert a.keys() == b.keys()
        assert all(a[name].equal(b[name]) for name in a)
    assert without_times(read_metrics(run)) == without_times(read_metrics(other))
    names = [[path.name for path in list_checkpoints(d / "checkpoints")] for d in (run, other)]
    assert names[0] == names[1]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A recipe and a run of it that nobody disturbed."""
    folder = tmp_path_factory.mktemp("resume")
    recipe = tiny_recipe(folder)
    child = start_training(recipe, folder / "whole")
    child.join()
    assert child.exitcode == 0
    return recipe, folder / "whole"


@pytest.fixture
def usual_sigint():
    """A shell's background jobs inherit it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("usual_sigint")
def test_a_signal_that_comes_twice_at_once_is_one(monkeypatch):
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # torchrun passes on what all have got
        assert stop.received
        monkeypatch.setattr(signals, "SAME_SIGNAL_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_damaged_metrics_are_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n\0\0\0\n{"step": 2}\n{"st')
    assert read_metrics(tmp_path) == [{"step": 1}, {"step": 2}]
    path.write_text('{"step": 1}\n{"st\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"line 2 of .*metrics.jsonl is damaged"):
        read_metrics(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(3))
def test_killed_again_and_again(uninterrupted, trial, tmp_path):
    recipe, whole = uninterrupted
    if trial == 0:  # the corpus, too, is prepared by a process that is killed
        recipe = tiny_recipe(tmp_path)
    run_dir = tmp_path / "run"
    seed = random.randrange(10**6)
    print("random moments of seed", seed)  # shown when the test fails
    moments = random.Random(seed)
    kills = 0
    before = 0
    while True:
        child = start_training(recipe, run_dir)
        if kills < 6:
            wait_for(child, run_dir, before + moments.randint(0, 6))
            time.sleep(moments.uniform(0, 0.06))
            child.kill()
        child.join()
        before = max(before, steps_done(run_dir))
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        kills += 1
    assert kills >= 2
    assert "resumed from" in (run_dir / "train.log").read_text()
    assert_same(run_dir, whole)
    assert not list(run_dir.rglob(".tmp-*"))


@pytest.mark.slow
def test_the_same_ones_are_the_best_after_a_kill_and_a_signal(tmp_path):
    recipe = best_recipe(tmp_path)
    for name, stops in (("whole", ()), ("run", ((signal.SIGTERM, 9), (signal.SIGKILL, 19)))):
        for number, steps in stops:
            child = start_training(recipe, tmp_path / name)
            wait_for(child, tmp_path / name, steps)
            os.kill(child.pid, number)
            child.join()
            assert child.exitcode != 0
        child = start_training(recipe, tmp_path / name)
        child.join()
        assert child.exitcode == 0
    assert_same(tmp_path / "run", tmp_path / "whole")
    averaged = [load_model(tmp_path / name / "model").description["averaged"] for name in ("run", "whole")]
    assert averaged[0] == averaged[1]


@pytest.mark.slow
def test_signals_end_the_step_and_write_a_checkpoint(uninterrupted, tmp_path):
    recipe, whole = uninterrupted
    run_dir = tmp_path / "run"
    for number, steps in ((signal.SIGINT, 2), (signal.SIGTERM, 14)):
        child = start_training(recipe, run_dir)
        wait_for(child, run_dir, steps)
        os.kill(child.pid, number)
        child.join()
        assert child.exitcode == 3
        found = latest_checkpoint(run_dir / "checkpoints")
        assert found[1].state["done"] == steps_done(run_dir) < 20
        log = (run_dir / "train.log").read_text().splitlines()
        assert f"stopped by a signal after step {found[1].state['position']['step']}" in log[-1]
    child = start_training(recipe, run_dir)
    child.join()
    assert child.exitcode == 0
    assert_same(run_dir, whole)
