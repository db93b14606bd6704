"""The three sources of latency, as the paper's appendix F defines them; their sum is what a listener waits.

Data-collecting latency: until the frames of a chunk and its look-ahead are there. Computational latency:
until they are computed. Drift latency: how much later than it is said a word is predicted, in the
signal's own time. Each is a mean over the tokens of a corpus; tokens are words here, or the characters of
Chinese and Japanese where errors are of characters (`brctc.data.units`).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from brctc.evaluate.bootstrap import interval, resampled_ratios

TimedWord = tuple[str, float, float]
"""A word or character, its start and its end in seconds: what `brctc.data.WordTime` is."""


class Spread(NamedTuple):
    """Latencies in milliseconds, all nan where none was counted.

    low and high bound the mean with 95% confidence (bootstrap over utterances).
    """

    counted: int
    mean_ms: float
    low_ms: float
    high_ms: float
    median_ms: float
    p90_ms: float
    """The 90th percentile, interpolated between the two values next to it."""

    def __str__(self) -> str:
        if not self.counted:
            return "none counted"
        return (
            f"{self.mean_ms:.0f} ms ({self.low_ms:.0f} to {self.high_ms:.0f}; median {self.median_ms:.0f}, "
            f"90% below {self.p90_ms:.0f}; {self.counted} counted)"
        )


class DriftLatency(NamedTuple):
    """How late a system's words are on a corpus."""

    drift: Spread
    """End of a word's prediction minus its start in the reference; counted: words that both have."""
    end_of_sentence: Spread
    """End of the last word's prediction minus its end in the reference; counted: utterances."""
    without_reference: int
    """Utterances left out because their reference times are not known."""


def data_collecting_latency_ms(chunk_ms: float, right_context_ms: float) -> float:
    """chunk / 2 + right context: a frame waits half a chunk on average, then for the look-ahead."""
    _check(chunk_ms=chunk_ms, right_context_ms=right_context_ms)
    return chunk_ms / 2 + right_context_ms


def computational_latency_ms(chunk_ms: float, rtf: float) -> float:
    """chunk x real-time factor: how long a chunk is computed."""
    _check(chunk_ms=chunk_ms, rtf=rtf)
    return chunk_ms * rtf


def drift_latency(
    references: Sequence[Sequence[TimedWord] | None],
    hypotheses: Sequence[Sequence[TimedWord]],
    *,
    seed: int = 0,
) -> DriftLatency:
    """Drift and end-of-sentence latency of a corpus; None is a reference whose times are not known.

    Drift counts the words of `common_words`. It is negative where a look-ahead predicts a word
    before it is said.

    With the moments at which words were handed to a listener instead of the ends of their predictions,
    the same is what that listener waits: the latency observed.

    The end of a sentence counts where the last word of the hypothesis is paired with the last word of
    the reference: where something is missing at the end, or was made up, no prediction ends the sentence.
    It is measured from the end of that word, when a speaker begins to wait.
    """
    if len(references) != len(hypotheses):
        raise ValueError(f"{len(references)} references and {len(hypotheses)} hypotheses")
    drifts: list[list[float]] = []
    ends: list[list[float]] = []
    for n, (reference, hypothesis) in enumerate(zip(references, hypotheses, strict=True)):
        _check_times(n, "hypothesis", hypothesis)
        if reference is None:
            continue
        _check_times(n, "reference", reference)
        pairs = common_words(reference, hypothesis)
        drifts.append([1000 * (hypothesis[h][2] - reference[r][1]) for r, h in pairs])
        if pairs and pairs[-1] == (len(reference) - 1, len(hypothesis) - 1):
            ends.append([1000 * (hypothesis[-1][2] - reference[-1][2])])
    return DriftLatency(_spread(drifts, seed), _spread(ends, seed), len(references) - len(drifts))


def common_words(reference: Sequence[TimedWord], hypothesis: Sequence[TimedWord]) -> list[tuple[int, int]]:
    """The longest common subsequence: the places of its words in the reference and in the hypothesis.

    Of several equally long ones, that with the smallest sum of absolute drifts: of a word said twice and
    recognized once, the one that was recognized. If they are equal in that too, the earlier words.
    """
    R, H = len(reference), len(hypothesis)
    if [word for word, *_ in reference] == [word for word, *_ in hypothesis]:
        return [(n, n) for n in range(R)]
    # what can be had of reference[r:] and hypothesis[h:]: pairs, and minus their drifts in microseconds
    best = [[(0, 0)] * (H + 1) for _ in range(R + 1)]

    def pair(r: int, h: int) -> tuple[int, int]:
        pairs, nearness = best[r + 1][h + 1]
        return pairs + 1, nearness - round(1e6 * abs(hypothesis[h][2] - reference[r][1]))

    for r in reversed(range(R)):
        for h in reversed(range(H)):
            best[r][h] = max(best[r + 1][h], best[r][h + 1])
            if reference[r][0] == hypothesis[h][0]:
                best[r][h] = max(best[r][h], pair(r, h))
    found = []
    r = h = 0
    while r < R and h < H:
        if reference[r][0] == hypothesis[h][0] and best[r][h] == pair(r, h):
            found.append((r, h))
            r, h = r + 1, h + 1
        elif best[r][h] == best[r + 1][h]:
            r += 1
        else:
            h += 1
    return found


def _spread(latencies: Sequence[Sequence[float]], seed: int) -> Spread:
    """Of all values; those of one utterance are drawn together."""
    values = np.array([value for utterance in latencies for value in utterance])
    if not len(values):
        return Spread(0, *[math.nan] * 5)
    table = np.array([[sum(utterance), len(utterance)] for utterance in latencies])
    low, high = interval(resampled_ratios(table, seed))
    median, p90 = np.percentile(values, [50, 90])
    return Spread(len(values), float(values.mean()), low, high, float(median), float(p90))


def _check(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value}, expected a finite number from 0")


def _check_times(n: int, what: str, words: Sequence[TimedWord]) -> None:
    for word, start_s, end_s in words:
        if not (math.isfinite(start_s) and math.isfinite(end_s)):
            raise ValueError(f"utterance {n}: the {what} has {word!r} from {start_s} to {end_s} s")
