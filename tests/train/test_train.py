"""Whole trainings, tiny ones: what they write, what they refuse, and that they learn."""

import json
import math
import shutil
import statistics

import pytest
import torch
from safetensors import safe_open

from brctc.align import check_feasible
from brctc.data import Prepared, make_batch
from brctc.models import Objective, OnlineEncoder, System, SystemConfig, load_model, subsampled_lengths
from brctc.train import (
    CheckpointError,
    NonFiniteError,
    RecipeError,
    average_weights,
    list_checkpoints,
    read_metrics,
    step_shares,
    train,
)
from brctc.train.batch_order import PlannedBatch, Position
from brctc.train.loader import load_parts, split_batch
from brctc.train.stages import inherit
from tests.train.tiny import ATTENTION, EMFORMER, ENCODER, TRANSDUCER, tiny_recipe

torch.set_num_threads(1)
RISK = {"kind": "early-finish", "factor": [[0, 0], [10, 5]]}
CTC = {"inter": 0.5, "ctc": 1.0}
HYBRID = {"ctc": 0.3, "attention": 0.7}


def two_stages(steps, first, second, inherit):
    return {
        "early": {"steps": steps, "weights": first, "inter_risk": RISK, "final_risk": RISK},
        "trimmed": {
            "steps": steps,
            "inherit": inherit,
            "weights": second,
            "inter_risk": {"kind": "early-finish", "factor": 5},
            "trim": {"margin": 3},
        },
    }


