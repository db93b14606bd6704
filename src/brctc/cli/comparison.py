"""What `brctc compare`, `brctc demo` and `brctc sweep` share."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from brctc.cli.shared import progress_bars, show_preparing, show_results
from brctc.data import Prepared
from brctc.data.split import splits_in
from brctc.decode.methods import TUNED
from brctc.evaluate import EvaluationOptions
from brctc.evaluate.decoding import Progress
from brctc.evaluate.grid import keep_best, tune
from brctc.models import load_model
from brctc.report import make_report
from brctc.runs import RunDirectory
from brctc.train import Recipe
from brctc.train.corpus import ensure_prepared
from brctc.train.launch import Workers, train_all
from brctc.train.local import LocalWorkers

STOPPED = "stopped\nThe same command continues."


def compare(
    recipes: Mapping[str, Recipe],
    out: Path,
    workers: Workers | None = None,
    splits: Sequence[str] = (),
    options: EvaluationOptions | None = None,
) -> None:
    """Everything from the corpus to the report, for recipes by the names of their runs. `splits` are what
    they are compared on; by default all test sets."""
    started = time.monotonic()
    first = next(iter(recipes.values()))
    for name, recipe in recipes.items():
        if recipe.corpus != first.corpus or recipe.features != first.features:
            raise ValueError(f"{name} has another corpus or other features than {next(iter(recipes))}")
    try:
        prepare_corpus_of(first)
        splits = splits or test_sets(first)
        check_splits(first, splits)  # before hours of training: there is something to decode
        train_all(recipes, out, workers or LocalWorkers())
        with progress_bars() as bars:
            runs = [out / name for name in recipes]
            for name, recipe in recipes.items():
                tune_once(recipe, RunDirectory(out / name).model, bars)
            page = out / "report.html"
            evaluation = make_report(
                runs, page, split=splits[0], others=splits[1:], options=options, progress=bars
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(STOPPED) from None
    show_results(evaluation)
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    print(f"{minutes} min {seconds} s. The report is {out / 'report.html'}.")


def tune_once(recipe: Recipe, model: Path, progress: Progress) -> None:
    """A model finds its weights of the joint search if its recipe asks for that, unless it has."""
    if recipe.decode.tune is None or TUNED in load_model(model).description:
        return
    dev = Prepared(recipe.corpus.prepared, "dev")
    keep_best(
        model, tune(model, dev, tell=lambda what, *done: progress(f"{what}, {model.parent.name}", *done))
    )


def check_splits(recipe: Recipe, splits: Sequence[str]) -> None:
    """Refuses test sets that the corpus does not have."""
    there = splits_in(Path(recipe.corpus.prepared))
    for split in splits:
        if split not in there:
            raise ValueError(f"the corpus has no {split}: name what there is, as in --split {there[0]}")
        Prepared(recipe.corpus.prepared, split)


def test_sets(recipe: Recipe) -> list[str]:
    """What trained models are compared on: all test sets of the corpus, `test` first."""
    names = recipe.corpus.test_names() or ["test"]
    return sorted(names, key=lambda name: name != "test")


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
