"""Five utterances of random features."""

from pathlib import Path

import numpy as np

from brctc.data import FeatureConfig, Storage, WordTime
from tests.data.splits import ArrayItem

LENGTHS = (30, 5, 61, 1, 44)
SHAPE = Storage("features", FeatureConfig(num_bins=6), 6, 0.01)


def features_of(index: int, dim: int = 6) -> np.ndarray:
    return np.random.default_rng(index).normal(-7, 3, (LENGTHS[index % 5], dim)).astype(np.float32)


def item(index: int) -> ArrayItem:
    times = (WordTime("é", 0.0, 0.1), WordTime("b", 0.1, 0.25)) if index == 2 else None
    text = {"transcript": f"text {index} é"}
    return ArrayItem(f"utt-{index}", text, features_of(index), "s1" if index else None, times)


def shards_of(corpus: Path) -> Path:
    return next(corpus.glob("train-*"))
