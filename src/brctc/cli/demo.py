"""`brctc demo`"""

import time
from functools import partial
from pathlib import Path

from brctc.cli.evaluate import show
from brctc.cli.shared import Assignments, find_recipe, parse_assignments, progress_bars
from brctc.cli.side_by_side import train_side_by_side
from brctc.report import make_report
from brctc.train import load_recipe
from brctc.train.corpus import is_prepared, prepare_recipe

ARMS = {"vanilla": "handwriting/vanilla", "brctc": "handwriting/brctc"}


def command(*, out: Path = Path("exp/demo"), set: Assignments = ()) -> None:
    """Train plain and Bayes-risk CTC on handwritten digits, side by side, and compare them.
    - The strings of digits are made from scikit-learn's real handwriting: nothing is loaded
      from the network. Both models see the same data, in two processes of one thread.
    - The Bayes-risk model says everything early, so most of its encoder's output is cut off.
      The report shows what is left, what it costs in errors and what it saves in time.
    - Takes about four minutes on two cores. Ctrl-C stops; the same command continues.

    Examples:
      brctc demo
      brctc demo --out exp/demo-1 --set seed=1

    Args:
        out: Gets the data, both runs, and the report as report.html and report.json.
        set: Change values of both recipes, by their dotted keys.
    """
    started = time.monotonic()
    changes = {"corpus.prepared": str(out / "prepared"), **parse_assignments(set)}
    recipes = {name: load_recipe(find_recipe(recipe), changes) for name, recipe in ARMS.items()}
    try:
        if not is_prepared(recipes["vanilla"]):  # both have the same corpus
            with progress_bars() as bars:
                prepare_recipe(recipes["vanilla"], partial(bars, "writing strings of digits"))
        train_side_by_side(recipes, out)
        with progress_bars() as bars:
            evaluation = make_report([out / name for name in ARMS], out / "report.html", progress=bars)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped\nThe same command continues.") from None
    show(evaluation)
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    print(f"{minutes} min {seconds} s. The report is {out / 'report.html'}.")
