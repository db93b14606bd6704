"""`brctc demo` in small: stopped, continued, complete."""

import os
import re
import signal
import time

import pytest

from brctc.cli.side_by_side import last_record
from brctc.train import read_metrics
from tests.cli.commands import SMALL, Command, brctc

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
    longer = ("stages.first.steps=120", "checkpoints.every_steps=60")
    arguments = ("demo", "--out", out, "--set", *CHANGES, *longer)
    command = Command(tmp_path, *arguments)
    wait_for_steps(command, out, 2)
    os.kill(command.process.pid, signal.SIGINT)
    stopped = command.finish()
    assert stopped.code == 130
    assert stopped.err.endswith("brctc demo: stopped\nThe same command continues.\n")
    assert "Traceback" not in stopped.err
    assert processes_of(out) == []
    done = {name: len(read_metrics(out / name)) for name in ("vanilla", "brctc")}
    assert all(0 < steps < 124 for steps in done.values())

    command = Command(tmp_path, *arguments)
    wait_for_steps(command, out, max(done.values()) + 2)
    command.process.kill()  # nobody is told
    command.finish()
    deadline = time.monotonic() + 30
    while processes_of(out) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of(out) == []

    found = brctc(tmp_path, *arguments)
    assert found.code == 0, found.err
    for name in ("vanilla", "brctc"):
        assert "resumed from" in (out / name / "train.log").read_text()
        steps = [record["step"] for record in read_metrics(out / name) if "loss" in record]
        assert steps == list(range(1, 125))
    assert "difference to vanilla" in found.out
    assert re.search(rf"\d+ min \d+ s\. The report is {out}/report\.html\.\n$", found.out)
    assert "<svg" in (out / "report.html").read_text()
    assert re.search(r"vanilla.*124/124.*loss.*\n.*brctc.*124/124.*factor", found.err)


def test_a_failure_is_told_once(tmp_path):
    """A training that cannot run stops the other one."""
    unlearnable = ("optimiser.peak_rate=1e30", "optimiser.clip_norm=1e30", "stages.first.steps=5000")
    found = brctc(tmp_path, "demo", "--out", tmp_path / "demo", "--set", *CHANGES, *unlearnable)
    assert found.code == 2
    assert re.search(r"^brctc demo: the training of (vanilla|brctc) has failed: step \d+ of", found.err, re.M)
    assert "Traceback" not in found.err
    assert processes_of(tmp_path / "demo") == []


def test_last_record(tmp_path):
    assert last_record(tmp_path) == {}
    path = tmp_path / "metrics.jsonl"
    lines = [f'{{"step": {i}, "loss": {i / 2}}}\n' for i in range(5000)]
    path.write_text("".join([*lines, '{"step": 4999, "dev_error": 0.5}\n', '{"step": 50']))
    assert last_record(tmp_path) == {"step": 4999, "loss": 2499.5, "dev_error": 0.5}
