"""Training that starts with the model of another run."""

import pytest

from brctc.models import load_model
from brctc.train import RecipeError, read_metrics, train
from tests.train.tiny import EMFORMER, tiny_recipe

STAGE = {"steps": 20, "losses": {"ctc": {"kind": "ctc"}}}
TUNED = STAGE | {"steps": 2, "inherit": "whole"}


def recipe(folder, encoder=EMFORMER, stage=STAGE, **changes):
    return tiny_recipe(folder, model={"encoder": encoder}, stages={"only": stage}, **changes)


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A folder with a finished run of an online system."""
    folder = tmp_path_factory.mktemp("started")
    rate = {"peak_rate": 5e-3, "warmup_steps": 5}
    train(recipe(folder, optimiser=rate), folder / "run", progress=False)
    return folder


@pytest.mark.parametrize("chunk_frames", [8, 3])
def test_a_run_goes_on_where_another_ended(started, tmp_path, chunk_frames):
    """Also with chunks of another size: no weight depends on it."""
    encoder = EMFORMER | {"chunk_frames": chunk_frames, "right_context_frames": 2}
    tuned = recipe(started, encoder, TUNED, start=str(started / "run"))
    model = load_model(train(tuned, tmp_path / "run", progress=False))
    before = [line["loss"] for line in read_metrics(started / "run") if "seconds" in line]
    after = [line["loss"] for line in read_metrics(tmp_path / "run") if "seconds" in line]
    assert after[0] < 0.8 * before[0]
    assert model.tokenizer.to_dict() == load_model(started / "run" / "model").tokenizer.to_dict()
    assert model.system.config.encoder.chunk_frames == chunk_frames


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": EMFORMER | {"dim": 32}}, r"run: cannot inherit \S+: it has shape \(16,.* and \(32,"),
        ({"tokens": {"transcript": {"kind": "word"}}}, "run has char tokens for transcript, not word"),
        ({"start": "nowhere"}, "nowhere holds no model"),
    ],
)
def test_what_does_not_fit_is_refused(started, tmp_path, changes, message):
    options = {"stage": TUNED, "start": str(started / "run")} | changes
    with pytest.raises((RecipeError, FileNotFoundError), match=message):
        train(recipe(started, **options), tmp_path / "run", progress=False)


def test_the_first_stage_says_what_it_inherits(started):
    with pytest.raises(RecipeError, match=r"stages.only.inherit: what starts with run inherits"):
        recipe(started, start="run")
    with pytest.raises(RecipeError, match=r"stages.only.inherit: the first stage has nothing to inherit"):
        recipe(started, stage=TUNED)
