"""`brctc sweep`"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import Positional, arg

from brctc.cli.comparison import STOPPED, choose_workers, prepare_corpus_of, test_sets
from brctc.cli.runs import Limit
from brctc.cli.shared import Assignments, Ray, Split, find_recipe, parse_assignments, progress_bars
from brctc.data import Prepared
from brctc.evaluate import TradeOff, choose, evaluate_cells
from brctc.evaluate.online import choose_utterances
from brctc.report import to_rich, trade_off_table, write_trade_off
from brctc.train import Plan, Recipe, is_trained, load_sweep
from brctc.train.launch import train_all

OptionalNumber = Annotated[float | None, arg(metavar="MS", help_behavior_hint="")]


@dataclass(frozen=True, kw_only=True)
class Command:
    """Train an online recipe with many chunks and risks, and measure errors against latency.
    - A sweep is a recipe, sizes of chunks, and ways to train: risks, and their peers.
    - Each training has a process with one thread, and a GPU of its own where there are some.
    - Ctrl-C stops; the same command continues. What is trained or measured is not repeated.

    Examples:
      brctc sweep sweeps/digit-strings --out exp/online
      brctc sweep sweeps/digit-strings --out exp/online --target-latency-ms 400
      brctc sweep mine.yaml --out exp/mine --set seed=1
    """

    sweep: Annotated[str, Positional, arg(metavar="SWEEP")]
    """A YAML file, or a sweep that comes with brctc by its name."""
    out: Annotated[Path, arg(metavar="DIR")]
    """Gets a run for each setting, and the report as report.html and report.json."""
    target_latency_ms: OptionalNumber = None
    """Name the setting with the fewest errors that is at most so late."""
    split: Split = None
    """What the models are measured on: a test set by its name; the report is then report-NAME.html."""
    at_once: Annotated[int, arg(metavar="N")] = 2
    """So many trainings at a time; a cluster decides itself."""
    ray: Ray = None
    """Train on a Ray cluster: its address, "auto" for this machine's, or "local" to start one here."""
    limit: Limit = None
    """Decode so many test utterances, spread over the split; the report is then report-N.html."""
    set: Assignments = ()
    """Change values of all recipes, by their dotted keys."""

    def run(self) -> None:
        """Trains, measures and reports."""
        self._check()
        plan = load_sweep(find_recipe(self.sweep), self.out, parse_assignments(self.set))
        try:
            trade_off, page = self._train_and_measure(plan)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(STOPPED) from None
        write_trade_off(trade_off, page)
        Console().print(to_rich(trade_off_table(trade_off, "terminal")))
        print(f"The report is {page}.")
        if self.target_latency_ms is not None:
            best = choose(trade_off.trials, self.target_latency_ms)
            within = f"Within {self.target_latency_ms:g} ms: {best}."
            print(f"{within} The model is in {self.out / best.name}.")

    def _check(self) -> None:
        if self.at_once < 1:
            raise ValueError(f"--at-once is {self.at_once}, expected at least 1")
        target = self.target_latency_ms
        if target is not None and not 0 < target < math.inf:
            raise ValueError(f"--target-latency-ms is {target:g}, expected more than 0")

    def _train_and_measure(self, plan: Plan) -> tuple[TradeOff, Path]:
        """What all cells have reached, and the page that it belongs on."""
        recipe = plan.cells[0].recipe
        prepare_corpus_of(recipe)
        prepared = Prepared(recipe.corpus.prepared, self.split or test_sets(recipe)[0])
        measured = len(choose_utterances(prepared, self.limit))  # refused before hours of training
        workers = choose_workers(self.ray, self.at_once)
        train_all(needed_starts(plan, self.out), self.out, workers)
        train_all({cell.name: cell.recipe for cell in plan.cells}, self.out, workers)
        part = None if measured == len(prepared) else str(measured)
        suffix = "".join(f"-{name}" for name in (self.split, part) if name)
        methods = {cell.name: cell.method for cell in plan.cells}
        kind = recipe.corpus.kind
        with progress_bars() as bars:
            trade_off = evaluate_cells(
                methods, self.out, prepared, corpus=kind, limit=self.limit, suffix=suffix, progress=bars
            )
        return trade_off, self.out / f"report{suffix}.html"


def needed_starts(plan: Plan, out: Path) -> dict[str, Recipe]:
    """The starts of cells that are still to be trained."""
    for name, recipe in plan.starts.items():
        is_trained(recipe, out / name)  # one that was begun with another recipe is refused, needed or not
    needed = {cell.recipe.start for cell in plan.cells if not is_trained(cell.recipe, out / cell.name)}
    return {name: recipe for name, recipe in plan.starts.items() if str(out / name) in needed}
