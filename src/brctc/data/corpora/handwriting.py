"""Strings of real handwritten digits as sequences of pixel columns; nothing to download.

The images are scikit-learn's (UCI optical digits): 8 rows, here the features, and 8 columns, here the
frames. A column counts as 10 ms, so that everything that is told in seconds has a meaning.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from brctc.data.corpora.strings import SPLITS, Size, StringsConfig
from brctc.data.manifest import WordTime
from brctc.data.prepare import Progress
from brctc.data.prepared import PreparedWriter, Summary

COLUMN_S = 0.01
IMAGE_SHARES = (0.7, 0.1)
"""Images that train and dev are written with; test gets the rest."""


class HandwritingConfig(StringsConfig):
    """How much is written, and how."""

    stretch: Size = 2
    """Each column of an image is written this many times."""
    max_gap_columns: Annotated[int, Field(ge=0)] = 4
    """Empty columns before, between and after digits, at most."""


def prepare(
    out_dir: str | Path, config: HandwritingConfig | None = None, progress: Progress | None = None
) -> dict[str, Summary]:
    """Writes the splits train, dev and test, each from images of its own."""
    config = config or HandwritingConfig()
    images, digits = load_images()
    order = np.random.default_rng(config.seed).permutation(len(images))
    ends = [round(share * len(images)) for share in np.cumsum(IMAGE_SHARES)]
    done = 0
    summaries = {}
    for split, source in zip(SPLITS, np.split(order, ends), strict=True):
        with PreparedWriter(out_dir, split, feature_dim=images.shape[1], frame_shift_s=COLUMN_S) as writer:
            for index in range(config.num_strings(split)):
                rng = config.string_rng(split, index)
                chosen = rng.choice(source, config.draw_num_digits(split, rng))
                columns, times = write_string(images[chosen], digits[chosen], config, rng)
                text = "".join(time.word for time in times)
                writer.add(f"{split}-{index:05d}", text, columns, word_times=times)
                done += 1
                if progress is not None:
                    progress(done, config.total_strings)
        summaries[split] = writer.summary()
    return summaries


def load_images() -> tuple[np.ndarray, np.ndarray]:
    """1797 images (rows, columns) with ink in [0, 1], and their digits."""
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    return np.asarray(pixels, np.float32).reshape(-1, 8, 8) / 16, np.asarray(digits)


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
