"""How far a figure of a corpus could be from the truth: utterances are drawn anew, again and again."""

import numpy as np

Array = np.ndarray
RESAMPLES = 2000
BLOCK = 1 << 20  # utterances drawn at a time: bounds the memory, whatever the corpus


def resampled_ratios(table: Array, seed: int) -> Array:
    """The table's first column over its second, in sum, on corpora of rows drawn with replacement.

    A row is an utterance; draws in which the second column sums to nothing have no ratio and are left
    out. The same seed gives the same draws.
    """
    sums = resampled_sums(table, seed)
    sums = sums[sums[:, 1] > 0]
    return sums[:, 0] / sums[:, 1]


def resampled_sums(table: Array, seed: int) -> Array:
    """(resamples, columns): the table's column sums over utterances drawn with replacement."""
    generator = np.random.default_rng(seed)
    size, values = len(table), table.astype(np.float64)
    rows = max(1, BLOCK // size)
    sums = []
    for done in range(0, RESAMPLES, rows):
        drawn = generator.integers(size, size=(min(rows, RESAMPLES - done), size))
        # how often each was drawn, times the table: many columns cost little more than one
        times = np.stack([np.bincount(row, minlength=size) for row in drawn])
        sums.append(times.astype(np.float64) @ values)
    return np.concatenate(sums)


def interval(ratios: Array) -> tuple[float, float]:
    """What 95% of the ratios lie between."""
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)
