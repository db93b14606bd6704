"""What `brctc compare`, `brctc demo` and `brctc sweep` share."""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from brctc.cli.shared import progress_bars, show_results
from brctc.data import Prepared
from brctc.report import make_report
from brctc.train import Recipe
from brctc.train.corpus import check_origin, is_prepared, prepare_recipe
from brctc.train.launch import train_side_by_side


def compare(recipes: Mapping[str, Recipe], out: Path) -> None:
    """Everything from the corpus to the report, for recipes by the names of their runs."""
    started = time.monotonic()
    first = next(iter(recipes.values()))
    for name, recipe in recipes.items():
        if recipe.corpus != first.corpus or recipe.features != first.features:
            raise ValueError(f"{name} has another corpus or other features than {next(iter(recipes))}")
    try:
        prepare_corpus_of(first)
        Prepared(first.corpus.prepared, "test")  # before hours of training: there is something to decode
        train_side_by_side(recipes, out)
        with progress_bars() as bars:
            evaluation = make_report([out / name for name in recipes], out / "report.html", progress=bars)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped\nThe same command continues.") from None
    show_results(evaluation)
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    print(f"{minutes} min {seconds} s. The report is {out / 'report.html'}.")


def prepare_corpus_of(recipe: Recipe) -> None:
    """Prepares what the recipe is trained and measured on, if it is not yet."""
    if is_prepared(recipe):
        return check_origin(recipe)
    with progress_bars() as bars:
        prepare_recipe(recipe, partial(bars, "preparing the corpus"))
