"""Trainings that meet: in one run directory, or on one corpus that nobody has prepared yet."""

import fcntl
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from brctc.data import Prepared, Row, write_manifest
from brctc.train import Recipe, parse_recipe, train
from tests.data.sounds import noise, write
from tests.train.children import start_training
from tests.train.tiny import ENCODER, FINAL, tiny_recipe


def test_one_training_at_a_time(tmp_path):
    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(FileExistsError, match="another training is running"):
            train(tiny_recipe(tmp_path), tmp_path, progress=False)


def test_a_training_that_goes_on_waits_for_the_end_of_the_one_before(tmp_path):
    """As when a sweep was killed, and its trainings still write their checkpoints."""
    recipe = tiny_recipe(tmp_path)
    model = train(recipe, tmp_path / "run", progress=False)
    lock = (tmp_path / "run" / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    threading.Timer(0.5, lock.close).start()
    assert train(recipe, tmp_path / "run", resume=True, progress=False) == model
    assert lock.closed


def speech_recipe(folder: Path, subsampling: int = 2, skip_bad: bool = True) -> Recipe:
    """Of noises that are to be prepared; one has more text than frames after 4x subsampling."""
    if not (folder / "train.tsv").exists():
        rows = [Row(f"u{n}", "a b", write(folder / f"{n}.wav", noise(0.5, n)), 0.5) for n in range(60)]
        long = Row("long", "abcdefghijklmnop", write(folder / "long.wav", noise(0.5, 99)), 0.5)
        write_manifest(folder / "train.tsv", [*rows, long])
        write_manifest(folder / "dev.tsv", rows[:6])
    manifests = {split: str(folder / f"{split}.tsv") for split in ("train", "dev")}
    content = tiny_recipe(folder).model_dump(mode="json") | {
        "corpus": {
            "kind": "manifests",
            "manifests": manifests,
            "prepared": str(folder / "prepared"),
            "speeds": [1.0],
            "skip_bad": skip_bad,
        },
        "features": {"num_bins": 20},
        "model": {"encoder": ENCODER | {"subsampling": subsampling, "subsampling_channels": 4}},
        "stages": {"only": {"steps": 6, "losses": {"final": FINAL}}},
    }
    return parse_recipe(content)


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True])
def test_two_trainings_on_an_unprepared_corpus(tmp_path, kill):
    """One prepares, the other waits; also if the first is killed meanwhile."""
    recipe = speech_recipe(tmp_path)
    children = [start_training(recipe, tmp_path / f"run{n}") for n in range(2)]
    if kill:
        while not any(tmp_path.glob("prepared/train-*/.tmp-*")) and children[0].is_alive():
            time.sleep(0.001)
        os.kill(children[0].pid, signal.SIGKILL)
    for child in children:
        child.join()
    codes = [child.exitcode for child in children]
    assert codes[1] == 0
    assert codes[0] in ((0, -signal.SIGKILL) if kill else (0,))
    Prepared(tmp_path / "prepared", "train").verify()
    again = start_training(recipe, tmp_path / "run0")
    again.join()
    assert again.exitcode == 0


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [False, True])
def test_trainings_that_would_leave_out_different_rows(tmp_path, at_once):
    """Whoever comes second takes what is there, or says what is wrong with it: the first goes on."""
    recipes = [speech_recipe(tmp_path, subsampling) for subsampling in (2, 4)]
    children = []
    for n, recipe in enumerate(recipes):
        children.append(start_training(recipe, tmp_path / f"run{n}"))
        if not at_once:
            children[n].join()
    for child in children:
        child.join()
    split = Prepared(tmp_path / "prepared", "train")
    split.verify()
    # the second leaves a row out that the first would keep, and cannot use it
    assert [child.exitcode for child in children] == [0, 0 if len(split) == 60 else 1]
    assert len(split) in ((60, 61) if at_once else (61,))
    assert len(list(tmp_path.glob("prepared/train-*"))) == 1