SYSTEMS = {
    # decoders, weights of both stages, what the second inherits, how it is decoded
    "ctc": ({}, CTC, CTC, "whole", "ctc-greedy"),
    "attention": ({"attention": ATTENTION}, HYBRID, HYBRID, "whole", "attention"),
    # as in the paper: stage 1 has an attention decoder, stage 2 a fresh transducer instead
    "transducer": (
        {"attention": ATTENTION, "transducer": TRANSDUCER},
        HYBRID,
        {"ctc": 0.5, "transducer": 1.0},
        "encoder",
        "transducer",
    ),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_each_system_learns(tmp_path, name):
    decoders, first, second, inherited, method = SYSTEMS[name]
    schedule = {"schedule": "hold-cosine", "hold": 0.5, "floor": 0.1}
    recipe = tiny_recipe(
        tmp_path,
        model={"encoder": ENCODER, **decoders},
        optimiser={"peak_rate": 5e-3, "warmup_steps": 5, **schedule},
        stages=two_stages(25, first, second, inherited),
        decode={"method": method},
        checkpoints={"every_epochs": 2, "keep": 3, "average": 2},
        monitor={"dev_utterances": 5, "snapshot_steps": [0, 20, 50], "snapshot_utterances": 2},
    )
    model_dir = train(recipe, tmp_path / "run", progress=False)

    metrics = read_metrics(tmp_path / "run")
    steps = [line for line in metrics if "seconds" in line]
    assert [line["step"] for line in steps] == list(range(1, 51))
    for part in {"ctc", "inter_ctc", name}:
        losses = [line[part] for line in steps if part in line]
        assert statistics.mean(losses[-5:]) < 0.95 * losses[0]
    assert (steps[5]["inter_risk"], steps[5]["final_risk"]) == (2.5, 2.5)
    assert (steps[-1]["inter_risk"], steps[-1]["final_risk"]) == (5, 0)
    assert 0 < steps[-1]["factor"] <= 1
    assert "factor" not in steps[0]
    assert 0 <= [line for line in metrics if "dev_error" in line][-1]["dev_factor"] <= 1
    assert sum(step_shares(metrics).values()) == pytest.approx(1)
    timed = [line["loss_seconds"] for line in metrics if "loss_seconds" in line]
    assert [set(line) for line in timed] == [{"ctc", "trim", "step"}] * 2
    assert timed[0]["trim"] < timed[1]["trim"] < timed[1]["step"]

    model = load_model(model_dir)
    assert model.trim == recipe.stages["trimmed"].trim
    assert model.description["risk"] == {"kind": "early-finish", "factor": 5.0}
    assert model.description["recipe"] == json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert (model.system.attention is not None) == (name == "attention")
    assert (model.system.transducer is not None) == (name == "transducer")
    averaged = average_weights(list_checkpoints(tmp_path / "run" / "checkpoints")[-2:])
    assert all(averaged[key].equal(value) for key, value in model.system.state_dict().items())
    check_snapshots(tmp_path / "run" / "snapshots", model.tokenizer.size)
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_an_online_system_learns(tmp_path):
    """One stage, one CTC output; the risk that it is known by is the final one's."""
    risk = {"kind": "early-emission", "factor": [[0, 0], [10, 2]]}
    recipe = tiny_recipe(
        tmp_path,
        model={"encoder": EMFORMER, "attention": ATTENTION},
        optimiser={"peak_rate": 5e-3, "warmup_steps": 5},
        stages={"early": {"steps": 25, "weights": {"inter": 0, **HYBRID}, "final_risk": risk}},
        monitor={"dev_utterances": 5, "snapshot_steps": [0, 20], "snapshot_utterances": 2},
    )
    model = load_model(train(recipe, tmp_path / "run", progress=False))
    metrics = read_metrics(tmp_path / "run")
    steps = [line for line in metrics if "seconds" in line]
    assert not {"inter_ctc", "factor"} & steps[-1].keys()
    for part in ("ctc", "attention"):
        assert statistics.mean(line[part] for line in steps[-5:]) < 0.95 * steps[0][part]
    dev = [line for line in metrics if "dev_error" in line]
    assert all(line["dev_error"] == line["dev_inter_error"] for line in dev)
    assert model.description["risk"] == {"kind": "early-emission", "factor": 2.0}
    assert model.trim is None
    assert isinstance(model.system.encoder, OnlineEncoder)
    with safe_open(tmp_path / "run" / "snapshots" / "step-00020.safetensors", "pt") as file:
        metadata = {name: json.loads(value) for name, value in file.metadata().items()}
    assert (metadata["risk"], metadata["factor"]) == ("early-emission", 2.0)


def check_snapshots(folder, classes):
    names = [f"step-000{step}.safetensors" for step in ("00", "20", "50")]
    assert sorted(path.name for path in folder.iterdir()) == names
    with safe_open(folder / names[1], "pt") as file:
        posterior, gradient = file.get_tensor("1.posterior"), file.get_tensor("1.gradient")
        metadata = {name: json.loads(value) for name, value in file.metadata().items()}
    assert posterior.dtype == gradient.dtype == torch.float16
    assert posterior.shape == gradient.shape == (len(posterior), classes)
    ones = torch.ones(len(posterior))
    assert torch.allclose(posterior.float().sum(1), ones, atol=5e-3)
    # every path is in one class at each frame: so much of -log P's derivative by log_probs
    assert torch.allclose(gradient.float().sum(1), -ones, atol=5e-3)
    assert metadata["ids"] == ["dev-00000", "dev-00001"]
    assert (metadata["step"], metadata["stage"], metadata["factor"]) == (20, "early", 5.0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a finished run of the tiny recipe and its prepared corpus."""
    folder = tmp_path_factory.mktemp("trained")
    train(tiny_recipe(folder), folder / "run", progress=False)
    return folder


def weights_name(run_dir):
    """Has the weights' checksum in it."""
    return next((run_dir / "model").glob("*.safetensors")).name


def test_a_run_is_not_overwritten(trained, tmp_path):
    shutil.copytree(trained / "run", run_dir := tmp_path / "run")
    recipe = tiny_recipe(trained)
    with pytest.raises(FileExistsError, match="run holds a run already: resume it"):
        train(recipe, run_dir, progress=False)
    with pytest.raises(RecipeError, match="another recipe: seed was 0, now it is 5"):
        train(tiny_recipe(trained, seed=5), run_dir, resume=True, progress=False)
    assert train(recipe, run_dir, resume=True) == run_dir / "model"  # complete: left as it is
    content = json.loads((run_dir / "recipe.json").read_text())
    del content["model"]["encoder"]["kind"]  # as if begun before there was such a key
    (run_dir / "recipe.json").write_text(json.dumps(content))
    assert train(recipe, run_dir, resume=True) == run_dir / "model"

    (run_dir / "model" / "model.json").unlink()  # as if killed before the very end
    newest = list_checkpoints(run_dir / "checkpoints")[-1]
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=rf"{newest.name} is corrupt: model.safetensors"):
        train(recipe, run_dir, resume=True, progress=False)
    train(recipe, run_dir, resume=True, fall_back=True, progress=False)
    assert weights_name(run_dir) == weights_name(trained / "run")
    assert (run_dir / "checkpoints" / f"damaged-{newest.name}").exists()


def test_runs_repeat_and_seeds_matter(trained, tmp_path):
    train(tiny_recipe(trained), tmp_path / "same", progress=False)
    train(tiny_recipe(trained, seed=1), tmp_path / "other", progress=False)
    names = [weights_name(path) for path in (trained / "run", tmp_path / "same", tmp_path / "other")]
    assert names[0] == names[1] != names[2]


def test_one_training_at_a_time(trained, tmp_path):
    import fcntl

    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(FileExistsError, match="another training is running"):
            train(tiny_recipe(trained), tmp_path, progress=False)


def test_a_prepared_corpus_is_not_mistaken(trained, tmp_path):
    corpus = tiny_recipe(trained).corpus.model_dump()
    corpus["options"]["train_strings"] = 50
    with pytest.raises(RecipeError, match=r"prepared with options.train_strings 60, the recipe says 50"):
        train(tiny_recipe(trained, corpus=corpus), tmp_path / "other", progress=False)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_non_finite_loss_names_its_batch(trained, tmp_path, accumulate):
    """A learning rate that blows the weights up: the second step cannot be computed."""
    optimiser = {"peak_rate": 1e30, "warmup_steps": 0, "accumulate": accumulate}
    message = r"step 2 of stage 'first': the loss is nan .* train-000"
    with pytest.raises(NonFiniteError, match=message) as caught:
        train(tiny_recipe(trained, optimiser=optimiser), tmp_path / "run", progress=False)
    (path,) = (tmp_path / "run").glob("non-finite-*.json")
    assert path.name in str(caught.value)
    saved = json.loads(path.read_text())
    known = {utterance.id for utterance in Prepared(trained / "prepared", "train").utterances}
    assert saved["ids"]
    assert set(saved["ids"]) <= known
    assert (saved["stage"], saved["step"]) == ("first", 2)
    assert "NonFiniteError" in (tmp_path / "run" / "train.log").read_text().splitlines()[-1]


def test_parts_add_up_to_the_batch(trained):
    """However a batch is cut, the weighed gradients of its parts are that of the whole."""
    prepared = Prepared(trained / "prepared", "train")
    tokenizer = load_model(trained / "run" / "model").tokenizer
    parts = {"encoder": ENCODER | {"dropout": 0}, "attention": ATTENTION | {"dropout": 0}}
    torch.manual_seed(0)
    system = System(SystemConfig.model_validate(parts), prepared.feature_dim, tokenizer.size).double()
    plan = PlannedBatch(list(range(7)), Position())

    def gradients(num_parts):
        system.zero_grad()
        for batch in load_parts(prepared, tokenizer, plan, range(num_parts), num_parts, None, 0, 1).values():
            batch.features = batch.features.double()
            (len(batch.ids) / len(plan.indices) * system(batch, Objective())["loss"]).backward()
        return [parameter.grad.clone() for parameter in system.parameters()]

    whole = gradients(1)
    for num_parts in (2, 3, 10):  # of ten parts, three are empty
        for a, b in zip(whole, gradients(num_parts), strict=True):
            assert a.sub(b).abs().max() <= 1e-6 * max(1, a.abs().max())
    assert sorted(i for part in range(3) for i in split_batch(plan.indices, part, 3)) == plan.indices


def test_accumulation_is_the_same_training(trained, tmp_path):
    losses = []
    for accumulate in (1, 3):
        recipe = tiny_recipe(
            trained,
            model={"encoder": ENCODER | {"dropout": 0}},
            augment=None,
            optimiser={"peak_rate": 1e-3, "warmup_steps": 3, "accumulate": accumulate},
        )
        train(recipe, run_dir := tmp_path / f"run{accumulate}", progress=False)
        losses.append([line["loss"] for line in read_metrics(run_dir) if "seconds" in line])
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-6)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_inheritance():
    config = SystemConfig.model_validate(
        {"encoder": ENCODER, "attention": ATTENTION, "transducer": TRANSDUCER}
    )
    before, system = System(config, 8, 12), System(config, 8, 12)
    own = {name: tensor.clone() for name, tensor in system.state_dict().items()}
    inherit(system, before, "encoder")
    for name, tensor in system.state_dict().items():
        source = own if name.startswith(("attention", "transducer")) else before.state_dict()
        assert tensor.equal(source[name]), name
    inherit(system, before, "whole")
    assert all(tensor.equal(before.state_dict()[name]) for name, tensor in system.state_dict().items())


