"""`brctc sweep`"""

import math
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import Positional, arg

from brctc.cli.comparison import prepare_corpus_of
from brctc.cli.runs import Limit
from brctc.cli.shared import Assignments, find_recipe, parse_assignments, progress_bars
from brctc.data import Prepared
from brctc.evaluate import choose, evaluate_cells
from brctc.evaluate.online import choose_utterances
from brctc.report import to_rich, trade_off_table, write_trade_off
from brctc.train import Plan, Recipe, is_trained, load_sweep
from brctc.train.launch import train_side_by_side

OptionalNumber = Annotated[float | None, arg(metavar="MS", help_behavior_hint="")]


def command(
    sweep: Annotated[str, Positional, arg(metavar="SWEEP")],
    *,
    out: Annotated[Path, arg(metavar="DIR")],
    target_latency_ms: OptionalNumber = None,
    at_once: Annotated[int, arg(metavar="N")] = 2,
    limit: Limit = None,
    set: Assignments = (),
) -> None:
    """Train an online recipe with many chunks and risks, and measure errors against latency.
    - A sweep is a recipe, sizes of chunks, and ways to train: risks, and their peers.
    - Each training has a process with one thread.
    - Ctrl-C stops; the same command continues. What is trained or measured is not repeated.

    Examples:
      brctc sweep sweeps/digit-strings --out exp/online
      brctc sweep sweeps/digit-strings --out exp/online --target-latency-ms 400
      brctc sweep mine.yaml --out exp/mine --set seed=1

    Args:
        sweep: A YAML file, or a sweep that comes with brctc by its name.
        out: Gets a run for each setting, and the report as report.html and report.json.
        target_latency_ms: Name the setting with the fewest errors that is at most so late.
        at_once: So many trainings at a time.
        limit: Decode so many test utterances, spread over the split; the report is then report-N.html.
        set: Change values of all recipes, by their dotted keys.
    """
    if at_once < 1:
        raise ValueError(f"--at-once is {at_once}, expected at least 1")
    if target_latency_ms is not None and not 0 < target_latency_ms < math.inf:
        raise ValueError(f"--target-latency-ms is {target_latency_ms:g}, expected more than 0")
    plan = load_sweep(find_recipe(sweep), out, parse_assignments(set))
    recipe = plan.cells[0].recipe
    try:
        prepare_corpus_of(recipe)
        prepared = Prepared(recipe.corpus.prepared, "test")
        chosen = choose_utterances(prepared, limit)  # before hours of training: there is something to measure
        train_side_by_side(needed_starts(plan, out), out, at_once=at_once)
        train_side_by_side({cell.name: cell.recipe for cell in plan.cells}, out, at_once=at_once)
        with progress_bars() as bars:
            trade_off = evaluate_cells(
                {cell.name: cell.method for cell in plan.cells},
                out,
                prepared,
                corpus=recipe.corpus.name,
                limit=limit,
                progress=bars,
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped\nThe same command continues.") from None
    page = out / ("report.html" if len(chosen) == len(prepared) else f"report-{len(chosen)}.html")
    write_trade_off(trade_off, page)
    Console().print(to_rich(trade_off_table(trade_off, "terminal")))
    print(f"The report is {page}.")
    if target_latency_ms is not None:
        chosen = choose(trade_off.trials, target_latency_ms)
        print(f"Within {target_latency_ms:g} ms: {chosen}. The model is in {out / chosen.name}.")


def needed_starts(plan: Plan, out: Path) -> dict[str, Recipe]:
    """The starts of cells that are still to be trained."""
    for name, recipe in plan.starts.items():
        is_trained(recipe, out / name)  # one that was begun with another recipe is refused, needed or not
    needed = {cell.recipe.start for cell in plan.cells if not is_trained(cell.recipe, out / cell.name)}
    return {name: recipe for name, recipe in plan.starts.items() if str(out / name) in needed}
