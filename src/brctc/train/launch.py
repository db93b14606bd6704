"""Several trainings at once, in processes of their own, all in one display.

Where they run is up to `Workers`: this machine (`brctc.train.local`), or a Ray cluster
(`brctc.train.ray_workers`). What a training has reached is read from its run directory, so that must be a
folder that every worker sees.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from brctc.progress import ProgressDisplay
from brctc.runs import RunDirectory
from brctc.train.begin import adopt, is_trained
from brctc.train.config import Recipe
from brctc.train.journal import describe_look

POLL_S = 0.5
TAIL_BYTES = 1 << 16


class Training(Protocol):
    """A training somewhere."""

    def running(self) -> bool: ...

    def failure(self) -> str | None:
        """Why it has ended without a model; None if it has not."""
        ...

    def stop(self) -> None:
        """Tells it to end its step and write a checkpoint."""
        ...

    def wait(self) -> None:
        """Until it has ended."""
        ...


class Workers(Protocol):
    """What trainings run on."""

    at_once: int | None
    """How many at a time; None if the workers decide themselves."""

    def start(self, recipe: Recipe, run_dir: Path) -> Training:
        """Begins or continues a training."""
        ...


def train_all(recipes: Mapping[str, Recipe], directory: Path, workers: Workers) -> None:
    """Trains each recipe in the folder of its name; continues what was begun, and leaves alone what is done.

    When one fails, or on Ctrl-C, all end their step and write a checkpoint.
    """
    waiting = [name for name, recipe in recipes.items() if not is_trained(recipe, directory / name)]
    for name in recipes.keys() - set(waiting):
        adopt(recipes[name], RunDirectory(directory / name))
    at_once = workers.at_once or len(recipes)
    with _display(recipes, directory) as show, _trainings() as trainings:
        while True:
            running = sum(training.running() for training in trainings.values())
            for name, training in trainings.items():
                if (reason := training.failure()) is not None:
                    raise ValueError(f"the training of {name} has failed: {reason}")
            for name in waiting[: at_once - running]:
                trainings[name] = workers.start(recipes[name], directory / name)
                waiting.remove(name)
                running += 1
            show()
            if not running:
                return
            time.sleep(POLL_S)


@contextmanager
def _trainings() -> Iterator[dict[str, Training]]:
    """Trainings, to be added; at the end of the block they are told to stop."""
    trainings: dict[str, Training] = {}
    try:
        yield trainings
    except KeyboardInterrupt:
        print("stopping: each training ends its step and writes a checkpoint", file=sys.stderr)
        raise
    finally:
        for training in trainings.values():
            training.stop()
        for training in trainings.values():
            training.wait()


@contextmanager
def _display(recipes: Mapping[str, Recipe], directory: Path) -> Iterator[Callable[[], None]]:
    """A bar for each training; call it to look at what they have written."""
    totals = {}
    for name, recipe in recipes.items():
        steps = [stage.steps for stage in recipe.stages.values()]
        totals[name] = sum(filter(None, steps)) if all(steps) else None
    with ProgressDisplay(keep=True, names=max(map(len, recipes), default=0)) as display:

        def show() -> None:
            for name, total in totals.items():
                record = last_record(directory / name)
                display.show(name, record.get("step", 0), total, _state(record, display.narrow))

        show()
        yield show


def _state(record: Mapping[str, Any], narrow: bool = False) -> str:
    look = describe_look(record, decimals=1)
    if narrow and look:
        return look[0].removeprefix("dev ")
    loss = [f"loss {record['loss']:.3f}"] if "loss" in record else []
    factor = [f"factor {record['dev_factor']:.2f}"] if "dev_factor" in record else []
    return "  ".join(loss + look + factor)


def last_record(run_dir: Path) -> dict[str, Any]:
    """The newest value of everything that a training has written into its metrics."""
    path = RunDirectory(run_dir).metrics_file
    if not path.exists():
        return {}
    with path.open("rb") as file:
        start = max(0, path.stat().st_size - TAIL_BYTES)
        file.seek(start)
        lines = file.read().split(b"\n")[1 if start else 0 : -1]  # whole ones
    found: dict[str, Any] = {}
    for line in lines:
        if line.strip(b"\0"):  # of a power cut
            found |= json.loads(line)
    return found
