"""Which examples each step sees: lazily, by lhotse's bucketing sampler, and the same again after a resume.

An epoch goes through all shards in a random order, in rounds: a round is as many shards as hold about
ROUND_EXAMPLES, and has a sampler of its own. So memory does not grow with the corpus, and going on in the
middle of an epoch means to sample one round again, not all of it. Every process samples the whole batch
of a step and loads its part of it.
"""

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, model_validator

from brctc.config import Config, KeyedError, Positive, Share
from brctc.data.split import DAMAGES, Prepared
from brctc.data.tokens import Tokenizer

ROUND_EXAMPLES = 200_000
BUFFER = 20_000
"""Examples from which a batch is chosen."""
MOST_BUCKETS, LEAST_PER_BUCKET = 30, 100
COUNTED = 20_000
"""Examples up to which the steps of an epoch are counted, not estimated."""

Cut = Any
"""A lhotse cut, or a TextPairExample."""


class BatchConfig(Config):
    """What a batch holds at most, its padding included, over all processes and parts together."""

    seconds: Positive | None = None
    """Seconds of audio; or `tokens`."""
    tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens of text."""

    @model_validator(mode="after")
    def _one_of_them(self) -> "BatchConfig":
        if (self.seconds is None) == (self.tokens is None):
            raise KeyedError("seconds", "a batch is measured in seconds or in tokens: give one of them")
        return self


class CurriculumConfig(Config):
    """Short utterances first, and some of them always."""

    max_labels: Annotated[int, Field(ge=1)]
    """What is short."""
    only_steps: Annotated[int, Field(ge=0)] = 0
    """So many steps see nothing else."""
    share: Share | None = None
    """Afterwards this share of the steps see short ones, the others the rest; None: all as they come."""


def derive_seed(*parts: int | str) -> int:
    """A seed for one purpose: seeds of different parts have nothing to do with one another."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


class Place(NamedTuple):
    """A batch of a pool."""

    epoch: int = 0
    round: int = 0
    batch: int = 0
    """Of the round, from 0."""


START = Place()


@dataclass(frozen=True)
class Position:
    """Where a stage is in its data."""

    step: int = 0
    main: Place = START
    short: Place = START

    @property
    def epoch(self) -> int:
        """Epochs that are complete."""
        return self.main.epoch

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"step": self.step, "main": list(self.main), "short": list(self.short)}

    @staticmethod
    def from_json(content: dict[str, Any]) -> "Position":
        """What `to_json` gave."""
        return Position(content["step"], Place(*content["main"]), Place(*content["short"]))


@dataclass(frozen=True)
class PlannedBatch:
    """A step's examples, and where the stage is after it."""

    cuts: list[Cut]
    after: Position