def test_bf16_only_where_the_device_has_it(trained, tmp_path):
    recipe = tiny_recipe(trained, precision="bf16")
    if torch.cuda.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        train(recipe, tmp_path / "run", progress=False)
        assert math.isfinite(read_metrics(tmp_path / "run")[0]["loss"])
    else:
        with pytest.raises(RecipeError, match="precision: this cpu has no bf16"):
            train(recipe, tmp_path / "run", progress=False)


def test_a_curriculum_needs_short_strings(trained, tmp_path):
    stage = {"steps": 2, "weights": CTC, "curriculum": {"max_labels": 9, "share": 0.5}}
    with pytest.raises(ValueError, match=r"curriculum.max_labels is 9.* 1 to 4 labels"):
        train(tiny_recipe(trained, stages={"only": stage}), tmp_path / "run", progress=False)


def test_augmentation_is_a_function_of_seed_step_and_part(trained):
    prepared = Prepared(trained / "prepared", "train")
    tokenizer = load_model(trained / "run" / "model").tokenizer
    augment = tiny_recipe(trained).augment

    def features(seed, step, part):
        plan = PlannedBatch([3, 4, 5, 3, 4, 5], Position(step=step))
        (batch,) = load_parts(prepared, tokenizer, plan, [part], 2, augment, seed, 1).values()
        return batch.features

    made = [features(1, 7, 0), features(1, 7, 0), features(2, 7, 0), features(1, 8, 0)]
    assert made[0].equal(made[1])
    assert not made[0].equal(made[2])
    assert not made[0].equal(made[3])
    assert not made[0].equal(make_batch(prepared, [3, 5, 4], tokenizer).features)


