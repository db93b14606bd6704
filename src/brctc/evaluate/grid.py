"""The weights of the joint CTC/attention search: a grid of them, of one pass of the encoder (table 8)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from brctc.config import Config, Count
from brctc.data import Prepared
from brctc.decode.methods import TUNED, Search, choose_search, recipe_search
from brctc.decode.pool import RecognizerPool
from brctc.decode.sources import check_features, prepared_source
from brctc.evaluate.decoding import Progress, by_length, spread_indices
from brctc.evaluate.defaults import metrics_of
from brctc.evaluate.metrics import MetricConfig, MetricInfo, Score
from brctc.models import Model
from brctc.models.bundle import describe_model

PAPERS = (0.0, 0.2, 0.4, 0.6, 0.8)


class GridConfig(Config):
    """A grid over both weights, by default the paper's. Which point is best is found on a development set."""

    ctc_weights: Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], ...], Field(min_length=1)] = PAPERS
    length_rewards: Annotated[tuple[float, ...], Field(min_length=1)] = PAPERS
    utterances: Count | None = None
    """So many of the development set, spread over it; all by default."""


class GridPoint(NamedTuple):
    """What one pair of weights reaches."""

    ctc_weight: float
    length_reward: float
    score: Score


class Tuned(NamedTuple):
    """A grid that was searched."""

    points: list[GridPoint]
    """The best first."""
    metric: MetricInfo
    split: str
    examples: int


def grid_of(model: Model) -> GridConfig:
    """The one that the model's recipe asks for, or the paper's."""
    asked = model.description.get("recipe", {}).get("decode", {}).get("tune")
    return GridConfig() if asked is None else GridConfig.model_validate(asked)


def tune(
    directory: Path,
    prepared: Prepared,
    grid: GridConfig | None = None,
    beam: int | None = None,
    jobs: int = 1,
    tell: Progress | None = None,
) -> Tuned:
    """Searches a grid with a model on a split, by its main metric; without a grid or beam, the recipe's."""
    with RecognizerPool(directory, jobs) as pool:
        model = pool.recognizer.model
        choose_search("attention", model.system.config)
        check_features(str(directory), model, prepared)
        grid = grid or grid_of(model)
        size: int = beam or recipe_search(model.description).get("beam", 10)
        metric = next(iter(metrics_of(model).values()))
        chosen = spread_indices(len(prepared), grid.utterances)
        points = search_grid(
            pool, prepared, chosen, metric, grid.ctc_weights, grid.length_rewards, size, tell
        )
    return Tuned(points, metric.info(), prepared.split, len(chosen))


def keep_best(directory: Path, tuned: Tuned) -> None:
    """The model searches with the best point from now on."""
    best = tuned.points[0]
    found = {"ctc_weight": best.ctc_weight, "length_reward": best.length_reward}
    describe_model(directory, {TUNED: found | {"split": tuned.split, "utterances": tuned.examples}})


def search_grid(
    pool: RecognizerPool,
    prepared: Prepared,
    chosen: Sequence[int],
    metric: MetricConfig,
    ctc_weights: Sequence[float] = PAPERS,
    length_rewards: Sequence[float] = PAPERS,
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
