"""`brctc gpu-check`"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import arg

from brctc.check.report import Report, check_machine
from brctc.cli.shared import check_file, progress_bars, recipes_directory

STYLES = {"ok": "green", "failed": "bold red", "skipped": "yellow"}


@dataclass(frozen=True, kw_only=True)
class Command:
    """Find out whether the GPUs of a machine compute what they should, and how fast.
    - Kernels of the losses against the reference in float64; two processes against one;
      speed of the losses beside torch's and cuDNN's; a full-size step of each paper system.
    - What fails is named and stops nothing else; the exit status is 2 then.
    - Without a GPU all of it is small: it shows that the check itself works. With
      TRITON_INTERPRET=1 in the environment, the GPU's kernels run in Triton's interpreter.

    Examples:
      brctc gpu-check
      brctc gpu-check --out a100.json --minutes 20
    """

    out: Annotated[Path, arg(metavar="FILE")] = Path("gpu-check.json")
    """Gets versions, devices, figures and verdicts as JSON: send it to us."""
    minutes: float = 10.0
    """Checks that would begin later are skipped."""

    def run(self) -> None:
        """Checks, shows and writes it."""
        check_file(self.out)
        if not 0 < self.minutes < float("inf"):
            raise ValueError(f"--minutes {self.minutes:g}: expected more than 0")
        folder = recipes_directory() / "paper"
        recipes = [path for path in sorted(folder.glob("*.yaml")) if not path.name.startswith("base")]
        with progress_bars() as show:
            report = check_machine(recipes, self.minutes, show)
        report.save(self.out)
        Console().print(table_of(report))
        print(f"All figures are in {self.out}: please send it to us.")
        if failed := report.failed:
            names = "; ".join(f"{finding.group}: {finding.name}" for finding in failed)
            raise ValueError(f"{len(failed)} of {len(report.findings)} checks failed: {names}")


def table_of(report: Report) -> Table:
    """A row for each check."""
    machine = report.machine
    where = ", ".join(gpu["name"] for gpu in machine["gpus"]) or "no GPU: small sizes, on the CPU"
    title = f"{where}; brctc {machine['brctc']}, torch {machine['torch']}, triton {machine['triton']}"
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("check", "verdict", "found"):
        table.add_column(column)
    group = ""
    for finding in report.findings:
        if finding.group != group:
            group = finding.group
            table.add_row(Text(group, style="bold"))
        verdict = Text(finding.verdict, style=STYLES[finding.verdict])
        table.add_row(Text(f"  {finding.name}"), verdict, Text(finding.said))
    return table
