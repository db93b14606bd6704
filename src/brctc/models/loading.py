"""A model from its directory, whoever wrote it."""

from pathlib import Path

from brctc.models.bundle import Model, load_bundle
from brctc.models.exported import EXPORT, load_exported


def load_model(directory: str | Path) -> Model:
    """Reads what `save_model` or `brctc export` wrote, onto the CPU and ready for evaluation; anything else
    is refused."""
    return load_exported(directory) if (Path(directory) / EXPORT).is_file() else load_bundle(directory)
