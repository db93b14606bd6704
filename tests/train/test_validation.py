"""A look at the development set: what is said of it, and the best checkpoints by it make the model."""

import pytest
import torch

from brctc.cli.train import describe_last
from brctc.data import Prepared
from brctc.data.batch import pad
from brctc.models import load_model
from brctc.runs import RunDirectory
from brctc.train import average_weights, list_checkpoints, read_metrics, train
from brctc.train.checkpoint import load_checkpoint, load_state
from brctc.train.journal import Journal
from brctc.train.launch import _state
from tests.train.tiny import best_recipe

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def best(tmp_path_factory):
    """A folder with a run whose best checkpoints make the model."""
    folder = tmp_path_factory.mktemp("best")
    train(best_recipe(folder), folder / "run", progress=False)
    return folder


def test_the_best_checkpoints_make_the_model(best):
    """By the decoder's accuracy, which each checkpoint remembers; in a stage without it, by errors."""
    run = best / "run"
    model = load_model(run / "model")
    dev = [line for line in read_metrics(run) if "dev_loss" in line]
    assert [("dev_accuracy" in line, line["stage"]) for line in dev] == (
        [(False, "first")] * 3 + [(True, "second")] * 10
    )
    accuracies = {line["step"] - 6: line["dev_accuracy"] for line in dev[3:]}
    ranked = sorted(accuracies, key=lambda step: (accuracies[step], step))
    assert sorted(ranked[-2:]) != [18, 20]  # or the test would see nothing
    assert model.description["averaged"] == [f"stage-1-step-{step:07d}" for step in sorted(ranked[-2:])]
    paths = list_checkpoints(run / "checkpoints")
    assert [int(path.name[-7:]) for path in paths] == sorted({*ranked[-3:], 20})
    assert {int(path.name[-7:]): load_state(path)["dev"]["dev_accuracy"] for path in paths} == {
        step: accuracies[step] for step in {*ranked[-3:], 20}
    }
    chosen = [path for path in paths if path.name in model.description["averaged"]]
    averaged = average_weights(chosen)
    assert all(averaged[f"system.{key}"].equal(value) for key, value in model.system.state_dict().items())
    log = (run / "train.log").read_text()
    assert f"dev accuracy of attention {accuracies[20]:.2%}" in log
    assert "model of the best 2 checkpoints" in log
    assert describe_last(run).split(", ")[1] == f"dev accuracy {accuracies[20]:.2%}"


@torch.no_grad()
def test_accuracy_is_that_of_the_checkpoints_model(best):
    model = load_model(best / "run" / "model")
    path = list_checkpoints(best / "run" / "checkpoints")[-1]
    weights = load_checkpoint(path).model
    model.system.load_state_dict({key.removeprefix("system."): value for key, value in weights.items()})
    decoder, dev = model.system.decoders["attention"], Prepared(best / "prepared", "dev")
    right = total = 0
    for i, example in enumerate(dev.examples):
        labels = model.tokenizer.encode(example.texts["transcript"])
        frames = model.system.encode(pad([torch.from_numpy(dev.features(i))])).final
        best = decoder(*frames, torch.tensor([labels]))[0].argmax(-1).tolist()
        right += sum(a == b for a, b in zip(best, [*labels, decoder.end], strict=True))
        total += len(best)
    assert load_state(path)["dev"]["dev_accuracy"] == right / total


def test_errors_of_translations_are_called_what_they_are(tmp_path):
    """A translation may be worded otherwise: CTC's greedy output is counted, and that is said."""
    record = {
        "step": 5,
        "dev_loss": 1.0,
        "dev_error": 0.75,
        "dev_errors": {"heard": 0.25, "final": 0.75},
        "dev_texts": {"heard": "transcript", "final": "translation"},
        "dev_accuracy": 0.5,
        "dev_accuracies": {"attention": 0.5},
    }
    with Journal(RunDirectory(tmp_path), done=0, tensorboard=False, progress=False) as journal:
        journal.dev(record)
    said = "dev error of heard 25.00%, dev CTC errors of final 75.00%, dev accuracy of attention 50.00%"
    assert said in (tmp_path / "train.log").read_text()
    assert describe_last(tmp_path) == "dev CTC errors 75.00%, dev accuracy 50.00%"
    assert _state(record | {"loss": 2.0}) == "loss 2.000  dev CTC errors 75.0%  dev accuracy 50.0%"
    assert _state(record, narrow=True) == "CTC errors 75.0%"
    assert _state({"dev_error": 0.5}) == "dev error 50.0%"  # of an older run
