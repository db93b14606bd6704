"""What a training has left, read back for the report; whatever is missing or broken is named."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from brctc.models import Model, load_model
from brctc.runs import MODEL_DESCRIPTION, RunDirectory
from brctc.train import Recipe, read_metrics, read_recipe


@dataclass(frozen=True)
class Snapshot:
    """Posteriors and gradients of a few utterances at one moment of the training."""

    path: Path
    step: int
    stage: str
    factor: float
    """Of the risk."""
    ids: list[str]
    texts: list[str]
    posteriors: list[np.ndarray]
    """(T, C) each."""
    gradients: list[np.ndarray]


@dataclass(frozen=True)
class RunFiles:
    """A finished run."""

    name: str
    directory: Path
    recipe: Recipe
    model: Model
    metrics: list[dict[str, Any]]
    snapshots: list[Snapshot]
    """Oldest first; none if the recipe asks for none."""


def read_run(name: str, directory: str | Path) -> RunFiles:
    """All that the report shows of a run, which must be finished."""
    directory = Path(directory)
    recipe = read_recipe(directory)
    run = RunDirectory(directory)
    if not run.has_model:
        raise FileNotFoundError(
            f"{name}: there is no {run.model / MODEL_DESCRIPTION}: the run is not finished"
        )
    model = load_model(run.model)
    metrics = _read_metrics(name, run)
    steps = max(line["step"] for line in metrics)
    snapshots = [
        read_snapshot(run.snapshot_file(step))
        for step in sorted(recipe.monitor.snapshot_steps)
        if step <= steps
    ]
    return RunFiles(name, directory, recipe, model, metrics, snapshots)


def read_snapshot(path: Path) -> Snapshot:
    """What the training wrote there."""
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}, a snapshot that the run's recipe asks for")
    try:
        with safe_open(path, "numpy") as file:
            metadata = {name: json.loads(value) for name, value in file.metadata().items()}
            count = len(metadata["ids"])
            posteriors, gradients = (
                [file.get_tensor(f"{i}.{kind}").astype(np.float32) for i in range(count)]
                for kind in ("posterior", "gradient")
            )
        return Snapshot(
            path,
            metadata["step"],
            metadata["stage"],
            metadata["factor"],
            metadata["ids"],
            metadata["texts"],
            posteriors,
            gradients,
        )
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a snapshot of brctc, or is damaged: {error}") from None


def _read_metrics(name: str, run: RunDirectory) -> list[dict[str, Any]]:
    if not run.metrics_file.exists():
        raise FileNotFoundError(f"{name}: there is no {run.metrics_file}")
    metrics = read_metrics(run.path)
    if not metrics:
        raise ValueError(f"{run.metrics_file} is empty: the run has taken no step")
    return metrics
