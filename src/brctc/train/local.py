"""Trainings on this machine: a process with one thread each, and a GPU of its own where there are some."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

import torch

from brctc.plugins import load_plugins
from brctc.train.config import Recipe
from brctc.train.signals import Interrupted
from brctc.train.stages import train

STOPPED = 130  # exit code of a training that was stopped by a signal


class LocalTraining:
    """A training in a process of its own, and what that says on stderr."""

    def __init__(self, recipe: Recipe, run_dir: Path, gpu: int | None) -> None:
        self.gpu = gpu
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the training)
        own_gpu = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "brctc.train.local", str(run_dir)],
            stdin=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **own_gpu},
            start_new_session=True,  # Ctrl-C is for this process alone, which then tells the others
        )
        assert self._process.stdin is not None
        self._process.stdin.write(recipe.model_dump_json() + "\n")
        self._process.stdin.flush()

    def running(self) -> bool:
        return self._process.poll() is None

    def failure(self) -> str | None:
        if self._process.poll() in (None, 0):
            return None
        self._errors.seek(0)
        return self._errors.read().strip() or f"exit code {self._process.returncode}"

    def stop(self) -> None:
        """Once, for a second signal would kill it."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self) -> None:
        self._process.wait()
        self._errors.close()


class LocalWorkers:
    """This machine's processes; with GPUs, one for each of those that run at a time."""

    def __init__(self, at_once: int | None = None, gpus: int | None = None) -> None:
        self.gpus = torch.cuda.device_count() if gpus is None else gpus
        self.at_once = at_once
        self._started: list[LocalTraining] = []

    def start(self, recipe: Recipe, run_dir: Path) -> LocalTraining:
        training = LocalTraining(recipe, run_dir, self._free_gpu())
        self._started.append(training)
        return training

    def _free_gpu(self) -> int | None:
        """The GPU with the fewest trainings."""
        if self.gpus == 0:
            return None
        taken = [training.gpu for training in self._started if training.running()]
        return min(range(self.gpus), key=taken.count)


def main() -> None:
    """Trains the recipe on stdin. The end of stdin is the end of whoever waits for the training."""
    torch.set_num_threads(1)
    load_plugins()
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
