"""Processes under torchrun that die or hang: named, restarted, and the same model in the end."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brctc.train import latest_checkpoint, list_checkpoints
from brctc.train.peers import PeerError, Peers
from tests.train.tiny import tiny_recipe

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, torch
from pathlib import Path
from brctc.train import Recipe, peers, train
torch.set_num_threads(1)
peers.SILENT_S = float(sys.argv[3])
train(Recipe.model_validate_json(Path(sys.argv[1]).read_text()), sys.argv[2], progress=False)
"""


def start(folder: Path, run: str, restarts: int, silent_s: float = 60.0) -> subprocess.Popen[str]:
    """Two processes that train the recipe in a folder."""
    (folder / "script.py").write_text(SCRIPT)
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}"]
    arguments = [folder / "script.py", folder / "recipe.json", folder / run, silent_s]
    return subprocess.Popen(
        [sys.executable, "-m", *launch, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def workers_of(launcher: subprocess.Popen[str]) -> list[int]:
    """The processes that torchrun has started, by rank."""
    found: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        try:
            stat = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            if entry.isdecimal() and int(stat[1]) == launcher.pid:
                environment = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
                ranks = [item[5:] for item in environment if item.startswith(b"RANK=")]
                found |= {int(ranks[0]): int(entry)} if ranks else {}
        except (OSError, IndexError):
            continue
    return [found[rank] for rank in sorted(found)]


def wait_for_steps(launcher: subprocess.Popen[str], run: Path, steps: int) -> None:
    path = run / "metrics.jsonl"
    while launcher.poll() is None:
        if path.exists() and path.read_bytes().count(b'"seconds"') >= steps:
            return
        time.sleep(0.005)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A folder with the recipe, and a run of it in two processes that nobody disturbed."""
    folder = tmp_path_factory.mktemp("elastic")
    optimiser = {"peak_rate": 2e-3, "warmup_steps": 3, "accumulate": 2}
    (folder / "recipe.json").write_text(tiny_recipe(folder, optimiser=optimiser).model_dump_json())
    launcher = start(folder, "whole", 0)
    output, _ = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, output
    return folder


def assert_same(run: Path, other: Path) -> None:
    (_, first), (_, second) = (latest_checkpoint(path / "checkpoints") for path in (run, other))
    for a, b in ((first.model, second.model), (first.optimiser, second.optimiser)):
        assert a.keys() == b.keys()
        assert all(a[name].equal(b[name]) for name in a)
    names = [sorted(path.name for path in (d / "model").iterdir()) for d in (run, other)]
    assert names[0] == names[1]  # the weights' name is their checksum


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_is_restarted_and_nothing_is_lost(undisturbed, rank):
    seed = random.randrange(10**6)
    print("random step of seed", seed)  # shown when the test fails
    step = random.Random(seed).randint(4, 17)
    launcher = start(undisturbed, f"killed-{rank}", restarts=1)
    wait_for_steps(launcher, undisturbed / f"killed-{rank}", step)
    os.kill(workers_of(launcher)[rank], signal.SIGKILL)
    output, _ = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, output
    assert "resumed from" in (undisturbed / f"killed-{rank}" / "train.log").read_text()
    assert_same(undisturbed / f"killed-{rank}", undisturbed / "whole")


@pytest.mark.slow
def test_a_hung_worker_is_named_and_all_are_restarted(undisturbed):
    launcher = start(undisturbed, "hung", restarts=1, silent_s=8.0)
    wait_for_steps(launcher, undisturbed / "hung", 5)
    pid = workers_of(launcher)[1]
    os.kill(pid, signal.SIGSTOP)
    output, _ = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, output
    assert re.search(rf"no sign of rank 1 \(process {pid} on .*, last at step \d+\) for \d+ s", output)
    assert_same(undisturbed / "hung", undisturbed / "whole")


@pytest.mark.slow
def test_without_restarts_the_dead_worker_is_named(undisturbed):
    launcher = start(undisturbed, "dead", restarts=0)
    wait_for_steps(launcher, undisturbed / "dead", 4)
    pid = workers_of(launcher)[1]
    os.kill(pid, signal.SIGKILL)
    output, _ = launcher.communicate(timeout=300)
    assert launcher.returncode != 0
    assert list_checkpoints(undisturbed / "dead" / "checkpoints")
    said, _, rest = output.partition(f"brctc train: lost rank 1 (process {pid} on ")
    assert re.match(r"\S+, last at step \d+\): Connection \w+ by peer: this process ends", rest), output
    assert "Traceback" not in said


class Store(dict):
    """What Peers needs of torch's store."""

    def set(self, key, value):
        self[key] = value

    def check(self, keys):
        return all(key in self for key in keys)

    def get(self, key):
        return self[key]


BACKENDS = {
    "[pair.cc:537] Read error [127.0.0.1]:49874: Connection reset by peer. GLHF!": "Connection reset by peer",
    "[pair.cc:553] Connection closed by peer [127.0.0.1]:61": "Connection closed by peer",
    "writev [::1]:88: Broken pipe": "Broken pipe",
    "Timed out waiting 600000ms for recv operation to complete": "Timed out waiting 600000ms for recv "
    "operation to complete",
    "NCCL error in: NCCLUtils.cpp:94, remote process exited": "NCCL error in: NCCLUtils",
}


@pytest.mark.parametrize("message", BACKENDS)
def test_whatever_a_backend_says_the_dead_process_is_named(monkeypatch, message):
    """A process that is not there any more has given the last sign."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    store, said = Store(), []
    with Peers(store, 1, 2, lambda problem: None) as dead:
        dead._pid, dead.step = ended.pid, 7
        dead._give_sign()
    before = signal.getsignal(signal.SIGTERM)
    try:
        with (
            pytest.raises(PeerError),
            Peers(store, 0, 2, said.append) as peers,
            peers.named_on_failure(),
        ):
            raise RuntimeError(message)
    finally:
        signal.signal(signal.SIGTERM, before)
    (problem,) = said
    assert re.fullmatch(rf"lost rank 1 \(process {ended.pid} on \S+, last at step 7\): .*", problem)
    assert problem.endswith(f": {BACKENDS[message]}")


def test_other_errors_are_nobodys_death():
    with pytest.raises(RuntimeError, match="shapes differ"):  # noqa: SIM117
        with Peers(Store(), 0, 2) as peers, peers.named_on_failure():
            raise RuntimeError("shapes differ")


def test_a_peer_that_is_stuck_at_a_step_is_named(monkeypatch):
    """It gives signs of life, but the others wait for it."""
    from brctc.train import peers

    monkeypatch.setattr(peers, "SIGN_S", 0.01)
    monkeypatch.setattr(peers, "STUCK_S", 0.2)
    store, said = Store(), []
    with Peers(store, 1, 2, lambda problem: None) as stuck:
        stuck.step = 3
        with Peers(store, 0, 2, said.append) as waiting:
            waiting.step = 4
            deadline = time.monotonic() + 10
            while not said and time.monotonic() < deadline:
                time.sleep(0.01)
    stuck_at = r"rank 1 \(process \d+ on .*, last at step 3\) is stuck while others wait at step 4"
    assert re.fullmatch(stuck_at, said[0])
