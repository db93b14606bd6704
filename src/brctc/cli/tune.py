"""`brctc tune`"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from brctc.cli.runs import PreparedOfRuns, open_models
from brctc.cli.shared import Flag, OptionalFile, Processes, check_file, progress_bars
from brctc.evaluate.grid import GridConfig, Tuned, grid_of, keep_best, tune
from brctc.evaluate.results import to_json
from brctc.files import write_text
from brctc.models import load_model

Numbers = Annotated[
    tuple[float, ...] | None, arg(metavar="FLOAT ...", help_behavior_hint="(default: the recipe's)")
]


@dataclass(frozen=True, kw_only=True)
class Command:
    """Find the CTC weight and length reward of a model's joint search, on a development set.
    - Every pair of the grid is searched with one pass of the encoder.
    - Never tune on the test set: what is found there is not what others will see.

    Examples:
      brctc tune exp/translation --limit 200 --keep
      brctc tune exp/translation --ctc-weights 0 0.1 0.3 --length-rewards 0 0.5 --beam 5
    """

    run_dir: Annotated[Path, Positional, arg(metavar="RUN")]
    """The directory of a run or of its model."""
    prepared: PreparedOfRuns = None
    """A directory that `brctc prepare` or `brctc train` has written."""
    split: str = "dev"
    """The split to tune on."""
    ctc_weights: Numbers = None
    """Of the joint CTC/attention search."""
    length_rewards: Numbers = None
    """For every token."""
    beam: Annotated[int | None, arg(help_behavior_hint="(default: the recipe's)")] = None
    """Hypotheses that the search keeps."""
    limit: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the recipe's, or all)")] = (
        None
    )
    """Decode so many examples, spread over the split."""
    jobs: Processes = 1
    """Processes, where there is no GPU."""
    keep: Flag = False
    """The model keeps the best pair: decoding, evaluation and reports search with it from now on."""
    out: OptionalFile = None
    """Gets the scores as JSON."""

    def run(self) -> None:
        """Searches the grid, and shows it."""
        check_file(self.out)
        models, (corpus,) = open_models([self.run_dir], self.prepared, self.split)
        (directory,) = models.values()
        given = {
            "ctc_weights": self.ctc_weights,
            "length_rewards": self.length_rewards,
            "utterances": self.limit,
        }
        changes = {key: value for key, value in given.items() if value is not None}
        grid = GridConfig.model_validate(grid_of(load_model(directory)).model_dump() | changes)
        with progress_bars() as progress:
            tuned = tune(directory, corpus, grid, self.beam, self.jobs, progress)
        if self.out is not None:
            write_text(self.out, to_json(tuple(tuned.points)) + "\n")
        Console().print(grid_table(tuned))
        best = tuned.points[0]
        print(f"The best: --ctc-weight {best.ctc_weight:g} --length-reward {best.length_reward:g}")
        if self.keep:
            keep_best(directory, tuned)
            print(f"{directory} keeps them.")


def grid_table(tuned: Tuned) -> Table:
    """CTC weights down, length rewards across."""
    info, points = tuned.metric, tuned.points
    where = f"{tuned.split}, {tuned.examples} examples"
    unit = f" [{info.unit}]" if info.unit else ""
    table = Table(title=f"{info.title}{unit}, {where}", title_justify="left", box=None, pad_edge=False)
    rewards = sorted({point.length_reward for point in points})
    scores = {(point.ctc_weight, point.length_reward): point.score for point in points}
    table.add_column("CTC weight")
    for reward in rewards:
        table.add_column(f"reward {reward:g}", justify="right")
    for weight in sorted({point.ctc_weight for point in points}):
        shown = [info.show(scores[weight, reward].value) for reward in rewards]
        table.add_row(f"{weight:g}", *shown)
    return table
