"""Killed, repeated and simultaneous preparations: the old split or the new one, never half of one."""

import fcntl
import json
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from brctc.data import Prepared, Row, write_manifest
from tests.data.children import FULL, ITEMS, children_of, prepare_here, start_preparing
from tests.data.folders import contents, states
from tests.data.sounds import noise, write

ROWS = 120


def write_corpus(folder: Path, count: int, first: int = 0) -> Path:
    rows = []
    for n in range(count):
        path = write(folder / "audio" / f"{n}.wav", noise(0.2, first + n))
        rows.append(Row(f"u{n}", "x", path, 0.2))
    write_manifest(folder / "train.tsv", rows)
    return folder / "train.tsv"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> tuple[Path, dict[str, bytes], float]:
    """A manifest, the files that are made of it, and the seconds that takes."""
    folder = tmp_path_factory.mktemp("corpus")
    manifest = write_corpus(folder, ROWS)
    prepare_here(manifest, folder / "warm")
    start = time.monotonic()
    prepare_here(manifest, folder / "out")
    seconds = time.monotonic() - start
    files = contents(folder / "out")
    assert len(files) == 2 * ROWS // ITEMS + 1
    return manifest, files, seconds


def wait_for(condition, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.002)


@pytest.mark.parametrize("jobs", [1, 2])
def test_any_number_of_processes_gives_the_same_bytes(corpus, tmp_path, jobs):
    manifest, expected, _ = corpus
    prepare_here(manifest, tmp_path, jobs=jobs)
    assert contents(tmp_path) == expected


def workers_of(child) -> list[int]:
    return [worker for server in children_of(child.pid) for worker in children_of(server)]


@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "kills"), [(1, 7), (2, 2)])
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(corpus, tmp_path, jobs, kills):
    """One kill after the other, each when some more shards are done and a random moment has passed."""
    manifest, expected, seconds = corpus
    out, moment = tmp_path / "out", random.Random(jobs)
    kept: dict[str, tuple[int, int]] = {}
    done = attempts = 0
    while done < kills:
        attempts += 1
        assert attempts < 4 * kills
        child = start_preparing(manifest, out, jobs=jobs)
        shards = done * ROWS // ITEMS // (2 * kills)
        wait_for(lambda shards=shards: len(list(out.glob("train-*/*.tar"))) > shards)
        time.sleep(moment.uniform(0, seconds / 20))
        workers = workers_of(child)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        if child.exitcode == 0:  # it was done before it was killed
            shutil.rmtree(out)
            done, kept = 0, {}
            continue
        assert child.exitcode == -signal.SIGKILL
        assert len(workers) == (2 if jobs == 2 else 0)
        # with all their memory they would wait for work forever
        wait_for(lambda workers=workers: not any(Path(f"/proc/{pid}/maps").exists() for pid in workers))
        with pytest.raises(ValueError, match="'train' is incomplete; prepare it anew"):
            Prepared(out, "train")
        now = states(out)
        assert {path: now.get(path) for path in kept} == kept  # what was done is not done again
        noted = {path.stem for path in out.glob(".train-*/[0-9]*.json")}
        kept = {path: now[path] for path in now if path[0] != "." and path.split(".")[1] in noted}
        done += 1
    assert kept
    prepare_here(manifest, out, jobs=jobs)
    assert contents(out) == expected
    assert {path: states(out)[path] for path in kept} == kept
    assert not [path for path in out.rglob(".*") if path.name != ".lock"]


@pytest.mark.slow
@pytest.mark.parametrize("change", ["manifest", "audio"])
def test_death_between_two_file_operations_leaves_one_of_both_splits(tmp_path, change):
    """The old split is replaced: by another list of files, or since the files have changed."""
    manifest = write_corpus(tmp_path, 2 * ITEMS)
    prepare_here(manifest, tmp_path / "old")
    old = Prepared(tmp_path / "old", "train").digest()
    if change == "manifest":
        lines = manifest.read_text().splitlines(keepends=True)
        manifest.write_text("".join(lines[:-3]))
    else:
        write_corpus(tmp_path, 2 * ITEMS, first=1000)
    prepare_here(manifest, tmp_path / "new")
    new, expected = Prepared(tmp_path / "new", "train").digest(), contents(tmp_path / "new")
    assert old != new
    found, operation = [], 0
    while True:
        out = tmp_path / f"out-{operation}"
        shutil.copytree(tmp_path / "old", out)
        child = start_preparing(manifest, out, die_at=operation)
        child.join()
        split = Prepared(out, "train")
        split.verify()
        found.append(split.digest())
        assert len(split.examples) == len(split)
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        prepare_here(manifest, out)
        assert contents(out) == expected
        assert not [path for path in out.rglob(".*") if path.name != ".lock"]
        shutil.rmtree(out)
        operation += 1
    assert operation > 30
    changed = found.index(new)
    assert found == [old] * changed + [new] * (len(found) - changed)
    assert 10 < changed < operation  # there are operations on both sides


