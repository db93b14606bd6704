"""Whether a run directory is to be begun, continued or left alone: it belongs to one recipe."""

import json
from pathlib import Path

from brctc.decode.methods import TUNED
from brctc.files import write_json
from brctc.models.bundle import describe_model
from brctc.runs import RunDirectory
from brctc.train.checkpoint import list_checkpoints
from brctc.train.config import Recipe
from brctc.train.recipe import RecipeError, differences, read_recipe

AFTER = ("decode", "metrics")
"""Sections of a recipe that are about a trained model: they may change when it is there."""


def is_trained(recipe: Recipe, run_dir: str | Path) -> bool:
    """Whether the run is there and complete; one that was begun with another recipe is refused."""
    run = RunDirectory(run_dir)
    if has_begun(run):
        check_same_recipe(recipe, run)
    return run.has_model


def begin_or_continue(recipe: Recipe, run: RunDirectory, resume: bool) -> None:
    """Makes the directory a run of the recipe; what it holds already is gone on with only if told to."""
    if not has_begun(run):
        begin_run(recipe, run)
    elif not resume:
        raise FileExistsError(f"{run.path} holds a run already: resume it, or choose another directory")
    else:
        check_same_recipe(recipe, run)
        adopt(recipe, run)


def has_begun(run: RunDirectory) -> bool:
    """Whether there is anything to continue: a run that failed before its first checkpoint is none."""
    return run.exists and (run.has_model or bool(list_checkpoints(run.checkpoints)))


def check_same_recipe(recipe: Recipe, run: RunDirectory) -> None:
    """Refuses a run that was begun with another recipe; only what is `AFTER` training may differ."""
    content = recipe.model_dump(mode="json", exclude=set(AFTER))
    other = read_recipe(run.path).model_dump(mode="json", exclude=set(AFTER))
    starts = [Path(found["start"]).resolve() for found in (other, content) if found["start"] is not None]
    if len(starts) == 2 and starts[0] == starts[1]:  # however it is written
        other["start"] = content["start"]
    if json.dumps(other) != json.dumps(content):  # the order of stages counts too
        order = ("the order of stages", list(other["stages"]), list(content["stages"]))
        key, before, now = next(differences(other, content), order)
        what = f"{key} was {before!r}, now it is {now!r}"
        raise RecipeError(f"{run.path} was begun with another recipe: {what}")


def adopt(recipe: Recipe, run: RunDirectory) -> None:
    """A run takes over what the same recipe now says of searching and measuring, and so does its model, which
    forgets what was tuned before."""
    content = recipe.model_dump(mode="json")
    before = read_recipe(run.path).model_dump(mode="json")
    if all(before[key] == content[key] for key in AFTER):
        return
    now = before | {key: content[key] for key in AFTER}
    write_json(run.recipe_file, now)
    if run.has_model:
        describe_model(run.model, {"recipe": now, TUNED: None})


def begin_run(recipe: Recipe, run: RunDirectory) -> None:
    """Writes down what the run is; what a run that failed at once has left is replaced."""
    for written in (run.tokens_file, run.data_file):
        written.unlink(missing_ok=True)
    write_json(run.recipe_file, recipe.model_dump(mode="json"))
