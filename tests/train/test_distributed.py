"""Many processes train the same model as one."""

import subprocess
import sys
from pathlib import Path

import pytest

from brctc.train import latest_checkpoint, read_metrics, train
from tests.train.tiny import ATTENTION, ENCODER, decoder_loss, tiny_recipe

SAID = {"attention": decoder_loss("attention")}
ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, torch
from pathlib import Path
from brctc.train import Recipe, train
torch.set_num_threads(1)
train(Recipe.model_validate_json(Path(sys.argv[1]).read_text()), sys.argv[2], progress=False)
"""


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    """With dropout and augmentation; some batches have one utterance, so one process has nothing to do."""
    optimiser = {"peak_rate": 2e-3, "warmup_steps": 3, "accumulate": 2}
    plain = tiny_recipe(tmp_path).model_dump(mode="json")["stages"]
    stages = {name: stage | {"losses": stage["losses"] | SAID} for name, stage in plain.items()}
    model = {"encoder": ENCODER, "decoders": {"attention": ATTENTION}}
    monitor = {"dev_utterances": 10, "tensorboard": False}  # of a batch, the second process has nothing
    recipe = tiny_recipe(
        tmp_path,
        model=model,
        optimiser=optimiser,
        batch={"seconds": 1.4},
        stages=stages,
        monitor=monitor,
    )
    train(recipe, tmp_path / "one", progress=False)
    (tmp_path / "recipe.json").write_text(recipe.model_dump_json())
    (tmp_path / "script.py").write_text(SCRIPT)
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [tmp_path / "script.py", tmp_path / "recipe.json", tmp_path / "two"]
    subprocess.run([sys.executable, "-m", *command, *map(str, arguments)], check=True, cwd=ROOT)

    one, two = (latest_checkpoint(tmp_path / name / "checkpoints") for name in ("one", "two"))
    for name, weight in one[1].model.items():
        assert (weight - two[1].model[name]).abs().max() <= 1e-6, name
    first, second = (
        [line for line in read_metrics(tmp_path / name) if "seconds" in line] for name in ("one", "two")
    )
    assert [line["loss"] for line in first] == pytest.approx([line["loss"] for line in second], rel=1e-6)
    assert min(line["utterances"] for line in first) == 1
    assert [line["frames"] for line in first] == [line["frames"] for line in second]
    first, second = (
        [line for line in read_metrics(tmp_path / name) if "dev_error" in line] for name in ("one", "two")
    )
    for name in ("dev_error", "dev_accuracy"):
        assert [line[name] for line in first] == [line[name] for line in second]
    assert (tmp_path / "two" / "model" / "model.json").exists()
