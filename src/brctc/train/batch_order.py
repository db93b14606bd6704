"""Which utterances each step of a stage sees: the same for any number of processes, and after a resume."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from brctc.data import Utterance, plan_batches
from brctc.train.config import CurriculumConfig


def derive_seed(*parts: int | str) -> int:
    """A seed for one purpose: seeds of different parts have nothing to do with one another."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@dataclass(frozen=True)
class Position:
    """Where a stage is in its data."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    """Of the next batch in the epoch."""
    short_epoch: int = 0
    short_index: int = 0


@dataclass(frozen=True)
class PlannedBatch:
    """A step's utterances, and where the stage is after it."""

    indices: list[int]
    after: Position


class _Pool:
    """Some of the utterances, planned epoch by epoch."""

    def __init__(
        self, utterances: Sequence[Utterance], members: list[int], batch_s: float, seed: int
    ) -> None:
        self._members = members
        self._utterances = [utterances[i] for i in members]
        self._batch_s, self._seed = batch_s, seed
        self._epoch, self._plan = -1, []

    def plan(self, epoch: int) -> list[list[int]]:
        if epoch != self._epoch:
            planned = plan_batches(self._utterances, self._batch_s, seed=self._seed, epoch=epoch)
            self._epoch, self._plan = epoch, [[self._members[i] for i in batch] for batch in planned]
        return self._plan

    def take(self, epoch: int, index: int) -> tuple[list[int], int, int]:
        """A batch, and where the next one is."""
        plan = self.plan(epoch)
        last = index + 1 == len(plan)
        return plan[index], epoch + last, 0 if last else index + 1


class BatchStream:
    """The batches of a stage, one for every step, without end."""

    def __init__(
        self,
        utterances: Sequence[Utterance],
        num_labels: Sequence[int],
        batch_s: float,
        *,
        seed: int,
        curriculum: CurriculumConfig | None = None,
    ) -> None:
        everything = list(range(len(utterances)))
        self._curriculum, self._short = curriculum, None
        if curriculum is not None:
            short = [i for i in everything if num_labels[i] <= curriculum.max_labels]
            if curriculum.share is not None:
                everything = [i for i in everything if num_labels[i] > curriculum.max_labels]
            if not short or not everything:
                found = f"{min(num_labels)} to {max(num_labels)}"
                raise ValueError(
                    f"curriculum.max_labels is {curriculum.max_labels}: it must part the training "
                    f"utterances, which have {found} labels"
                )
            self._short = _Pool(utterances, short, batch_s, derive_seed(seed, "short"))
        self._main = _Pool(utterances, everything, batch_s, derive_seed(seed, "main"))

    def steps_of(self, epochs: int) -> int:
        """The steps that epochs take, each as long as the first one; those of short utterances count too."""
        left, steps = epochs * len(self._main.plan(0)), 0
        while left > 0:
            left -= not (self._short is not None and self._is_short(steps))
            steps += 1
        return steps

    def after(self, position: Position) -> Iterator[PlannedBatch]:
        """The batches that follow a position."""
        while True:
            if self._short is not None and self._is_short(position.step):
                indices, epoch, index = self._short.take(position.short_epoch, position.short_index)
                position = replace(position, short_epoch=epoch, short_index=index)
            else:
                indices, epoch, index = self._main.take(position.epoch, position.index)
                position = replace(position, epoch=epoch, index=index)
            position = replace(position, step=position.step + 1)
            yield PlannedBatch(indices, position)

    def _is_short(self, step: int) -> bool:
        assert self._curriculum is not None
        if step < self._curriculum.only_steps:
            return True
        share = self._curriculum.share or 0.0
        return int((step + 1) * share) > int(step * share)  # evenly spread
