"""The model directory itself, to be copied elsewhere: what `brctc decode` and `brctc stream` take."""

from pathlib import Path
from typing import Literal

from brctc.export.base import EXPORTS, ExportConfig
from brctc.files import write_text
from brctc.models import Model, save_model


@EXPORTS.register
class BundleExport(ExportConfig):
    """safetensors and JSON, and the vocabulary as a text file: a piece and its number in each line."""

    kind: Literal["bundle"] = "bundle"

    def write(self, model: Model, out: Path) -> None:
        save_model(out, model.system, model.tokenizers, model.features, model.trim, model.description)
        lines = [f"{piece} {number}\n" for number, piece in enumerate(model.tokenizer.pieces)]
        write_text(out / "tokens.txt", "".join(lines))
