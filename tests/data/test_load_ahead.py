"""Batches are loaded ahead of their steps, in threads or processes."""

import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time
from functools import partial
from itertools import islice

import pytest

from brctc.data import (
    Prepared,
    prepare_split,
)
from brctc.data.loading import (
    AHEAD,
    BatchLoader,
    load_ahead,
    naming_dead_workers,
)
from brctc.data.sampling import Position
from tests.data.loaded import (
    AUGMENT,
    SHAPE,
    TEXTS,
    WORDS,
    equal_parts,
    features_of,
    load_halves,
    planned,
    stream,
)
from tests.data.splits import ArrayItem, ArraySource


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Prepared:
    folder = tmp_path_factory.mktemp("corpus")
    items = [
        ArrayItem(f"u{n}", {"transcript": text, "translation": text[::-1]}, features_of(n))
        for n, text in enumerate(TEXTS)
    ]
    prepare_split(ArraySource(items), folder, "train", SHAPE)
    return Prepared(folder, "train")


@pytest.mark.parametrize("augment", [None, AUGMENT])
def test_threads_and_processes_give_the_same(corpus, augment):
    plans = planned(corpus)
    load = partial(load_halves, corpus, augment)
    expected = [load(plan) for plan in plans]
    corpus.features(0)  # the parent has a file open
    for workers in (0, 1, 2):
        found = list(load_ahead(iter(plans), load, workers))
        assert [plan.after for plan, _ in found] == [plan.after for plan in plans]
        assert len(found) == len(expected)
        assert all(equal_parts(parts, known) for (_, parts), known in zip(found, expected, strict=True))


def test_loaders_can_be_sent_to_processes(corpus):
    loader = BatchLoader(corpus, {"transcript": WORDS}, AUGMENT, seed=7)
    plan = planned(corpus, 1)[0]
    again, copied = pickle.loads(pickle.dumps((loader, plan)))
    assert equal_parts(again.load_parts(copied, [0], 1), loader.load_parts(plan, [0], 1))
    assert len(pickle.dumps(loader)) < 100_000


def test_batches_are_loaded_ahead():
    loaded = []

    def load(plan: int) -> dict:
        loaded.append(plan)
        return {}

    batches = load_ahead(range(100), load, 0)
    assert next(batches)[0] == 0
    deadline = time.monotonic() + 10
    while len(loaded) <= AHEAD:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(0.02)
    assert loaded == list(range(AHEAD + 1))  # while the first step is computed; and no further
    assert [plan for plan, _ in batches] == list(range(1, 100))


@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_is_left_behind(corpus, workers):
    """When a stage stops in the middle of an epoch without end."""
    threads, processes = threading.active_count(), len(multiprocessing.active_children())
    batches = load_ahead(stream(corpus).after(Position()), partial(load_halves, corpus, None), workers)
    next(batches)
    batches.close()
    del batches
    deadline = time.monotonic() + 20
    while (threading.active_count(), len(multiprocessing.active_children())) != (threads, processes):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def no_plans():
    yield from ()


@pytest.mark.parametrize("workers", [0, 2])
def test_no_batches_at_all(corpus, workers):
    assert list(load_ahead(no_plans(), partial(load_halves, corpus, None), workers)) == []


class Broken:
    def __call__(self, plan: int) -> dict:
        if plan == 5:
            raise ValueError("features.000003.tar is truncated")
        return {0: plan}


def plans_that_fail():
    yield from range(5)
    raise ValueError("t7 has 30 tokens")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("plans", "message"),
    [(range(9), r"features\.000003\.tar is truncated"), (plans_that_fail, "t7 has 30 tokens")],
)
def test_errors_are_those_of_the_loader_after_what_was_good(workers, plans, message):
    found = []

    def consume() -> None:
        for plan, parts in load_ahead(plans() if callable(plans) else plans, Broken(), workers):
            assert parts == {0: plan}
            found.append(plan)

    start = time.monotonic()
    with pytest.raises(ValueError, match=message):
        consume()
    gc.collect()
    assert time.monotonic() - start < 4  # nobody waits for processes that have nothing more to do
    assert found == [0, 1, 2, 3, 4] or (workers and callable(plans))  # DataLoader asks for plans ahead


@pytest.mark.parametrize("workers", [0, 1])
def test_damaged_data_are_named_also_from_another_process(tmp_path, workers):
    items = [ArrayItem(f"u{n}", {"transcript": "one"}, features_of(n)) for n in range(8)]
    prepare_split(ArraySource(items), tmp_path, "train", SHAPE)
    prepared = Prepared(tmp_path, "train")
    (tar,) = tmp_path.glob("train-*/*.tar")
    tar.write_bytes(tar.read_bytes()[:9000])
    batches = load_ahead(planned(prepared, 3), partial(load_halves, prepared, None), workers)
    with pytest.raises(
        ValueError, match=r"cuts\.000000\.jsonl\.gz at byte \d+ cannot be read: .* is truncated"
    ):
        list(batches)


def kill_workers_of(batches, after_s: float) -> None:
    next(batches)
    time.sleep(after_s)
    for worker in multiprocessing.active_children():
        os.kill(worker.pid, signal.SIGKILL)
    list(islice(batches, 100))


@pytest.mark.parametrize("after_s", [0.0, 0.2])
def test_a_worker_that_is_killed_is_no_riddle(corpus, after_s):
    batches = load_ahead(stream(corpus).after(Position()), partial(load_halves, corpus, None), 2)
    died = "a process that loads batches has died, perhaps for lack of memory"
    with pytest.raises(ChildProcessError, match=died), naming_dead_workers():
        kill_workers_of(batches, after_s)


def test_other_errors_are_left_alone():
    for error in (RuntimeError("Caught RuntimeError in DataLoader worker process 0."), ValueError("x")):
        with pytest.raises(type(error), match=str(error)), naming_dead_workers():
            raise error
