"""Two finished trainings, tiny ones, and what an evaluation says of them."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from brctc.data import Prepared
from brctc.evaluate import Evaluation, EvaluationOptions, evaluate_models
from brctc.models import Model, load_model
from brctc.train import train
from tests.evaluate.online_toys import online_model, online_split, store
from tests.train.tiny import PLAIN, tiny_recipe

torch.set_num_threads(1)
QUICK = EvaluationOptions(repeats=1, rtf_utterances=2, batch=3, sweep_utterances=1, beams=(2, 4))


class Trained(NamedTuple):
    vanilla: Path
    brctc: Path
    test: Prepared

    @property
    def runs(self) -> list[Path]:
        return [self.vanilla, self.brctc]

    @property
    def models(self) -> dict[str, Path]:
        return {run.name: run / "model" for run in self.runs}


def make_talkative(model_dir: Path) -> None:
    """So few steps teach nothing but blanks: with these made less likely, something is said."""
    model = load_model(model_dir)
    with torch.no_grad():
        model.system.heads["transcript"].bias[0] -= 2.5
    store(model, model_dir)


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Trained:
    folder = tmp_path_factory.mktemp("report")
    recipe = tiny_recipe(
        folder, monitor={"dev_utterances": 4, "snapshot_steps": [0, 10, 20, 99], "tensorboard": False}
    )
    stages = {
        "first": {"steps": 12, "losses": PLAIN},
        "second": {"steps": 8, "inherit": "whole", "losses": PLAIN},
    }
    vanilla = tiny_recipe(folder, monitor=recipe.monitor, stages=stages)
    for name, content in (("vanilla", vanilla), ("brctc", recipe)):
        make_talkative(train(content, folder / name, progress=False))
    return Trained(folder / "vanilla", folder / "brctc", Prepared(folder / "prepared", "test"))


@pytest.fixture(scope="session")
def evaluation(trained) -> Evaluation:
    return evaluate_models(trained.models, trained.test, QUICK)


@pytest.fixture(scope="session")
def model() -> Model:
    """An online one."""
    return online_model()


@pytest.fixture(scope="session")
def split(model, tmp_path_factory) -> Prepared:
    """Audio for it."""
    return online_split(tmp_path_factory.mktemp("online"), model)
