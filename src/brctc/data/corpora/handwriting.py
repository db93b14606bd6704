"""Strings of real handwritten digits as sequences of pixel columns; nothing to download.

The images are scikit-learn's (UCI optical digits): 8 rows, here the features, and 8 columns, here the
frames. A column counts as 10 ms, so that everything that is told in seconds has a meaning.
"""

import functools
import hashlib
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from brctc.data.corpora.base import CORPORA, CorpusConfig, Size
from brctc.data.corpora.strings import SPLITS, StringItem, StringsConfig, StringsSource
from brctc.data.features import FeatureConfig
from brctc.data.manifest import WordTime
from brctc.data.source import Loaded, Source, Storage

COLUMN_S = 0.01
ROWS = 8
IMAGE_SHARES = (0.7, 0.1)
"""Images that train and dev are written with; test gets the rest."""


@CORPORA.register
class HandwritingConfig(CorpusConfig, StringsConfig):
    """Strings of handwritten digits."""

    small_scale: ClassVar[bool] = True
    input: ClassVar[Literal["audio", "columns", "text"]] = "columns"
    frame_shift_s: ClassVar[float] = COLUMN_S

    kind: Literal["handwriting"] = "handwriting"
    stretch: Size = 2
    """Each column of an image is written this many times."""
    max_gap_columns: Annotated[int, Field(ge=0)] = 4
    """Empty columns before, between and after digits, at most."""

    def sources(self) -> Mapping[str, Source]:
        return {split: HandwritingSource(self, split) for split in SPLITS}

    def storage(self, split: str, features: FeatureConfig | None) -> Storage:
        return Storage("features", None, ROWS, COLUMN_S)


class HandwritingSource(StringsSource):
    """The strings of a split, each split with images of its own."""

    def __init__(self, config: HandwritingConfig, split: str) -> None:
        super().__init__(f"handwriting ({split})", split, config.num_strings(split))
        self.config = config

    def digest(self) -> str:
        content = self.config.model_dump_json(exclude={"prepared"})
        return hashlib.sha256(f"{content} {self.split}".encode()).hexdigest()

    def load(self, item: StringItem) -> Loaded:
        images, digits = load_images()
        rng = self.config.string_rng(self.split, item.number)
        own = _images_of(self.split, self.config.seed)
        chosen = rng.choice(own, self.config.draw_num_digits(self.split, rng))
        columns, times = write_string(images[chosen], digits[chosen], self.config, rng)
        text = "".join(time.word for time in times)
        return Loaded(item.id, {"transcript": text}, features=columns, word_times=tuple(times))


@functools.cache
def load_images() -> tuple[np.ndarray, np.ndarray]:
    """1797 images (rows, columns) with ink in [0, 1], and their digits."""
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    return np.asarray(pixels, np.float32).reshape(-1, ROWS, 8) / 16, np.asarray(digits)


def _images_of(split: str, seed: int) -> np.ndarray:
    images, _ = load_images()
    order = np.random.default_rng(seed).permutation(len(images))
    ends = [round(share * len(images)) for share in np.cumsum(IMAGE_SHARES)]
    return np.split(order, ends)[SPLITS.index(split)]


def write_string(
    images: np.ndarray, digits: np.ndarray, config: HandwritingConfig, rng: np.random.Generator
) -> tuple[np.ndarray, list[WordTime]]:
    """Columns (T, rows) and, for each digit, the columns it covers, in seconds."""
    gaps = rng.integers(0, config.max_gap_columns, size=len(digits) + 1, endpoint=True).tolist()
    rows, width = images.shape[1], images.shape[2] * config.stretch
    columns = np.zeros((sum(gaps) + len(digits) * width, rows), np.float32)
    times, end = [], 0
    for image, digit, gap in zip(images, digits.tolist(), gaps[:-1], strict=True):
        start = end + gap
        end = start + width
        columns[start:end] = np.repeat(image.T, config.stretch, axis=0)
        times.append(WordTime(str(digit), round(start * COLUMN_S, 6), round(end * COLUMN_S, 6)))
    return columns, times
