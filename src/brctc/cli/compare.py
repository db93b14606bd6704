"""`brctc compare`"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from brctc.cli.comparison import choose_workers, compare
from brctc.cli.shared import (
    Assignments,
    Ray,
    RtfShare,
    SkipBlanks,
    find_recipe,
    parse_assignments,
    parse_share,
)
from brctc.evaluate import EvaluationOptions
from brctc.train import load_recipe


@dataclass(frozen=True, kw_only=True)
class Command:
    """Train recipes side by side, decode a test set with all of them, and write the report.
    - Each has a process with one thread, and a GPU of its own where there are some. The first
      recipe is what the others are compared with.
    - Ctrl-C stops; the same command continues, and what is trained is not trained again.

    Examples:
      brctc compare handwriting/vanilla handwriting/brctc --out exp/handwriting
      brctc compare plain.yaml early.yaml --out exp/mine --set seed=1
    """

    recipes: Annotated[
        tuple[str, ...], Positional, arg(metavar="RECIPE ...", help_behavior_hint="(required)")
    ]
    """YAML files, or recipes that come with brctc by their names; all of one corpus."""
    out: Annotated[Path, arg(metavar="DIR")]
    """Gets a run for each recipe, and the report as report.html and report.json."""
    split: Annotated[
        tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all test sets)")
    ] = ()
    """What the models are compared on: test sets by their names, or dev of a corpus without one. Speed
    and pictures are of the first."""
    rtf_share: RtfShare = None
    """As `brctc evaluate` has it."""
    skip_blanks: SkipBlanks = None
    """As `brctc evaluate` has it."""
    ray: Ray = None
    """Train on a Ray cluster: its address, "auto" for this machine's, or "local" to start one here."""
    set: Assignments = ()
    """Change values of all recipes, by their dotted keys."""

    def run(self) -> None:
        """Trains, decodes and reports."""
        if not self.recipes:
            raise ValueError("give at least one RECIPE")
        share = parse_share(self.rtf_share)
        paths = [find_recipe(recipe) for recipe in self.recipes]
        changes = parse_assignments(self.set)
        chosen = {path.stem: load_recipe(path, changes) for path in paths}
        if len(chosen) < len(paths):
            raise ValueError(f"two recipes have the same file name: {', '.join(map(str, paths))}")
        options = EvaluationOptions(rtf_share=share, skip_blanks=self.skip_blanks)
        compare(chosen, self.out, choose_workers(self.ray, None), self.split, options)
