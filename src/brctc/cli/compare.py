"""`brctc compare`, and what `brctc demo` shares with it."""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from brctc.cli.evaluate import show
from brctc.cli.shared import Assignments, find_recipe, parse_assignments, progress_bars
from brctc.cli.side_by_side import train_side_by_side
from brctc.data import Prepared
from brctc.report import make_report
from brctc.train import Recipe, load_recipe
from brctc.train.corpus import check_origin, is_prepared, prepare_recipe


def command(
    recipes: Annotated[
        tuple[str, ...], Positional, arg(metavar="RECIPE ...", help_behavior_hint="(required)")
    ],
    *,
    out: Annotated[Path, arg(metavar="DIR")],
    set: Assignments = (),
) -> None:
    """Train recipes side by side, decode the test set with all of them, and write the report.
    - Each has a process with one thread. The first recipe is what the others are compared with.
    - Ctrl-C stops; the same command continues, and what is trained is not trained again.

    Examples:
      brctc compare handwriting/vanilla handwriting/brctc --out exp/handwriting
      brctc compare plain.yaml early.yaml --out exp/mine --set seed=1

    Args:
        recipes: YAML files, or recipes that come with brctc by their names; all of one corpus.
        out: Gets a run for each recipe, and the report as report.html and report.json.
        set: Change values of all recipes, by their dotted keys.
    """
    if not recipes:
        raise ValueError("say which RECIPE to train")
    paths = [find_recipe(recipe) for recipe in recipes]
    chosen = {path.stem: load_recipe(path, parse_assignments(set)) for path in paths}
    if len(chosen) < len(paths):
        raise ValueError(f"two recipes have the same file name: {', '.join(map(str, paths))}")
    compare(chosen, out)


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
    show(evaluation)
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    print(f"{minutes} min {seconds} s. The report is {out / 'report.html'}.")


def prepare_corpus_of(recipe: Recipe) -> None:
    """Prepares what the recipe is trained and measured on, if it is not yet."""
    if is_prepared(recipe):
        return check_origin(recipe)
    with progress_bars() as bars:
        prepare_recipe(recipe, partial(bars, "preparing the corpus"))