@pytest.mark.parametrize("skip_bad", [False, True])
@pytest.mark.parametrize("largest_file", [100, 600, 5000, 30_000])
def test_a_full_disk_leaves_what_was_there(tmp_path, largest_file, skip_bad):
    """Whether the lists or the features are too much for it; no example is to blame for that."""
    manifest, out = write_corpus(tmp_path, 2 * ITEMS), tmp_path / "out"
    prepare_here(manifest, out, (1.0,))
    before = states(out)
    child = start_preparing(manifest, out, largest_file=largest_file, skip_bad=skip_bad)
    child.join()
    assert child.exitcode == FULL
    assert states(out) == before
    Prepared(out, "train").verify()
    prepare_here(manifest, out)
    assert len(Prepared(out, "train").examples) == 4 * ITEMS


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(4))
def test_three_at_once_all_end_well(corpus, tmp_path, attempt):
    """Two trainings on one unprepared corpus once destroyed each other's preparation."""
    manifest, expected, _ = corpus
    children = [start_preparing(manifest, tmp_path, jobs=2 if attempt == 3 else 1) for _ in range(3)]
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert contents(tmp_path) == expected
    Prepared(tmp_path, "train").verify()


def test_whoever_waits_says_so(corpus, tmp_path, capsys):
    manifest, expected, _ = corpus
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threading.Thread(target=prepare_here, args=(manifest, tmp_path))
        waiting.start()
        time.sleep(0.3)
        assert waiting.is_alive()
        assert contents(tmp_path) == {}
        assert capsys.readouterr().err == f"waiting: another process prepares {tmp_path}\n"
    waiting.join()
    assert contents(tmp_path) == expected


def test_two_that_want_different_things_end_well_too(corpus, tmp_path):
    manifest, *_ = corpus
    children = [start_preparing(manifest, tmp_path, speeds) for speeds in ((1.0,), (1.0, 1.1))]
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    found = Prepared(tmp_path, "train")
    found.verify()
    assert len(found.examples) in (ROWS, 2 * ROWS)
    assert len(list(tmp_path.glob("train-*"))) == 1


def test_the_lock_dies_with_its_holder(corpus, tmp_path):
    manifest, expected, _ = corpus
    child = start_preparing(manifest, tmp_path)
    wait_for(lambda: any(tmp_path.glob("train-*/*.tar")))
    os.kill(child.pid, signal.SIGSTOP)
    other = start_preparing(manifest, tmp_path)
    other.join(0.5)
    assert other.is_alive()  # it waits for one that may yet wake up
    os.kill(child.pid, signal.SIGKILL)
    other.join(30)
    assert other.exitcode == 0
    child.join()
    assert contents(tmp_path) == expected


def begin_preparing(manifest: Path, out: Path, shards: int) -> None:
    """Stopped after so many shards."""

    def stop(done: int, total: int) -> None:
        if done == shards * ITEMS:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_here(manifest, out, progress=stop)


@pytest.mark.parametrize("damage", ["", "\0", "null", "[]", "3", "{}", '{"digest": 1}', "number", "type"])
def test_a_damaged_note_of_a_shard_costs_that_shard_alone(corpus, tmp_path, damage):
    """Whether it can be read or not: it is made again."""
    manifest, expected, _ = corpus
    begin_preparing(manifest, tmp_path, 3)
    kept = {path: state for path, state in states(tmp_path).items() if ".000001." not in path}
    (note,) = tmp_path.glob(".train-*/000001.json")
    changes = {"number": 9, "type": "many"}
    if damage in changes:
        damage = json.dumps(json.loads(note.read_text()) | {"examples": changes[damage]})
    note.write_text(damage)
    prepare_here(manifest, tmp_path)
    assert contents(tmp_path) == expected
    now = states(tmp_path)
    assert all(now[path] == state for path, state in kept.items() if path.startswith("train-"))


def test_an_interrupted_preparation_goes_on(corpus, tmp_path):
    """Ctrl-C, or an error of whoever shows the progress."""
    manifest, expected, _ = corpus
    begin_preparing(manifest, tmp_path, 4)
    before = {path: state for path, state in states(tmp_path).items() if path.startswith("train-")}
    assert len(before) == 2 * 4
    prepare_here(manifest, tmp_path)
    assert {path: state for path, state in states(tmp_path).items() if path in before} == before
    assert contents(tmp_path) == expected
