"""What a run is on disk. Looking at one never changes it; `brctc.train` begins and continues them."""

from pathlib import Path
from typing import Any

from brctc.files import read_json

MODEL_DESCRIPTION = "model.json"


class RunDirectory:
    """The files of a run, by name."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recipe_file = self.path / "recipe.json"
        self.tokens_file = self.path / "tokens.json"
        self.data_file = self.path / "data.json"
        self.log_file = self.path / "train.log"
        self.metrics_file = self.path / "metrics.jsonl"
        self.lock_file = self.path / ".lock"
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints = self.path / "checkpoints"
        self.snapshots = self.path / "snapshots"
        self.model = self.path / "model"

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return self.recipe_file.exists()

    @property
    def has_model(self) -> bool:
        """Whether the run is complete."""
        return (self.model / MODEL_DESCRIPTION).exists()

    def snapshot_file(self, step: int) -> Path:
        """Where the snapshot before a step (of the whole run) lies."""
        return self.snapshots / f"step-{step:05d}.safetensors"

    def read_recipe(self) -> Any:
        """The recipe that the run was begun with, as plain data."""
        if not self.exists:
            raise FileNotFoundError(f"{self.path} is not a run directory: there is no {self.recipe_file}")
        return read_json(self.recipe_file)


def model_directory(path: str | Path) -> Path:
    """The model of a run, or a model's own directory."""
    run = RunDirectory(path)
    if not run.exists:
        return run.path
    if not run.has_model:
        raise ValueError(f"the run {path} has no model yet: brctc train ... --resume completes it")
    return run.model
