"""Processes that can be killed. They start at once: what they import is loaded before."""

import multiprocessing
import resource
from pathlib import Path

import torch

from brctc.train import Checkpoint, Interrupted, Recipe, save_checkpoint, train
from brctc.train.checkpoint import checkpoint_path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.train.children", "torch._dynamo"])


def start_training(recipe: Recipe, run_dir: Path) -> multiprocessing.Process:
    child = CONTEXT.Process(target=_train, args=(recipe.model_dump_json(), run_dir))
    child.start()
    return child


def _train(recipe: str, run_dir: Path) -> None:
    torch.set_num_threads(1)
    try:
        train(Recipe.model_validate_json(recipe), run_dir, resume=True, progress=False)
    except Interrupted:
        raise SystemExit(3) from None


def start_writing(folder: Path, largest_file: int | None = None) -> multiprocessing.Process:
    """Writes checkpoints of some megabytes without end; or until an error, which goes into a file."""
    child = CONTEXT.Process(target=_write, args=(folder, largest_file))
    child.start()
    return child


def _write(folder: Path, largest_file: int | None) -> None:
    if largest_file is not None:  # a write beyond it fails, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    weight = torch.arange(500_000.0)
    step = 0
    while True:
        step += 1
        weight[0] = step
        checkpoint = Checkpoint({"weight": weight}, {"weight/m": weight}, {"regular": True, "step": step})
        try:
            save_checkpoint(checkpoint_path(folder, 0, step), checkpoint)
        except OSError as error:
            (folder.parent / "error").write_text(str(error))
            return
