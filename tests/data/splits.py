"""Small prepared splits made of arrays, for tests of what comes behind the data."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from brctc.data import FeatureConfig, Loaded, Prepared, Storage, WordTime, prepare_split

Given = tuple[str, np.ndarray, "Sequence[WordTime] | None"]
"""Text, features (T, F), and word times or None."""


class ArrayItem(NamedTuple):
    id: str
    texts: dict[str, str]
    features: np.ndarray | None = None
    speaker: str | None = None
    word_times: tuple[WordTime, ...] | None = None


class ArraySource:
    """Examples in memory."""

    def __init__(self, items: Sequence[ArrayItem], name: str = "arrays") -> None:
        self.name = name
        self._items = list(items)

    def digest(self) -> str:
        digest = hashlib.sha256()
        for item in self._items:
            digest.update(repr(item._replace(features=None)).encode())
            if item.features is not None:
                digest.update(repr(item.features.shape).encode() + item.features.tobytes())
        return digest.hexdigest()

    def size(self) -> int:
        return len(self._items)

    def items(self) -> Iterator[ArrayItem]:
        return iter(self._items)

    def fingerprint(self, items: Sequence[ArrayItem]) -> str:
        return ""

    def load(self, item: ArrayItem) -> Loaded:
        return Loaded(
            item.id, item.texts, features=item.features, speaker=item.speaker, word_times=item.word_times
        )


def write_split(
    folder: str | Path,
    split: str,
    examples: Mapping[str, Given],
    frame_shift_s: float = 0.01,
    feature_config: FeatureConfig | None = None,
) -> Prepared:
    """Writes and opens a split of features: {"id": (text, features, word times or None)}.

    >>> write_split(tmp_path, "dev", {"u1": ("one two", np.zeros((50, 80)), None)})
    """
    items = [
        ArrayItem(id, {"transcript": text}, features, word_times=None if times is None else tuple(times))
        for id, (text, features, times) in examples.items()
    ]
    (dim,) = {given[1].shape[1] for given in examples.values()}
    storage = Storage("features", feature_config, dim, frame_shift_s)
    prepare_split(ArraySource(items), folder, split, storage)
    return Prepared(folder, split)