def test_tails_are_trimmed_as_labels_allow(trained):
    """Each encoder frame count is what the labels need or more; the masks are those of SpecAugment alone."""
    prepared = Prepared(trained / "prepared", "train")
    tokenizer = load_model(trained / "run" / "model").tokenizer
    augment = tiny_recipe(trained).augment
    plan = PlannedBatch(list(range(40)), Position(step=3))
    settings = [augment, augment.model_copy(update={"trim_tail_frames": 30})]
    (whole,), (cut,), (same,) = (
        load_parts(prepared, tokenizer, plan, [0], 1, setting, 1, 2).values()
        for setting in (*settings, settings[1])
    )
    assert cut.features.equal(same.features)
    assert cut.lengths.equal(same.lengths)
    taken = whole.lengths - cut.lengths
    assert 0 <= taken.min() < taken.max() <= 30
    assert (taken > 0).float().mean() > 0.5
    assert not check_feasible(cut.targets, subsampled_lengths(cut.lengths, 2), cut.target_lengths)
    assert cut.features.shape[1] == cut.lengths.max()
    for n, length in enumerate(cut.lengths):
        assert cut.features[n, :length].equal(whole.features[n, :length])
        assert cut.features[n, length:].eq(0).all()


PEERS = {
    "trim-tail": ({"augment": {"trim_tail_frames": 8}}, {}),
    "delay-penalty": ({}, {"final_risk": {"kind": "delay-penalty", "factor": [[0, 0], [2, 0.5]]}}),
    "peak-first": ({}, {"peak_first": [[0, 0], [2, 0.5]]}),
}


@pytest.mark.parametrize("name", PEERS)
def test_peers_act_and_repeat(trained, tmp_path, name):
    """An option changes what is learnt, the same way every time and after a resume."""
    changes, options = PEERS[name]
    stage = {"steps": 5, "weights": {"inter": 0, "ctc": 1.0}}
    shared = {"model": {"encoder": EMFORMER}, "checkpoints": {"every_steps": 2, "keep": 3, "average": 1}}
    plain = tiny_recipe(trained, **shared, stages={"only": stage}, augment={})
    peer = tiny_recipe(trained, **{"augment": {}, **shared, **changes}, stages={"only": stage | options})
    for folder, recipe in (("plain", plain), ("peer", peer), ("resumed", peer)):
        train(recipe, tmp_path / folder, progress=False)
    shutil.rmtree(tmp_path / "resumed" / "model")
    for path in list_checkpoints(tmp_path / "resumed" / "checkpoints")[1:]:
        shutil.rmtree(path)
    train(peer, tmp_path / "resumed", resume=True, progress=False)
    names = [weights_name(tmp_path / folder) for folder in ("plain", "peer", "resumed")]
    assert names[0] != names[1] == names[2]
    steps = [line for line in read_metrics(tmp_path / "peer") if "seconds" in line]
    weights = [0, 0.25, 0.5, 0.5, 0.5] if name == "peak-first" else [0] * 5
    for line, weight in zip(steps, weights, strict=True):
        assert line["loss"] == pytest.approx(line["ctc"] + weight * line.get("peak_first", 0))
        assert ("peak_first" in line) == (weight > 0)
