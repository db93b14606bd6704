"""From sampled examples to batches: read, augmented and padded ahead of their steps."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from brctc.align import frames_needed
from brctc.data.augment import AugmentConfig, spec_augment, trim_tail
from brctc.data.batch import SOURCE, Batch, Padded, pad
from brctc.data.sampling import Cut, PlannedBatch, derive_seed
from brctc.data.shards import Place
from brctc.data.source import at_speed
from brctc.data.split import Prepared
from brctc.data.subsampling import frames_to_enter
from brctc.data.tokens import Tokenizer

AHEAD = 4  # batches that wait for their step

Parts = dict[int, Batch]
"""Some parts of a step's batch, by their number."""
T = TypeVar("T")


def cut_id(cut: Cut) -> str:
    """The id of an example; of a copy at another speed, the id that a stored one would have."""
    if not hasattr(cut, "supervisions"):
        return cut.custom["id"]
    speed = cut.custom.get("speed", 1.0)
    id = cut.supervisions[0].id
    return at_speed(id.removesuffix(f"_sp{speed}"), None, speed)[0]


@dataclass(frozen=True)
class BatchLoader:
    """Makes batches of sampled examples. It is handed to the processes that load them."""

    prepared: Prepared
    tokenizers: Mapping[str, Tokenizer]
    """By the texts that they are for."""
    augment: AugmentConfig | None = None
    seed: int = 0
    subsampling: int = 1
    """The encoder's: what TrimTail leaves must suffice for an alignment."""

    def load(self, cuts: Sequence[Cut]) -> Batch:
        """As they are stored."""
        texts = {name: [text_of(cut, name) for cut in cuts] for name in self.tokenizers}
        targets = {
            name: pad([torch.tensor(self.tokenizers[name].encode(text), dtype=torch.int64) for text in given])
            for name, given in texts.items()
        }
        source = targets[SOURCE] if SOURCE in targets else self._features(cuts)
        return Batch([cut_id(cut) for cut in cuts], source, texts, targets)

    def load_parts(self, planned: PlannedBatch, parts: Iterable[int], num_parts: int) -> Parts:
        """The parts of a batch that are asked for, augmented; empty ones are left out, but not all.

        How a part is augmented depends on the seed, the step and the part, not on who loads it.
        """
        loaded = {}
        chosen = {part: split_batch(planned.cuts, part, num_parts) for part in parts}
        if not any(chosen.values()):  # every process computes something: here it counts nothing
            chosen[min(chosen)] = planned.cuts[:1]
        for part, cuts in chosen.items():
            if not cuts:
                continue
            batch = self.load(cuts)
            if self.augment is not None:
                generator = torch.Generator().manual_seed(derive_seed(self.seed, planned.after.step, part))
                batch = augment_batch(batch, self.augment, self.subsampling, generator)
            loaded[part] = batch
        return loaded

    def _features(self, cuts: Sequence[Cut]) -> Padded:
        found = []
        for cut in cuts:
            custom = cut.custom
            place = Place(custom["offset"], custom["size"])
            speed = custom.get("speed", 1.0)
            features = self.prepared.load(str(cut.shard_origin), place, speed)
            # how a copy at another speed is rounded, its stored frames do not tell
            if abs(len(features) - custom["num_frames"] / speed) > (0 if speed == 1 else 2):
                expected = f"{custom['num_frames']} were written" + (
                    f", at speed {speed}" if speed != 1 else ""
                )
                raise ValueError(f"{cut.shard_origin}: {cut.id} has {len(features)} frames, {expected}")
            found.append(torch.from_numpy(features))
        return pad(found)


def text_of(cut: Cut, name: str) -> str:
    """A text of an example, by its name."""
    if not hasattr(cut, "supervisions"):
        return cut.source.text if name == SOURCE else cut.target.text
    (supervision,) = cut.supervisions
    return supervision.text if name == "transcript" else supervision.custom[name]


