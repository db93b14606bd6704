"""Decoding examples of a prepared split, short ones together, in one process or several."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from brctc.data import Prepared
from brctc.data.batch import source_length
from brctc.decode.pool import RecognizerPool
from brctc.decode.result import Result
from brctc.decode.sources import prepared_source

Progress = Callable[[str, int, int], object]
"""Told what is being done, how much of it is, and of how much."""

BATCH = 16


def decode_examples(
    pool: RecognizerPool,
    prepared: Prepared,
    chosen: Sequence[int],
    what: str,
    tell: Progress,
    **options: Any,
) -> list[Result]:
    """The result of each chosen example, in their order; `options` are those of `Recognizer.recognize`."""
    groups = by_length(prepared, chosen)
    sources = ([prepared_source(prepared, i) for i in group] for group in groups)
    found: dict[str, Result] = {}
    for recognized in pool.recognize(sources, **options):
        if recognized.failed:
            raise ValueError(f"{prepared.directory}: {recognized.failed[0]}")
        found |= {result.id: result for result in recognized.results}
        tell(what, len(found), len(chosen))
    return [found[prepared.examples[i].id] for i in chosen]


def by_length(prepared: Prepared, chosen: Sequence[int]) -> list[list[int]]:
    """Batches of examples of similar length, so that there is little padding."""
    order = sorted(chosen, key=lambda i: source_length(prepared.examples[i]))
    return [order[first : first + BATCH] for first in range(0, len(order), BATCH)]


def spread_indices(size: int, count: int | None) -> list[int]:
    """So many indices, evenly over all."""
    if count is None or count >= size:
        return list(range(size))
    return np.linspace(0, size - 1, count).round().astype(int).tolist()
