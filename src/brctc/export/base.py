"""What leaves the house: a trained model in a format of somebody else's. Each format registers itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from brctc.config import Kind, Registry
from brctc.files import new_directory
from brctc.models import Model

EXPORTS: Registry["ExportConfig"] = Registry("export format")


class ExportConfig(Kind):
    """A format as data: its fields are its options."""

    registry: ClassVar[Registry[Any]] = EXPORTS

    kind: str

    def write(self, model: Model, out: Path) -> Sequence[str] | None:
        """Writes the model into a folder that is there and empty; what it returns is shown line by line. A
        ValueError says why a model cannot be."""
        raise NotImplementedError


def export_model(model: Model, out: str | Path, format: ExportConfig) -> Sequence[str]:
    """Writes a model in a format, and returns what there is to say of it. The folder appears when everything
    is in it, or not at all."""
    path = Path(out)
    if path.exists():
        raise FileExistsError(f"{path} exists already: choose another folder")
    with new_directory(path) as unfinished:
        return format.write(model, unfinished) or ()
