"""`brctc train`: a whole run, stopping and continuing, refusals."""

import os
import signal
import subprocess
import sys
import time

import pytest

from brctc.train import read_metrics
from tests.cli.commands import SMALL, Command, brctc


def train(*arguments):
    return ("train", "handwriting/brctc", "--out", "brctc", "--set", *SMALL, *arguments)


def test_a_run(trained):
    folder, found = trained
    assert "dev error" in found.out
    assert "Try: brctc decode brctc --prepared prepared --split dev" in found.out
    assert len([r for r in read_metrics(folder / "brctc") if "loss" in r]) == 10
    assert (folder / "brctc" / "model" / "model.json").exists()


def test_a_run_that_is_there(trained):
    folder, found = trained
    again = brctc(folder, *train())
    assert again.code == 2
    assert again.err.startswith("brctc train: brctc holds a run already: resume it")
    assert brctc(folder, *train("--resume")).out == found.out  # nothing was left to do
    other = brctc(folder, *train("seed=1", "--resume"))
    assert other.code == 2
    assert "seed was 0, now it is 1" in other.err


def test_ctrl_c_and_resume(tmp_path):
    longer = ("stages.first.steps=2000", "checkpoints.every_steps=500")
    command = Command(tmp_path, *train(*longer))
    while command.process.is_alive() and len(read_metrics(tmp_path / "brctc")) < 3:
        time.sleep(0.02)
    os.kill(command.process.pid, signal.SIGINT)
    found = command.finish()
    assert found.code == 130
    assert "brctc train: stopped by a signal after step" in found.err
    assert found.err.endswith("The same command with --resume continues.\n")
    assert "Traceback" not in found.err
    done = len(read_metrics(tmp_path / "brctc"))
    command = Command(tmp_path, *train(*longer, "--resume"))
    while command.process.is_alive() and len(read_metrics(tmp_path / "brctc")) <= done:
        time.sleep(0.02)
    os.kill(command.process.pid, signal.SIGINT)
    assert command.finish().code == 130
    assert "resumed from" in (tmp_path / "brctc" / "train.log").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("handwriting/brtc",), "there is no recipe handwriting/brtc; did you mean handwriting/brctc?"),
        (
            ("handwriting/brctc", "--set", "batch.second=1"),
            "batch.second: unknown key; did you mean batch.seconds?",
        ),
        (("handwriting/brctc", "--set", "batch.seconds"), "--set takes key=value, got 'batch.seconds'"),
        (("handwriting/brctc", "--set", "stages.first.trim={margin: -1}"), "stages.first.trim.margin"),
    ],
)
def test_refused_before_anything_runs(tmp_path, arguments, message):
    found = brctc(tmp_path, "train", *arguments, "--out", "run")
    assert found.code == 2
    assert found.err.startswith("brctc train: ")
    assert message in found.err
    assert "Traceback" not in found.err
    assert not (tmp_path / "run").exists()


def test_a_dry_run(trained):
    folder, _ = trained
    before = sorted(folder.rglob("*"))
    found = brctc(folder, "train", "handwriting/brctc", "--dry-run", "--device", "a100", "--set", *SMALL)
    assert found.code == 0, found.err
    assert sorted(folder.rglob("*")) == before
    lines = {line.split()[0]: line.split()[1:] for line in found.out.splitlines() if line.strip()}
    assert lines["steps"] == ["6", "4", "10"]
    assert "hours, A100" in found.out
    assert "H100" not in found.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "run", "--dry-run"), "--out: a dry run writes nothing: leave it out"),
        (("--dry-run", "--resume"), "--resume: a dry run writes nothing"),
        (("--out", "run", "--device", "a100"), "--device: it is of a dry run: give --dry-run, too"),
        (("--out", "run", "--gpus", "2"), "--gpus: it is of a dry run"),
        ((), "--out RUN is needed"),
        (("--dry-run", "--device", "a101"), "there is no device 'a101'; did you mean a100?"),
        (("--dry-run", "--set", "batch.second=1"), "batch.second: unknown key"),
        (("--dry-run", "--set", "start=nowhere", "stages.first.inherit=whole"), "nowhere holds no model"),
    ],
)
def test_options_of_a_dry_run(tmp_path, arguments, message):
    found = brctc(tmp_path, "train", "handwriting/brctc", *arguments)
    assert found.code == 2
    assert message in found.err
    assert "Traceback" not in found.err
    assert not [path for path in tmp_path.iterdir() if path.name not in (".out", ".err")]


@pytest.mark.slow
def test_torchrun(tmp_path):
    """Two processes; one of them writes and speaks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    found = subprocess.run(
        [*command, "-m", "brctc", *train("optimiser.accumulate=2")],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("The model is in") == 1
    assert "2 processes" in (tmp_path / "brctc" / "train.log").read_text()
