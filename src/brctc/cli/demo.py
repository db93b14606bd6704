"""`brctc demo`"""

from dataclasses import dataclass
from pathlib import Path

from brctc.cli.comparison import compare
from brctc.cli.shared import Assignments, find_recipe, parse_assignments
from brctc.train import load_recipe

ARMS = {"vanilla": "handwriting/vanilla", "brctc": "handwriting/brctc"}


@dataclass(frozen=True, kw_only=True)
class Command:
    """Train plain and Bayes-risk CTC on handwritten digits, side by side, and compare them.
    - The strings of digits are made from scikit-learn's real handwriting: nothing is loaded
      from the network. Both models see the same data, in two processes of one thread.
    - The Bayes-risk model says everything early, so most of its encoder's output is cut off.
      The report shows what is left, what it costs in errors and what it saves in time.
    - Takes about four minutes on two cores. Ctrl-C stops; the same command continues.

    Examples:
      brctc demo
      brctc demo --out exp/demo-1 --set seed=1
    """

    out: Path = Path("exp/demo")
    """Gets the data, both runs, and the report as report.html and report.json."""
    set: Assignments = ()
    """Change values of both recipes, by their dotted keys."""

    def run(self) -> None:
        """Trains both, and compares them."""
        changes = {"corpus.prepared": str(self.out / "prepared"), **parse_assignments(self.set)}
        recipes = {name: load_recipe(find_recipe(recipe), changes) for name, recipe in ARMS.items()}
        compare(recipes, self.out)
