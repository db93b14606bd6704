"""What cannot be recognized does not stop the others."""

import multiprocessing
import resource
from pathlib import Path

import numpy as np
import pytest

from brctc.decode.pool import RecognizerPool
from brctc.models import ConformerConfig, save_model
from tests.decode.streams import make_model

SMALL = {"dim": 16, "heads": 2, "feed_forward_dim": 24, "subsampling_channels": 3}
ROOM = 400 << 20
"""Bytes that a process may take besides what it has: attention over an hour needs many times that."""


def _recognize(directory: Path, sizes: list[int], room: int, send) -> None:
    with RecognizerPool(directory) as pool:
        rng = np.random.default_rng(0)
        sources = [(f"u{size}", rng.normal(size=(size, 16)).astype(np.float32)) for size in sizes]
        list(pool.recognize([sources[:1]]))  # what is needed once
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + room, taken + room))
        found = [batch for batch in pool.recognize([sources], method="ctc-greedy")]
    send.send([([result.id for result in batch.results], batch.failed) for batch in found])


def recognize_in_little_memory(directory: Path, sizes: list[int]) -> list:
    context = multiprocessing.get_context("forkserver")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_recognize, args=(directory, sizes, ROOM, send))
    child.start()
    send.close()
    try:
        return receive.recv()
    finally:
        child.join()


@pytest.fixture
def directory(tmp_path) -> Path:
    model = make_model(encoder=ConformerConfig(first_layers=1, second_layers=1, kernel_size=3, **SMALL))
    save_model(tmp_path, model.system, model.tokenizers, model.features)
    return tmp_path


def test_an_utterance_that_is_too_much_for_the_memory_is_named_alone(directory):
    ((ids, failed),) = recognize_in_little_memory(directory, [200, 200_000, 300])
    assert ids == ["u200", "u300"]
    assert len(failed) == 1
    assert failed[0].startswith("u200000: it could not be recognized: ")


def test_bad_options_are_not_an_utterances_fault(directory):
    with RecognizerPool(directory) as pool, pytest.raises(ValueError, match="attention"):
        list(pool.recognize([[("u", np.zeros((100, 16), np.float32))]], method="attention"))