class Pool:
    """The examples of a split, or those that `keep` accepts, in batches without end."""

    def __init__(
        self,
        prepared: Prepared,
        batch: BatchConfig,
        seed: int,
        *,
        tokenizer: Tokenizer | None = None,
        keep: Callable[[Cut], bool] | None = None,
    ) -> None:
        """`tokenizer` counts the tokens of texts, where a batch is measured in them."""
        self._prepared, self._batch, self._seed = prepared, batch, seed
        self._tokenizer, self._keep = tokenizer, keep
        self._bins: list[float] | None = None
        self._kept: list[Cut] | None = None
        self._rounds = self._divide()
        self._check_longest()

    def batches(self, place: Place) -> Iterator[tuple[list[Cut], Place]]:
        """From a place on, each batch with the place of the next."""
        while True:
            waiting: list[Cut] | None = None
            for number, index, cuts in self._epoch_from(place):
                if waiting is not None:
                    yield waiting, Place(place.epoch, number, index)
                waiting = cuts
            following = Place(place.epoch + 1)
            if waiting is not None:
                yield waiting, following
            elif (place.round, place.batch) == (0, 0):
                raise ValueError(f"{self._prepared.directory} ({self._prepared.split}) has nothing to sample")
            place = following

    def _epoch_from(self, place: Place) -> Iterator[tuple[int, int, list[Cut]]]:
        """What is left of an epoch: round, number of the batch in it, and the batch."""
        for number, files in enumerate(self._order(place.epoch)):
            if number >= place.round:
                skipped = place.batch if number == place.round else 0
                batches = islice(self._sampler(files, place.epoch, number), skipped, None)
                for index, cuts in enumerate(batches, skipped):
                    yield number, index, cuts

    def batches_of_epoch(self) -> int:
        """How many there are in the first epoch: counted for a small corpus, estimated for a large one."""
        if len(self._prepared) > COUNTED and self._batch.seconds is not None:
            return math.ceil(self._total_s() / self._batch.seconds)
        return sum(1 for _ in self._epoch_from(START))

    def _total_s(self) -> float:
        return self._prepared.duration_s * sum(1 / speed for speed in self._speeds())

    def _speeds(self) -> tuple[float, ...]:
        """Those at which audio is heard; features are stored at all of theirs."""
        storage = self._prepared.storage
        return storage.speeds if storage.kind == "audio" else (1.0,)

    def _divide(self) -> int:
        """How many rounds an epoch has."""
        examples = len(self._prepared) * len(self._speeds())
        return min(len(self._prepared.shards), max(1, round(examples / ROUND_EXAMPLES)))

    def _check_longest(self) -> None:
        id, seconds = self._prepared.longest
        seconds /= min(self._speeds())
        if self._batch.seconds is not None and seconds > self._batch.seconds:
            raise ValueError(f"{id} lasts {seconds:.2f} s, a batch holds {self._batch.seconds:g} s")
        if self._batch.tokens is not None:
            self._buckets()  # looks at many of them; others are refused when they come

    def _order(self, epoch: int) -> list[list[Path]]:
        """The shards of each round of an epoch."""
        files = self._prepared.list_files()
        random.Random(derive_seed(self._seed, "shards", epoch)).shuffle(files)
        return [files[number :: self._rounds] for number in range(self._rounds)]

    def _cuts(self, files: list[Path], seed: int) -> Iterable[Cut]:
        """Those that are wanted. The sampler's buffer holds all of a small corpus: that is read once."""
        if len(self._prepared) * len(self._speeds()) > BUFFER:
            return self._checked(self._read(files, seed))
        if self._kept is None:
            self._kept = list(self._checked(self._read(self._prepared.list_files(), 0)))
        return self._kept

    def _checked(self, cuts: Iterable[Cut]) -> Iterator[Cut]:
        """lhotse does not name a list that is damaged: if one is, that is found out."""
        try:
            yield from cuts
        except DAMAGES:
            self._prepared.verify()
            raise

    def _read(self, files: list[Path], seed: int) -> Iterable[Cut]:
        """Lazily."""
        from lhotse import CutSet

        if self._prepared.storage.kind == "text":
            return CutSet(TextPairs(files, self._tokenizer, self._keep))
        found = [_at_speed(_open_cuts(files), speed) for speed in self._speeds()]
        cuts = found[0] if len(found) == 1 else CutSet.mux(*found, seed=seed)
        return cuts if self._keep is None else cuts.filter(self._keep)

    def _sampler(self, files: list[Path], epoch: int, number: int) -> Iterator[list[Cut]]:
        from lhotse.dataset.sampling.dynamic_bucketing import DynamicBucketer

        seed = derive_seed(self._seed, epoch, number) % 2**31
        # what is inside DynamicBucketingSampler: that one loses examples at the end of an epoch if it chooses
        # buckets by its seed (lhotse 1.33 takes empty ones for full), and else chooses the same in each epoch
        bucketer = DynamicBucketer(
            self._cuts(files, seed),
            duration_bins=self._buckets(),
            world_size=1,
            constraint=self._constraint(),
            buffer_size=BUFFER,
            shuffle=True,
            rng=random.Random(seed),
            bucket_rng=random.Random(derive_seed(seed, "buckets")),
        )
        return self._within(iter(bucketer))

    def _within(self, batches: Iterator[Iterable[Cut]]) -> Iterator[list[Cut]]:
        """Batches that are never too large. lhotse ends one behind the example that fills it, even where that
        one is too long for all the others: it then waits for more of its kind."""
        waiting: list[Cut] = []
        for batch in batches:
            cuts = list(batch)
            if self._too_large(cuts):
                waiting.append(cuts.pop())
                if self._too_large(waiting[-1:]):
                    raise ValueError(self._too_long(waiting[-1]))
            yield cuts
            if self._too_large(waiting):
                yield waiting[:-1]
                waiting = waiting[-1:]
        if waiting:
            yield waiting

    def _too_large(self, cuts: Sequence[Cut]) -> bool:
        constraint = self._constraint()
        for cut in cuts:
            constraint.add(cut)
        return constraint.exceeded()

    def _too_long(self, cut: Cut) -> str:
        if self._batch.tokens is None:
            return f"{cut.id} lasts {cut.duration:.2f} s, a batch holds {self._batch.seconds:g} s"
        return f"{cut.custom['id']} has {cut.num_tokens} tokens, a batch holds {self._batch.tokens}"

    def _constraint(self) -> Any:
        from lhotse.dataset.sampling.base import TimeConstraint, TokenConstraint

        if self._batch.tokens is not None:
            return TokenConstraint(max_tokens=self._batch.tokens)
        return TimeConstraint(max_duration=self._batch.seconds)

    def _buckets(self) -> list[float]:
        """Lengths that part the examples, estimated from the first ones."""
        if self._bins is None:
            from lhotse.dataset.sampling.dynamic_bucketing import estimate_duration_buckets

            first = list(islice(self._cuts(self._prepared.list_files(), 0), BUFFER // 2))
            buckets = min(MOST_BUCKETS, len(first) // LEAST_PER_BUCKET)
            enough = buckets > 1
            self._bins = estimate_duration_buckets(first, buckets, self._constraint()) if enough else []
            longest = max(first, key=self._constraint().measure_length, default=None)
            if longest is not None and self._too_large([longest]):
                raise ValueError(self._too_long(longest))
        return self._bins


def _open_cuts(files: list[Path]) -> Any:
    from lhotse import CutSet

    return CutSet.from_shar(fields={"cuts": [str(path) for path in files]})


def _at_speed(cuts: Any, speed: float) -> Any:
    return cuts if speed == 1 else cuts.map(partial(_perturb, speed=speed))


def _perturb(cut: Cut, speed: float) -> Cut:
    """lhotse's own copy at another speed, which knows by how much when its audio is read."""
    played = cut.perturb_speed(speed)
    played.custom = {**(cut.custom or {}), "speed": speed}
    return played


def _has_labels(cut: Cut, count: Callable[[Cut], int], most: int, short: bool) -> bool:
    return (count(cut) <= most) == short


class TextPairs:
    """Texts and their translations as lhotse's TextPairExample, read lazily."""

    def __init__(
        self, files: list[Path], tokenizer: Tokenizer | None, keep: Callable[[Cut], bool] | None
    ) -> None:
        self._files, self._tokenizer, self._keep = files, tokenizer, keep

    def __iter__(self) -> Iterator[Cut]:
        import numpy as np
        from lhotse.cut.text import TextExample, TextPairExample

        from brctc.data.shards import read_lines

        for path in self._files:
            for line in read_lines(path):
                tokens = None
                if self._tokenizer is not None:
                    tokens = np.array(self._tokenizer.encode(line["source"]))
                source, target = TextExample(line["source"], tokens), TextExample(line["translation"])
                pair = TextPairExample(source, target, custom={"id": line["id"]})
                if self._keep is None or self._keep(pair):
                    yield pair


class BatchStream:
    """The batches of a stage, one for every step, without end."""

    def __init__(
        self,
        prepared: Prepared,
        batch: BatchConfig,
        *,
        seed: int,
        curriculum: CurriculumConfig | None = None,
        count_labels: Callable[[Cut], int] | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """`count_labels` says how long an example's target is, for the curriculum."""
        self._curriculum, self._short = curriculum, None
        keep = None
        if curriculum is not None:
            assert count_labels is not None, "a curriculum counts labels"
            most = curriculum.max_labels
            short_seed = derive_seed(seed, "short")
            self._short = Pool(
                prepared,
                batch,
                short_seed,
                tokenizer=tokenizer,
                keep=partial(_has_labels, count=count_labels, most=most, short=True),
            )
            if curriculum.share is not None:
                keep = partial(_has_labels, count=count_labels, most=most, short=False)
        self._main = Pool(prepared, batch, derive_seed(seed, "main"), tokenizer=tokenizer, keep=keep)

    def steps_of(self, epochs: int) -> int:
        """The steps that epochs take, each as long as the first one; those of short utterances count too."""
        left, steps = epochs * self._main.batches_of_epoch(), 0
        while left > 0:
            left -= not self._is_short(steps)
            steps += 1
        return steps

    def after(self, position: Position) -> Iterator[PlannedBatch]:
        """The batches that follow a position."""
        main = self._main.batches(position.main)
        short = self._short.batches(position.short) if self._short is not None else main
        while True:
            if self._is_short(position.step):
                cuts, place = next(short)
                position = replace(position, step=position.step + 1, short=place)
            else:
                cuts, place = next(main)
                position = replace(position, step=position.step + 1, main=place)
            yield PlannedBatch(cuts, position)

    def _is_short(self, step: int) -> bool:
        if self._curriculum is None:
            return False
        if step < self._curriculum.only_steps:
            return True
        share = self._curriculum.share or 0.0
        return int((step + 1) * share) > int(step * share)  # evenly spread
