"""`brctc latency`"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import arg

from brctc.cli.runs import Limit, PreparedOfRuns, Runs, open_models
from brctc.cli.shared import Processes, check_page, progress_bars
from brctc.evaluate import evaluate_runs
from brctc.report import to_rich, trade_off_table, write_trade_off


@dataclass(frozen=True, kw_only=True)
class Command:
    """Measure how late trained online models are, and what they get wrong.
    - Latency is what a listener waits from the start of a word: for a chunk and its look-ahead (DCL),
      for the word's prediction (drift, DL), for the computation (CL). docs/online.md explains them.
    - Words need times: those of the manifest, or of `brctc reference-times`.
    - The first run is what others with the same chunks are compared with. Errors are of characters if
      its tokens are, of words otherwise. Latency is of words, and of the characters of Chinese and
      Japanese where errors are of characters.

    Examples:
      brctc latency exp/vanilla exp/early
      brctc latency exp/early --prepared data/prepared/mine --split dev --limit 100
    """

    runs: Runs
    """Directories of runs or of their models."""
    prepared: PreparedOfRuns = None
    """A directory that `brctc prepare` or `brctc train` has written."""
    split: str = "test"
    """The split to decode."""
    limit: Limit = None
    """Decode so many utterances, spread over the split."""
    jobs: Processes = 1
    """Processes that decode, where there is no GPU."""
    out: Annotated[Path, arg(metavar="FILE")] = Path("latency.html")
    """Gets the report, an HTML page; its numbers go into a JSON file beside it."""

    def run(self) -> None:
        """Measures, writes and shows it."""
        check_page(self.out)
        models, (corpus,) = open_models(self.runs, self.prepared, self.split)
        with progress_bars() as progress:
            trade_off = evaluate_runs(models, corpus, limit=self.limit, jobs=self.jobs, progress=progress)
        write_trade_off(trade_off, self.out)
        Console().print(to_rich(trade_off_table(trade_off, "terminal")))
        print(f"The report is {self.out}.")
