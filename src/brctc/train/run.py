"""What the stages of a training share, how far it is, and what can stop it."""

import signal
import threading
import time
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any

from brctc.data import Prepared, Tokenizer
from brctc.runs import RunDirectory
from brctc.train.batch_order import Position
from brctc.train.config import Recipe
from brctc.train.distributed import Processes
from brctc.train.journal import Journal


class Interrupted(Exception):  # noqa: N818 (it is no error)
    """A signal has stopped the run; a checkpoint lets it continue."""


class NonFiniteError(ArithmeticError):
    """A loss or gradient was NaN or infinite; the message names the utterances."""


SAME_SIGNAL_S = 1.0


class StopSignal:
    """Notices the first SIGINT or SIGTERM, so that the step can end; a second one does its usual work,
    unless it comes at once: torchrun passes on what all processes have got already."""

    def __init__(self) -> None:
        self.received = False
        self._first_s = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():  # no other may have handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._notice)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _notice(self, number: int, frame: FrameType | None) -> None:
        if not self.received:
            self.received, self._first_s = True, time.monotonic()
        elif time.monotonic() > self._first_s + SAME_SIGNAL_S:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


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
        return {"regular": regular, **asdict(self)}

    @staticmethod
    def from_state(state: dict[str, Any]) -> "Moment":
        """What `to_state` gave."""
        return Moment(
            state["stage"], Position(**state["position"]), state["done"], state["seconds"], state["finished"]
        )


@dataclass
class Run:
    """What all stages have in common."""

    recipe: Recipe
    files: RunDirectory
    train: Prepared
    dev: Prepared
    tokenizer: Tokenizer
    num_labels: list[int]
    """Of every training utterance."""
    processes: Processes
    journal: Journal
    stop: StopSignal
