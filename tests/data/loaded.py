"""What tests of loading share."""

from itertools import islice

import numpy as np
import torch

from brctc.data import (
    AugmentConfig,
    Batch,
    Prepared,
    Storage,
    TokenConfig,
    Tokenizer,
)
from brctc.data.loading import (
    BatchLoader,
)
from brctc.data.sampling import BatchConfig, BatchStream, PlannedBatch, Position

TEXTS = ["one two", "three", "two", "one one three two", "two three"] * 8
SHAPE = Storage("features", None, 10, 0.01)
AUGMENT = AugmentConfig(time_mask_length=10, frequency_mask_length=4, trim_tail_frames=12)


def features_of(index: int) -> np.ndarray:
    rng = np.random.default_rng(index)
    return rng.normal(size=(rng.integers(20, 300), 10)).astype(np.float16).astype(np.float32)


WORDS = Tokenizer.train(TEXTS, TokenConfig(kind="word"))


def stream(corpus, seconds: float = 12.0) -> BatchStream:
    return BatchStream(corpus, BatchConfig(seconds=seconds), seed=5)


def planned(corpus, count: int = 12, seconds: float = 12.0) -> list[PlannedBatch]:
    return list(islice(stream(corpus, seconds).after(Position()), count))


def equal(first: Batch, second: Batch) -> bool:
    assert first.ids == second.ids
    assert first.texts == second.texts
    assert first.targets.keys() == second.targets.keys()
    pairs = [(first.source, second.source), *((first.targets[k], second.targets[k]) for k in first.targets)]
    return all(torch.equal(a.values, b.values) and torch.equal(a.lengths, b.lengths) for a, b in pairs)


def equal_parts(first, second) -> bool:
    assert list(first) == list(second)
    return all(equal(first[part], second[part]) for part in first)


def load_halves(corpus: Prepared, augment: AugmentConfig | None, plan: PlannedBatch):
    loader = BatchLoader(corpus, {"transcript": WORDS}, augment, seed=7)
    return loader.load_parts(plan, range(2), 2)
