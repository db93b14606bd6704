"""`brctc export`"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from brctc.cli.shared import Assignments, parse_assignments
from brctc.config import KeyedError, SectionError, describe_problems
from brctc.decode.recognizer import check_model
from brctc.export import EXPORTS, export_model
from brctc.models import load_model
from brctc.runs import model_directory


@dataclass(frozen=True)
class Command:
    """Write a trained model in another format.

    Examples:
      brctc export exp/mine --out mine-model
      brctc --import my_format export exp/mine --out mine-model --format my-format
    """

    model: Annotated[Path, Positional, arg(metavar="MODEL")]
    """The directory of a run or of its model."""
    out: Annotated[Path, arg(metavar="DIR")]
    """Gets the model; it must not exist yet."""
    format: Annotated[str, arg(metavar="NAME")] = "bundle"
    """The format; "bundle" is the model directory itself."""
    set: Assignments = ()
    """Options of the format."""

    def run(self) -> None:
        """Exports the model."""
        try:
            chosen = EXPORTS.parse({"kind": self.format, **parse_assignments(self.set)})
        except KeyedError as error:
            raise ValueError(f"--format: {error}") from None
        except SectionError as error:
            raise ValueError(describe_problems(error.error, error.config, self.format)) from None
        model = load_model(model_directory(self.model))
        check_model(model)
        export_model(model, self.out, chosen)
        names = ", ".join(sorted(path.name for path in self.out.iterdir()))
        print(f"{self.out}: {names}")
