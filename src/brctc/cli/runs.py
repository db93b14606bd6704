"""What commands on finished runs need."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from brctc.data import Prepared
from brctc.report import name_runs, open_split
from brctc.runs import RunDirectory, model_directory

Runs = Annotated[tuple[Path, ...], Positional, arg(metavar="RUN ...", help_behavior_hint="(required)")]
PreparedOfRuns = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="(default: the runs')")]
Limit = Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: all)")]


def open_models(
    runs: Sequence[Path], prepared: Path | None, *splits: str
) -> tuple[dict[str, Path], list[Prepared]]:
    """The models of runs by their names, and the splits to measure them on."""
    named = name_runs(runs)
    for run in runs:
        if prepared is None and run.is_dir() and not RunDirectory(run).exists:
            raise ValueError(f"{run} is not a run directory, so its corpus is not known: give --prepared")
    opened = [Prepared(prepared, split) if prepared else open_split(named, split) for split in splits]
    return {name: model_directory(run) for name, run in named.items()}, opened