def num_frames(cut: Cut) -> int:
    """Feature frames of an example as it is heard; tokens of a text."""
    if not hasattr(cut, "supervisions"):
        return cut.num_tokens or 0
    return round(cut.custom["num_frames"] / cut.custom.get("speed", 1.0))


def split_batch(cuts: Sequence[Cut], part: int, num_parts: int) -> list[Cut]:
    """The examples of one part of a batch; parts have the same mixture of lengths."""
    return list(cuts[part::num_parts])


def augment_batch(
    batch: Batch, augment: AugmentConfig, subsampling: int, generator: torch.Generator
) -> Batch:
    """SpecAugment, then TrimTail: which masks there are does not depend on whether ends are cut."""
    features, lengths = batch.source
    features = spec_augment(features, lengths, augment, generator, augment.copies)
    if augment.trim_tail_frames:
        at_least = torch.ones_like(lengths)
        for target in batch.targets.values():
            needed = frames_needed(target.values, target.lengths).clamp(min=1)
            at_least = at_least.maximum(frames_to_enter(needed, subsampling))
        lengths = trim_tail(lengths, at_least, augment.trim_tail_frames, generator)
        features = _cut_off(features, lengths.repeat(augment.copies))
    return batch.repeated(Padded(features, lengths.repeat(augment.copies)), augment.copies)


def _cut_off(features: Tensor, lengths: Tensor) -> Tensor:
    features = features[:, : int(lengths.max())]
    return features.masked_fill(torch.arange(features.shape[1])[:, None] >= lengths[:, None, None], 0)


def load_ahead(
    planned: Iterable[T], load: Callable[[T], Parts], workers: int, *, pin_memory: bool = False
) -> Generator[tuple[T, Parts], None, None]:
    """Each planned batch with what `load` makes of it, while steps before it are computed.

    Without workers that happens in a thread of this process, sampling included: enough for stored features,
    and there is nothing to start. Workers are processes of torch's DataLoader.
    """
    if workers:
        yield from _load_in_processes(planned, load, workers, pin_memory)
        return
    worker = ThreadPoolExecutor(1, "brctc-batches")
    waiting: deque[Future[tuple[T, Parts] | None]] = deque()
    plans = iter(planned)

    def next_batch() -> tuple[T, Parts] | None:
        plan = next(plans, None)
        return None if plan is None else (plan, load(plan))

    try:
        waiting.extend(worker.submit(next_batch) for _ in range(AHEAD))
        while (found := waiting.popleft().result()) is not None:
            waiting.append(worker.submit(next_batch))
            yield found
    finally:
        worker.shutdown(cancel_futures=True)


@contextmanager
def naming_dead_workers() -> Iterator[None]:
    """A worker of `load_ahead` that is killed breaks a pipe, or torch's signal handler tells of it, wherever
    the process is: here it is told in words."""
    try:
        yield
    except (ConnectionError, EOFError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not str(error).startswith("DataLoader worker (pid"):
            raise
        died = "a process that loads batches has died, perhaps for lack of memory"
        raise ChildProcessError(f"{died} ({error}): use fewer `workers`") from None


class _Loading(torch.utils.data.Dataset[Any]):
    """A dataset whose indices are planned batches."""

    def __init__(self, load: Callable[[Any], Parts]) -> None:
        self._load = load

    def __getitem__(self, index: Any) -> Parts:
        return self._load(index)


def _load_in_processes(
    planned: Iterable[T], load: Callable[[T], Parts], workers: int, pin_memory: bool
) -> Iterator[tuple[T, Parts]]:
    plans: deque[T] = deque()

    def remember() -> Iterator[T]:
        for plan in planned:
            plans.append(plan)
            yield plan

    loader = torch.utils.data.DataLoader(
        _Loading(load),
        sampler=remember(),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=AHEAD,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # not the default one: it decides what is learnt
    )
    batches = iter(loader)
    try:
        for parts in batches:
            yield plans.popleft(), parts
    finally:
        # left to the garbage collector after an error, each worker would be waited for in vain for 5 s
        getattr(batches, "_shutdown_workers", lambda: None)()
