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
from brctc.evaluate import Evaluation
from brctc.files import file_name
from brctc.report import name_runs, open_split
from brctc.report.attention import attention_index, has_maps, plot_attention
from brctc.report.corpora import plot_corpora
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
    - Bands behind the spikes are where the words really are, if the corpus says so; the spikes of a
      model that finishes early are elsewhere, and what is cut off is marked.
    - Evaluations instead of runs (FILE.json) become one picture of all their test sets.

    Examples:
      brctc plot exp/vanilla exp/early --out alignment.png
      brctc plot exp/vanilla exp/early --utterance test-00003 test-00017 --out pictures
      brctc plot exp/vanilla exp/early --evolution --out evolution.svg
      brctc plot exp/vanilla exp/early --attention --utterance test-00003 --out attention.png
      brctc plot exp/mine/report.json exp/yours/report.json --out corpora.png
    """

    runs: Runs
    """Directories of finished runs, or what `brctc evaluate` and `brctc compare` have measured."""
    utterance: Annotated[
        tuple[str, ...], arg(metavar="ID ...", help_behavior_hint="(default: one of medium length)")
    ] = ()
    """Which to draw."""
    split: str = "test"
    """The split that they are in. With --evolution, it is the development set."""
    evolution: Flag = False
    """Draw how posteriors and gradients came about, from snapshots (monitor.snapshot_steps in a recipe)."""
    attention: Flag = False
    """Draw where each frame of the encoder looks, in every layer and head."""
    out: Annotated[Path, arg(metavar="FILE|DIR")] = Path("alignment.png")
    """A picture (.png, .svg or .pdf), or a folder that gets one for each utterance."""

    def run(self) -> None:
        """Draws and stores the pictures."""
        self._check()
        if self.runs and all(run.suffix == ".json" for run in self.runs):
            return self._plot_evaluations()
        named = name_runs(self.runs)
        runs = [read_run(name, run) for name, run in named.items()]
        prepared = open_split(named, "dev" if self.evolution else self.split)
        draw = _evolutions if self.evolution else _attention if self.attention else _posteriors
        self._save(draw(runs, prepared, self.utterance))

    def _plot_evaluations(self) -> None:
        if self.utterance or self.evolution or self.attention or not self._one_picture:
            raise ValueError("evaluations become one picture: give --out FILE alone")
        save_picture(plot_corpora([Evaluation.load(path) for path in self.runs]), self.out)
        print(self.out)

    @property
    def _one_picture(self) -> bool:
        return self.out.suffix.lower() in PICTURES

    def _check(self) -> None:
        if self.evolution and self.attention:
            raise ValueError("give --evolution or --attention, not both")
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


def _attention(runs: Sequence[RunFiles], prepared: Prepared, ids: Sequence[str]) -> dict[str, Figure]:
    for run in runs:
        if not has_maps(run.model):
            raise ValueError(f"{run.name} has no maps of attention, or no spikes")
    indices = [find_utterance(prepared, name) for name in ids] or [attention_index(runs, prepared)]
    return {prepared.examples[index].id: plot_attention(runs, prepared, index) for index in indices}


def _evolutions(runs: Sequence[RunFiles], prepared: Prepared, ids: Sequence[str]) -> dict[str, Figure]:
    for run in runs:
        if not run.snapshots:
            raise ValueError(f"{run.name} has no snapshots: its recipe has no monitor.snapshot_steps")
    return {name: plot_evolution(runs, prepared, name) for name in ids or snapshot_utterances(runs)[:1]}
