"""`brctc report`"""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from brctc.cli.runs import Runs
from brctc.cli.shared import check_page, progress_bars, show_results
from brctc.evaluate import Evaluation
from brctc.report import make_report, write_report


@dataclass(frozen=True, kw_only=True)
class Command:
    """Write a page about runs: results, posteriors, attention, training curves, speed.
    - The page is one HTML file that needs no network.

    Examples:
      brctc report exp/vanilla exp/brctc --out report.html
      brctc report exp/vanilla exp/brctc --evaluation evaluation.json
    """

    runs: Runs
    """Directories of finished runs, the one to compare with first."""
    out: Annotated[Path, arg(metavar="PAGE")] = Path("report.html")
    """The page; what is measured goes into a JSON file beside it."""
    evaluation: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: measure now)")] = (
        None
    )
    """What `brctc evaluate` has measured of these runs; the page has its order."""

    def run(self) -> None:
        """Measures if it has to, and writes the page."""
        check_page(self.out)
        made_by = shlex.join(["brctc", *sys.argv[1:]])
        if self.evaluation is not None:
            write_report(self.runs, self.out, Evaluation.load(self.evaluation), command=made_by)
        else:
            with progress_bars() as progress:
                measured = make_report(self.runs, self.out, progress=progress, command=made_by)
            show_results(measured)
        print(f"The report is {self.out}.")
