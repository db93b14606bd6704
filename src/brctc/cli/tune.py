"""`brctc tune`"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from brctc.cli.runs import Limit, PreparedOfRuns, open_models
from brctc.cli.shared import OptionalFile, Processes, check_file, progress_bars
from brctc.decode.methods import choose_search
from brctc.decode.pool import RecognizerPool
from brctc.decode.sources import check_features
from brctc.evaluate.decoding import spread_indices
from brctc.evaluate.defaults import metrics_of
from brctc.evaluate.grid import CTC_WEIGHTS, LENGTH_REWARDS, GridPoint, search_grid
from brctc.evaluate.metrics import MetricInfo
from brctc.evaluate.results import to_json
from brctc.files import write_text

Numbers = Annotated[tuple[float, ...], arg(metavar="FLOAT ...")]


@dataclass(frozen=True, kw_only=True)
class Command:
    """Find the CTC weight and length reward of a model's joint search, on a development set.
    - Every pair of the grid is searched with one pass of the encoder.
    - Never tune on the test set: what is found there is not what others will see.

    Examples:
      brctc tune exp/translation --limit 200
      brctc tune exp/translation --ctc-weights 0 0.1 0.3 --length-rewards 0 0.5 --beam 5
    """

    run_dir: Annotated[Path, Positional, arg(metavar="RUN")]
    """The directory of a run or of its model."""
    prepared: PreparedOfRuns = None
    """A directory that `brctc prepare` or `brctc train` has written."""
    split: str = "dev"
    """The split to tune on."""
    ctc_weights: Numbers = CTC_WEIGHTS
    """Of the joint CTC/attention search."""
    length_rewards: Numbers = LENGTH_REWARDS
    """For every token."""
    beam: int = 5
    """Hypotheses that the search keeps."""
    limit: Limit = None
    """Decode so many examples, spread over the split."""
    jobs: Processes = 1
    """Processes, where there is no GPU."""
    out: OptionalFile = None
    """Gets the scores as JSON."""

    def run(self) -> None:
        """Searches the grid, and shows it."""
        check_file(self.out)
        models, (corpus,) = open_models([self.run_dir], self.prepared, self.split)
        (directory,) = models.values()
        with RecognizerPool(directory, self.jobs) as pool, progress_bars() as progress:
            model = pool.recognizer.model
            choose_search("attention", model.system.config)
            check_features(str(self.run_dir), model, corpus)
            metric = next(iter(metrics_of(model).values()))
            chosen = spread_indices(len(corpus), self.limit)
            weights = self.ctc_weights, self.length_rewards
            points = search_grid(pool, corpus, chosen, metric, *weights, self.beam, progress)
        if self.out is not None:
            write_text(self.out, to_json(tuple(points)) + "\n")
        Console().print(grid_table(points, metric.info(), f"{self.split}, {len(chosen)} examples"))
        best = points[0]
        print(f"The best: --ctc-weight {best.ctc_weight:g} --length-reward {best.length_reward:g}")


def grid_table(points: list[GridPoint], info: MetricInfo, where: str) -> Table:
    """CTC weights down, length rewards across."""
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
