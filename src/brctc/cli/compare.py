"""`brctc compare`"""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from brctc.cli.comparison import compare
from brctc.cli.shared import Assignments, find_recipe, parse_assignments
from brctc.train import load_recipe


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
