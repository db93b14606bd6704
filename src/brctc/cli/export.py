"""`brctc export`"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from brctc.cli.shared import Assignments, Flag, parse_assignments
from brctc.config import KeyedError, SectionError, describe_problems
from brctc.decode.recognizer import check_model
from brctc.export import EXPORTS, export_model
from brctc.models import load_model
from brctc.models.exported import ExportedSystem
from brctc.runs import model_directory


@dataclass(frozen=True)
class Command:
    """Write a trained model in another format.
    - Graphs of ONNX are compared with the model before anything is written; the differences are shown.
    - `brctc decode`, `stream` and `evaluate` take what is written like a model.

    Examples:
      brctc export exp/mine --out mine-onnx --for onnx
      brctc export exp/mine --out mine-sherpa --for sherpa --int8
      brctc export exp/mine --out mine-page --for web
      brctc --import my_format export exp/mine --out mine-model --for my-format
    """

    model: Annotated[Path, Positional, arg(metavar="MODEL")]
    """The directory of a run or of its model."""
    out: Annotated[Path, arg(metavar="DIR")]
    """Gets the model; it must not exist yet."""
    format: Annotated[str, arg(name="for", metavar="NAME")] = "bundle"
    """Who takes it: "onnx", "sherpa" (sherpa-onnx), "web" (a page), or "bundle", the
    model directory itself."""
    int8: Flag = False
    """Graphs with weights of eight bits; size, speed and agreement are shown."""
    set: Assignments = ()
    """Options of the format."""

    def run(self) -> None:
        """Exports the model."""
        options = {"kind": self.format, **({"int8": True} if self.int8 else {})}
        try:
            chosen = EXPORTS.parse(options | parse_assignments(self.set))
        except KeyedError as error:
            raise ValueError(f"--for: {error}") from None
        except SectionError as error:
            raise ValueError(describe_problems(error.error, error.config, self.format)) from None
        model = load_model(model_directory(self.model))
        check_model(model)
        if isinstance(model.system, ExportedSystem):
            raise ValueError(f"{self.model} is exported already: name the model that it was made of")
        for line in export_model(model, self.out, chosen):
            print(line)
        names = ", ".join(sorted(path.name for path in self.out.iterdir()))
        print(f"{self.out}: {names}")
