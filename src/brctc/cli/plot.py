"""`brctc plot`"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from matplotlib.figure import Figure
from tyro.conf import arg

from brctc.cli.runs import Runs
from brctc.cli.shared import Flag, check_names
from brctc.data import Prepared
from brctc.files import file_name
from brctc.report import name_runs, open_split
from brctc.report.pictures import (
    example_indices,
    find_utterance,
    plot_evolution,
    plot_posteriors,
    snapshot_utterances,
)
from brctc.report.runs import RunFiles, read_run
from brctc.report.style import PICTURES, save_picture


@dataclass(frozen=True, kw_only=True)
class Command:
    """Draw where models predict what is said: a picture for each utterance, the runs below one another.
    - Bands behind the spikes are where the words really are, if the corpus says so and the model is
      online; of a model that finishes early, what is cut off is marked.

    Examples:
      brctc plot exp/vanilla exp/early --out alignment.png
      brctc plot exp/vanilla exp/early --utterance test-00003 test-00017 --out pictures
      brctc plot exp/vanilla exp/early --evolution --out evolution.svg
    """

    runs: Runs
    """Directories of finished runs."""
    utterance: Annotated[
        tuple[str, ...], arg(metavar="ID ...", help_behavior_hint="(default: one of medium length)")
    ] = ()
    """Which to draw."""
    split: str = "test"
    """The split that they are in. With --evolution, it is the development set."""
    evolution: Flag = False
    """Draw how posteriors and gradients came about, from snapshots (monitor.snapshot_steps in a recipe)."""
    out: Annotated[Path, arg(metavar="FILE|DIR")] = Path("alignment.png")
    """A picture (.png, .svg or .pdf), or a folder that gets one for each utterance."""

    def run(self) -> None:
        """Draws and stores the pictures."""
        self._check()
        named = name_runs(self.runs)
        runs = [read_run(name, run) for name, run in named.items()]
        prepared = open_split(named, "dev" if self.evolution else self.split)
        draw = _evolutions if self.evolution else _posteriors
        self._save(draw(runs, prepared, self.utterance))

    @property
    def _one_picture(self) -> bool:
        return self.out.suffix.lower() in PICTURES

    def _check(self) -> None:
        if self.out.suffix and not self._one_picture:
            raise ValueError(f"--out {self.out}: pictures are {', '.join(PICTURES)}")
        if self._one_picture and len(self.utterance) > 1:
            count = len(self.utterance)
            raise ValueError(f"--out {self.out} is one picture for {count} utterances: give a folder")

    def _save(self, figures: Mapping[str, Figure]) -> None:
        check_names(figures)
        if not self._one_picture:
            self.out.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            path = self.out if self._one_picture else self.out / f"{file_name(name)}.png"
            save_picture(figure, path)
            print(f"{name}\t{path}")


def _posteriors(runs: Sequence[RunFiles], prepared: Prepared, ids: Sequence[str]) -> dict[str, Figure]:
    indices = [find_utterance(prepared, name) for name in ids] or example_indices(prepared, 1)
    return {prepared.examples[index].id: plot_posteriors(runs, prepared, index) for index in indices}


def _evolutions(runs: Sequence[RunFiles], prepared: Prepared, ids: Sequence[str]) -> dict[str, Figure]:
    for run in runs:
        if not run.snapshots:
            raise ValueError(f"{run.name} has no snapshots: its recipe has no monitor.snapshot_steps")
    return {name: plot_evolution(runs, prepared, name) for name in ids or snapshot_utterances(runs)[:1]}
