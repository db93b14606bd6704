"""How far a ratio over a corpus could be from the truth: utterances are drawn anew, again and again."""

import numpy as np

Array = np.ndarray
RESAMPLES = 2000
BLOCK = 1 << 20  # utterances drawn at a time: bounds the memory, whatever the corpus


def resampled_ratios(table: Array, seed: int) -> Array:
    """The table's first column over its second, in sum, on corpora of rows drawn with replacement.

    A row is an utterance; draws in which the second column sums to nothing have no ratio and are left
    out. The same seed gives the same draws.
    """
    sums = _resample(table, seed)
    sums = sums[sums[:, 1] > 0]
    return sums[:, 0] / sums[:, 1]


def interval(ratios: Array) -> tuple[float, float]:
    """What 95% of the ratios lie between."""
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


def _resample(table: Array, seed: int) -> Array:
    """(resamples, columns): the table's column sums over utterances drawn with replacement."""
    generator = np.random.default_rng(seed)
    size = len(table)
    rows = max(1, BLOCK // size)
    blocks = [min(rows, RESAMPLES - done) for done in range(0, RESAMPLES, rows)]
    return np.concatenate([table[generator.integers(size, size=(block, size))].sum(1) for block in blocks])
