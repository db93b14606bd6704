"""Trainings on a Ray cluster (the extra `ray`): a task for each, run again where its worker dies.

Every machine sees the same folders under the same names. A task goes on from the last checkpoint in its run
directory, so a worker that dies costs the steps since then.
"""

import logging
import os
from pathlib import Path
from typing import Any

from brctc.extras import check_extra
from brctc.plugins import VARIABLE, load_plugins
from brctc.train.config import Recipe

RETRIES = 5
"""How often a training whose worker has died is run again."""


class RayTraining:
    """A task of the cluster."""

    def __init__(self, task: Any) -> None:
        import ray

        self._ray, self._task = ray, task

    def running(self) -> bool:
        _, pending = self._ray.wait([self._task], timeout=0)
        return bool(pending)

    def failure(self) -> str | None:
        if self.running():
            return None
        try:
            self._ray.get(self._task)
        except Exception as error:  # whatever went wrong there
            cause = getattr(error, "cause", None) or error
            return str(cause).strip() or type(cause).__name__
        return None

    def stop(self) -> None:
        if self.running():
            self._ray.cancel(self._task)  # as Ctrl-C: it ends its step and writes a checkpoint

    def wait(self) -> None:
        self._ray.wait([self._task])


class RayWorkers:
    """A Ray cluster: the one at `address`, or one that is started on this machine."""

    def __init__(self, address: str | None = None) -> None:
        check_extra(("ray",), "ray")
        import ray

        self.at_once: int | None = None  # the cluster decides
        if not ray.is_initialized():
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        self._task: Any = ray.remote(max_retries=RETRIES, num_cpus=1, num_gpus=gpus)(train_here)

    def start(self, recipe: Recipe, run_dir: Path) -> RayTraining:
        plugins = os.environ.get(VARIABLE, "")
        return RayTraining(self._task.remote(recipe.model_dump_json(), str(run_dir), os.getcwd(), plugins))


def train_here(recipe: str, run_dir: str, folder: str, plugins: str) -> None:
    """What a worker does, in the folder that the command was called in."""
    import torch

    from brctc.train.stages import train

    os.chdir(folder)
    os.environ[VARIABLE] = plugins
    load_plugins()
    torch.set_num_threads(1)
    train(Recipe.model_validate_json(recipe), run_dir, resume=True, progress=False)
