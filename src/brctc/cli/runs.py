"""What commands on finished runs need."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from brctc.data import Prepared
from brctc.report import name_runs
from brctc.train import model_directory, read_recipe

Runs = Annotated[tuple[Path, ...], Positional, arg(metavar="RUN ...", help_behavior_hint="(required)")]
PreparedOfRuns = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="(default: the first run's)")]
Limit = Annotated[int | None, arg(help_behavior_hint="(default: all)")]


def open_models(runs: Sequence[Path], prepared: Path | None, split: str) -> tuple[dict[str, Path], Prepared]:
    """The models of runs by their names, and the split to measure them on."""
    models = {name: model_directory(run) for name, run in name_runs(runs).items()}
    return models, Prepared(prepared or read_recipe(runs[0]).corpus.prepared, split)
