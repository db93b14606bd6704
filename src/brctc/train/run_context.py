"""What the stages of a training share, and how far it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brctc.data import Prepared, Tokenizer
from brctc.data.sampling import Position
from brctc.runs import RunDirectory
from brctc.train.config import Recipe
from brctc.train.engine import Processes
from brctc.train.journal import Journal
from brctc.train.signals import StopSignal


@dataclass(frozen=True)
class Moment:
    """How far a run is: what a checkpoint's state holds."""

    stage: int = 0
    position: Position = field(default_factory=Position)
    done: int = 0
    """Steps of all stages together."""
    seconds: float = 0.0
    """Spent in steps."""
    finished: bool = False
    """Whether the stage is complete."""

    def to_state(self, regular: bool) -> dict[str, Any]:
        """As plain data. A regular checkpoint is one that the recipe asks for."""
        return {
            "regular": regular,
            "stage": self.stage,
            "position": self.position.to_json(),
            "done": self.done,
            "seconds": self.seconds,
            "finished": self.finished,
        }

    @staticmethod
    def from_state(state: dict[str, Any]) -> "Moment":
        """What `to_state` gave."""
        position = Position.from_json(state["position"])
        return Moment(state["stage"], position, state["done"], state["seconds"], state["finished"])


@dataclass
class Run:
    """What all stages have in common."""

    recipe: Recipe
    files: RunDirectory
    train: Prepared
    dev: Prepared
    tokenizers: Mapping[str, Tokenizer]
    processes: Processes
    journal: Journal
    stop: StopSignal
