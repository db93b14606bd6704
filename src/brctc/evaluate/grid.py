"""The weights of the joint CTC/attention search: a grid of them, of one pass of the encoder (table 8)."""

from collections.abc import Sequence
from typing import NamedTuple

from brctc.data import Prepared
from brctc.decode.methods import Search
from brctc.decode.pool import RecognizerPool
from brctc.decode.sources import prepared_source
from brctc.evaluate.decoding import Progress, by_length
from brctc.evaluate.metrics import MetricConfig, Score

CTC_WEIGHTS = LENGTH_REWARDS = (0.0, 0.2, 0.4, 0.6, 0.8)
"""The paper's."""


class GridPoint(NamedTuple):
    """What one pair of weights reaches."""

    ctc_weight: float
    length_reward: float
    score: Score


def search_grid(
    pool: RecognizerPool,
    prepared: Prepared,
    chosen: Sequence[int],
    metric: MetricConfig,
    ctc_weights: Sequence[float] = CTC_WEIGHTS,
    length_rewards: Sequence[float] = LENGTH_REWARDS,
    beam: int = 10,
    tell: Progress | None = None,
) -> list[GridPoint]:
    """The score of every pair of weights on the chosen examples, the best first."""
    if not chosen or not ctc_weights or not length_rewards:
        raise ValueError("a grid needs examples, ctc_weights and length_rewards")
    pairs = [(weight, reward) for weight in ctc_weights for reward in length_rewards]
    searches = [Search("attention", beam, weight, reward) for weight, reward in pairs]
    groups = by_length(prepared, chosen)
    texts: list[list[str]] = [[] for _ in pairs]
    found = pool.recognize_grid(([prepared_source(prepared, i) for i in group] for group in groups), searches)
    for results in found:
        for alternatives in results:
            for known, result in zip(texts, alternatives, strict=True):
                known.append(result.text)
        if tell is not None:
            tell("searching the grid", len(texts[0]), len(chosen))
    output = pool.recognizer.model.system.config.output
    references = [prepared.examples[i].texts[output] for group in groups for i in group]
    points = [
        GridPoint(*pair, metric.measure(references, said)) for pair, said in zip(pairs, texts, strict=True)
    ]
    higher = metric.info().higher_is_better
    return sorted(points, key=lambda point: -point.score.value if higher else point.score.value)
