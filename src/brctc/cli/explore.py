"""`brctc explore`"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from brctc.cli.runs import PreparedOfRuns, open_models
from brctc.cli.shared import check_file
from brctc.models import load_model
from brctc.report.explore.page import write_explore_page
from brctc.report.explore.posteriors import Posterior, appendix_b, of_model, synthetic, uniform
from brctc.report.pictures import example_indices, find_utterance


@dataclass(frozen=True, kw_only=True)
class Command:
    """Write a page to try risks on: move a factor, type a formula, and see what changes.
    - The page shows path groups, the risk of each, the loss and its gradient, and the Python
      that gives the same loss. It computes them itself: one HTML file that needs no network.
    - There are toy lattices and a made-up utterance in it; utterances of a trained model, if
      RUN is given.

    Examples:
      brctc explore
      brctc explore exp/early --utterance test-00003 test-00017 --out explore.html
    """

    model: Annotated[Path | None, Positional, arg(metavar="RUN", help_behavior_hint="")] = None
    """A finished run, whose posteriors are looked at where it can be trimmed."""
    utterance: Annotated[
        tuple[str, ...], arg(metavar="ID ...", help_behavior_hint="(default: one of medium length)")
    ] = ()
    """Which utterances of the run's corpus."""
    prepared: PreparedOfRuns = None
    """The prepared corpus that they are in."""
    split: str = "test"
    """The split of it."""
    out: Annotated[Path, arg(metavar="PAGE")] = Path("explore.html")
    """The page."""

    def run(self) -> None:
        """Writes the page; it opens with the first utterance."""
        check_file(self.out)
        if self.model is None and (self.utterance or self.prepared):
            option = "--utterance" if self.utterance else "--prepared"
            raise ValueError(f"{option} is for a trained model: give its RUN, too")
        real = [synthetic()] if self.model is None else self._of_run(self.model)
        write_explore_page(self.out, [appendix_b(), uniform(), *real], first=1 if self.model is None else 2)
        print(f"The page is {self.out}.")

    def _of_run(self, run: Path) -> list[Posterior]:
        named, (prepared,) = open_models([run], self.prepared, self.split)
        ((name, directory),) = named.items()
        model = load_model(directory)
        indices = [find_utterance(prepared, id_) for id_ in self.utterance] or example_indices(prepared, 1)
        return [of_model(name, model, prepared, index) for index in indices]
