"""`brctc plot`"""

from pathlib import Path
from typing import Annotated

from matplotlib.figure import Figure
from tyro.conf import arg

from brctc.cli.runs import Runs
from brctc.cli.shared import Flag, check_names, file_name
from brctc.data import Prepared
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


def command(
    runs: Runs,
    *,
    utterance: Annotated[
        tuple[str, ...], arg(metavar="ID ...", help_behavior_hint="(default: one of medium length)")
    ] = (),
    split: str = "test",
    evolution: Flag = False,
    out: Annotated[Path, arg(metavar="FILE|DIR")] = Path("alignment.png"),
) -> None:
    """Draw where models predict what is said: a picture for each utterance, the runs below one another.
    - Bands behind the spikes are where the words really are, if the corpus says so and the model is
      online; of a model that finishes early, what is cut off is marked.

    Examples:
      brctc plot exp/vanilla exp/early --out alignment.png
      brctc plot exp/vanilla exp/early --utterance test-00003 test-00017 --out pictures
      brctc plot exp/vanilla exp/early --evolution --out evolution.svg

    Args:
        runs: Directories of finished runs.
        utterance: Which to draw.
        split: The split that they are in. With --evolution, it is the development set.
        evolution: Draw how posteriors and gradients came about, from the runs' snapshots
            (monitor.snapshot_steps in a recipe).
        out: A picture (.png, .svg or .pdf), or a folder that gets one for each utterance.
    """
    single = out.suffix.lower() in PICTURES
    if out.suffix and not single:
        raise ValueError(f"--out {out}: pictures are {', '.join(PICTURES)}")
    if single and len(utterance) > 1:
        raise ValueError(f"--out {out} is one picture for {len(utterance)} utterances: say a folder")
    named = name_runs(runs)
    read = [read_run(name, run) for name, run in named.items()]
    prepared = open_split(named, "dev" if evolution else split)
    figures = _evolutions(read, prepared, utterance) if evolution else _posteriors(read, prepared, utterance)
    check_names(figures)
    if not single:
        out.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        path = out if single else out / f"{file_name(name)}.png"
        save_picture(figure, path)
        print(f"{name}\t{path}")


def _posteriors(runs: list[RunFiles], prepared: Prepared, ids: tuple[str, ...]) -> dict[str, Figure]:
    indices = [find_utterance(prepared, name) for name in ids] or example_indices(prepared, 1)
    return {prepared.utterances[index].id: plot_posteriors(runs, prepared, index) for index in indices}


def _evolutions(runs: list[RunFiles], prepared: Prepared, ids: tuple[str, ...]) -> dict[str, Figure]:
    for run in runs:
        if not run.snapshots:
            raise ValueError(f"{run.name} has no snapshots: its recipe has no monitor.snapshot_steps")
    return {name: plot_evolution(runs, prepared, name) for name in ids or snapshot_utterances(runs)[:1]}
