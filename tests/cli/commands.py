"""Commands in processes of their own, which start at once: what they import is loaded before."""

import os
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from brctc.cli import main
from tests.train.children import CONTEXT

CONTEXT.set_forkserver_preload(["tests.train.children", "torch._dynamo", "brctc.report", "tyro"])

# a training of handwriting that takes a second
SMALL = (
    "corpus.prepared=prepared",
    "corpus.train_strings=40",
    "corpus.dev_strings=6",
    "corpus.test_strings=6",
    "corpus.max_digits=4",
    "model.encoder.dim=16",
    "model.encoder.feed_forward_dim=16",
    "stages.first.steps=6",
    "stages.second.steps=4",
    "stages.first.curriculum=null",
    "stages.second.curriculum=null",
    "checkpoints.every_steps=3",
    "batch.seconds=6",
    "monitor={dev_utterances: 4, snapshot_steps: [0, 10], snapshot_utterances: 1, tensorboard: false}",
)


class Finished(NamedTuple):
    code: int
    out: str
    err: str


class Command:
    """A command that runs in a folder."""

    def __init__(self, folder: Path, *arguments: object, **environment: str) -> None:
        self._folder = folder
        words = [str(argument) for argument in arguments]
        self.process = CONTEXT.Process(target=_run, args=(folder, words, environment))
        self.process.start()

    def finish(self) -> Finished:
        self.process.join()
        out, err = ((self._folder / name).read_text() for name in (".out", ".err"))
        return Finished(self.process.exitcode, out, err)


def brctc(folder: Path, *arguments: object, **environment: str) -> Finished:
    """Runs a command to its end."""
    return Command(folder, *arguments, **environment).finish()


def _run(folder: Path, words: list[str], environment: dict[str, str]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit it ignored
    os.chdir(folder)
    os.environ.update({"COLUMNS": "100", "OMP_NUM_THREADS": "1"} | environment)
    for number, name in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["brctc", *words]
    sys.exit(main())
