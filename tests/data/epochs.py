"""What tests of sampling share."""

from pathlib import Path

import numpy as np

from brctc.data import (
    Prepared,
)
from brctc.data.loading import cut_id
from brctc.data.sampling import (
    Place,
    Pool,
)
from tests.data.splits import write_split

LABELS = [1 + i % 8 for i in range(80)]


def split_of(folder: Path, durations, split: str = "train") -> Prepared:
    """Examples u0, u1, ... of so many seconds; a label for each tenth of a second."""
    given = {
        f"u{n}": ("x" * round(10 * seconds), np.zeros((round(100 * seconds), 1), np.float32), None)
        for n, seconds in enumerate(durations)
    }
    return write_split(folder, split, given)


def ids_of(cuts) -> list[str]:
    return [cut_id(cut) for cut in cuts]


def one_epoch(pool: Pool, epoch: int = 0) -> list[list]:
    found = []
    for cuts, after in pool.batches(Place(epoch)):
        found.append(cuts)
        if after.epoch > epoch:
            assert after == Place(epoch + 1)
            return found
    raise AssertionError


def padded(cuts) -> float:
    return len(cuts) * max(cut.duration for cut in cuts)
