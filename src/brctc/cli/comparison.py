"""What `brctc compare`, `brctc demo` and `brctc sweep` share."""

import time
from collections.abc import Mapping
from pathlib import Path

from brctc.cli.shared import progress_bars, show_preparing, show_results
from brctc.data import Prepared
from brctc.report import make_report
from brctc.train import Recipe
from brctc.train.corpus import ensure_prepared
from brctc.train.launch import Workers, train_all
from brctc.train.local import LocalWorkers

STOPPED = "stopped\nThe same command continues."


def compare(
    recipes: Mapping[str, Recipe], out: Path, workers: Workers | None = None, split: str | None = None
) -> None:
    """Everything from the corpus to the report, for recipes by the names of their runs. `split` is what they
    are compared on; by default the test set."""
    started = time.monotonic()
    first = next(iter(recipes.values()))
    for name, recipe in recipes.items():
        if recipe.corpus != first.corpus or recipe.features != first.features:
            raise ValueError(f"{name} has another corpus or other features than {next(iter(recipes))}")
    try:
        prepare_corpus_of(first)
        split = split or test_set(first)
        Prepared(first.corpus.prepared, split)  # before hours of training: there is something to decode
        train_all(recipes, out, workers or LocalWorkers())
        with progress_bars() as bars:
            runs = [out / name for name in recipes]
            evaluation = make_report(runs, out / "report.html", split=split, progress=bars)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(STOPPED) from None
    show_results(evaluation)
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    print(f"{minutes} min {seconds} s. The report is {out / 'report.html'}.")


def test_set(recipe: Recipe) -> str:
    """What trained models are compared on: `test`, or else the corpus's first test set."""
    names = recipe.corpus.test_names()
    return "test" if "test" in names else next(iter(names), "test")


def choose_workers(ray: str | None, at_once: int | None) -> Workers:
    """A Ray cluster if one is named, or else this machine."""
    if ray is None:
        return LocalWorkers(at_once)
    from brctc.train.ray_workers import RayWorkers

    return RayWorkers(None if ray == "local" else ray)


def prepare_corpus_of(recipe: Recipe) -> None:
    """Prepares what the recipe is trained and measured on, if it is not yet."""
    with show_preparing() as progress:
        ensure_prepared(recipe, progress, jobs=None)
