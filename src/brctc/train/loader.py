"""Batches read ahead of their steps, each in the parts that it is computed in."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch

from brctc.align import frames_needed
from brctc.data import AugmentConfig, Batch, Prepared, Tokenizer, make_batch, spec_augment, trim_tail
from brctc.models import frames_to_enter
from brctc.train.batch_order import PlannedBatch, derive_seed

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
    augment: AugmentConfig | None,
    seed: int,
    subsampling: int,
) -> Parts:
    """The parts of a batch that are asked for; one without utterances is left out.

    How a part is augmented depends on the seed, the step and the part, not on who loads it.
    `subsampling` is the encoder's.
    """
    loaded = {}
    for part in parts:
        indices = split_batch(planned.indices, part, num_parts)
        if not indices:
            continue
        batch = make_batch(prepared, indices, tokenizer)
        if augment is not None:
            generator = torch.Generator().manual_seed(derive_seed(seed, planned.after.step, part))
            batch = augment_batch(batch, augment, subsampling, generator)
        loaded[part] = batch
    return loaded


def augment_batch(
    batch: Batch, augment: AugmentConfig, subsampling: int, generator: torch.Generator
) -> Batch:
    """SpecAugment, then TrimTail: which masks there are does not depend on whether ends are cut."""
    features, lengths = spec_augment(batch.features, batch.lengths, augment, generator), batch.lengths
    if augment.trim_tail_frames:
        needed = frames_needed(batch.targets, batch.target_lengths).clamp(min=1)
        at_least = frames_to_enter(needed, subsampling)
        lengths = trim_tail(lengths, at_least, augment.trim_tail_frames, generator)
        features = features[:, : int(lengths.max())]
        features = features.masked_fill(torch.arange(features.shape[1])[:, None] >= lengths[:, None, None], 0)
    return replace(batch, features=features, lengths=lengths)


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
