"""Batches read ahead of their steps, each in the parts that it is computed in."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch

from brctc.data import Batch, Prepared, SpecAugmentConfig, Tokenizer, make_batch, spec_augment
from brctc.train.stream import PlannedBatch, derive_seed

AHEAD = 4  # batches that wait for their step

Parts = dict[int, Batch]
"""Some parts of a step's batch, by their number."""


def split_batch(indices: list[int], part: int, num_parts: int) -> list[int]:
    """The utterances of one part of a batch; parts have the same mixture of lengths."""
    return indices[part::num_parts]


def load_parts(
    prepared: Prepared,
    tokenizer: Tokenizer,
    planned: PlannedBatch,
    parts: Iterable[int],
    num_parts: int,
    augment: SpecAugmentConfig | None,
    seed: int,
) -> Parts:
    """The parts of a batch that are asked for; one without utterances is left out.

    How a part is augmented depends on the seed, the step and the part, not on who loads it.
    """
    loaded = {}
    for part in parts:
        indices = split_batch(planned.indices, part, num_parts)
        if not indices:
            continue
        batch = make_batch(prepared, indices, tokenizer)
        if augment is not None:
            generator = torch.Generator().manual_seed(derive_seed(seed, planned.after.step, part))
            batch = replace(batch, features=spec_augment(batch.features, batch.lengths, augment, generator))
        loaded[part] = batch
    return loaded


def load_ahead(
    planned: Iterable[PlannedBatch], load: Callable[[PlannedBatch], Parts]
) -> Generator[tuple[PlannedBatch, Parts], None, None]:
    """Each planned batch with what `load` makes of it, in a thread, while steps before it are computed."""
    worker = ThreadPoolExecutor(1, "brctc-batches")
    waiting: deque[tuple[PlannedBatch, Future[Parts]]] = deque()
    try:
        for plan in planned:
            waiting.append((plan, worker.submit(load, plan)))
            if len(waiting) > AHEAD:
                first, loading = waiting.popleft()
                yield first, loading.result()
        for first, loading in waiting:
            yield first, loading.result()
    finally:
        worker.shutdown(cancel_futures=True)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on a device."""
    if device.type == "cpu":
        return batch
    return replace(
        batch,
        features=batch.features.to(device, non_blocking=True),
        lengths=batch.lengths.to(device),
        targets=batch.targets.to(device),
        target_lengths=batch.target_lengths.to(device),
    )
