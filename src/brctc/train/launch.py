"""Several trainings at once, each in a process with one thread, all in one display."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from brctc.progress import ProgressDisplay
from brctc.runs import RunDirectory
from brctc.train.config import Recipe
from brctc.train.run import Interrupted
from brctc.train.stages import is_trained, train

POLL_S = 0.5
TAIL_BYTES = 1 << 16
STOPPED = 130  # exit code of a training that was stopped by a signal


class Training(NamedTuple):
    """A training in a process of its own, and what that says on stderr."""

    process: subprocess.Popen[str]
    errors: IO[str]

    def failed(self) -> bool:
        """Whether it has ended without a model."""
        return self.process.poll() not in (None, 0)

    def stop(self) -> None:
        """Tells it to end its step and write a checkpoint: once, for a second signal would kill it."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def reason(self) -> str:
        """Why."""
        self.errors.seek(0)
        return self.errors.read().strip() or f"exit code {self.process.returncode}"


def train_side_by_side(recipes: Mapping[str, Recipe], directory: Path, *, at_once: int | None = None) -> None:
    """Trains each recipe in the folder of its name, so many at a time (all by default); continues what was
    begun.

    When one fails, or on Ctrl-C, all end their step and write a checkpoint.
    """
    waiting = [name for name, recipe in recipes.items() if not is_trained(recipe, directory / name)]
    at_once = at_once or len(recipes)
    with _display(recipes, directory) as show, _trainings() as trainings:
        while True:
            running = sum(training.process.poll() is None for training in trainings.values())
            for name, training in trainings.items():
                if training.failed():
                    raise ValueError(f"the training of {name} has failed: {training.reason()}")
            for name in waiting[: at_once - running]:
                trainings[name] = _start(recipes[name], directory / name)
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
            training.process.wait()
            training.errors.close()


def _start(recipe: Recipe, run_dir: Path) -> Training:
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the training)
    process = subprocess.Popen(
        [sys.executable, "-m", "brctc.train.launch", str(run_dir)],
        stdin=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # Ctrl-C is for this process alone, which then tells the others
    )
    assert process.stdin is not None
    process.stdin.write(recipe.model_dump_json() + "\n")
    process.stdin.flush()
    return Training(process, errors)


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
    if narrow and "dev_error" in record:
        return f"error {record['dev_error']:.1%}"
    shown = (("loss", "loss {:.3f}"), ("dev_error", "dev error {:.1%}"), ("dev_factor", "factor {:.2f}"))
    return "  ".join(text.format(record[key]) for key, text in shown if key in record)


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


def main() -> None:
    """Trains the recipe on stdin. The end of stdin is the end of whoever waits for the training."""
    import torch

    torch.set_num_threads(1)
    recipe = Recipe.model_validate_json(sys.stdin.readline())

    def stop_with_parent() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_with_parent, daemon=True).start()
    try:
        train(recipe, sys.argv[1], resume=True, progress=False)
    except Interrupted:
        sys.exit(STOPPED)
    except (ValueError, OSError, ArithmeticError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
