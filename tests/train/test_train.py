"""Whole trainings, tiny ones: what they write, what they refuse, and that they learn."""

import json
import math
import os
import shutil
import statistics
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open

from brctc.align import check_feasible
from brctc.data import Prepared
from brctc.data.batch import Padded
from brctc.data.loading import BatchLoader, split_batch
from brctc.data.sampling import PlannedBatch, Pool, Position
from brctc.data.subsampling import subsampled_lengths
from brctc.models import EmformerEncoder, System, SystemConfig, load_model
from brctc.runs import RunDirectory
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
from brctc.train.inherit import inherit
from brctc.train.journal import Journal
from brctc.train.losses import CTCConfig, DecoderLossConfig
from brctc.train.objective import Objective
from tests.train.tiny import (
    ATTENTION,
    EMFORMER,
    ENCODER,
    FINAL,
    MIDDLE,
    PLAIN,
    TRANSDUCER,
    decoder_loss,
    tiny_recipe,
)

torch.set_num_threads(1)
RISK = {"kind": "early-finish", "factor": [[0, 0], [10, 5]]}
HYBRID = {"attention": decoder_loss("attention", 0.7)}


def two_stages(steps, first, second, inherit):
    """CTC in the middle and at the end, and what else there is."""
    early = {"middle": MIDDLE | {"risk": RISK}, "final": FINAL | {"risk": RISK}}
    middle = MIDDLE | {"risk": {"kind": "early-finish", "factor": 5}}
    return {
        "early": {"steps": steps, "losses": early | first},
        "trimmed": {
            "steps": steps,
            "inherit": inherit,
            "losses": {"middle": middle, "final": FINAL} | second,
            "trim": {"margin": 3},
        },
    }


SYSTEMS = {
    # decoders, further losses of both stages, what the second inherits, how it is decoded
    "ctc": ({}, {}, {}, "whole", "ctc-greedy"),
    "attention": ({"attention": ATTENTION}, HYBRID, HYBRID, "whole", "attention"),
    # as in the paper: stage 1 has an attention decoder, stage 2 a fresh transducer instead
    "transducer": (
        {"attention": ATTENTION, "transducer": TRANSDUCER},
        HYBRID,
        {"transducer": decoder_loss("transducer")},
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
        model={"encoder": ENCODER, "decoders": decoders},
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
    for part in {"middle", "final", name} - {"ctc"}:
        losses = [line[part] for line in steps if part in line]
        assert statistics.mean(losses[-5:]) < 0.95 * losses[0]
    risks = [(line["factors"]["middle.risk"], line["factors"]["final.risk"]) for line in steps]
    assert (risks[5], risks[-1]) == ((2.5, 2.5), (5, 0))
    assert 0 < steps[-1]["factor"] <= 1
    assert "factor" not in steps[0]
    assert 0 <= [line for line in metrics if "dev_error" in line][-1]["dev_factor"] <= 1
    assert sum(step_shares(metrics).values()) == pytest.approx(1)
    timed = [line["loss_seconds"] for line in metrics if "loss_seconds" in line]
    assert [set(line) for line in timed] == [{"ctc", "trim", "step"}] * 2
    assert timed[0]["trim"] < timed[1]["trim"] < timed[1]["step"]

    model = load_model(model_dir)
    assert model.trim == recipe.stages["trimmed"].trim
    assert model.description["risks"]["middle"] == {"kind": "early-finish", "factor": 5.0}
    assert model.description["spikes_moved"]
    assert model.description["recipe"] == json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert list(model.system.decoders) == ([] if name == "ctc" else [name])
    averaged = average_weights(list_checkpoints(tmp_path / "run" / "checkpoints")[-2:])
    assert all(averaged[f"system.{key}"].equal(value) for key, value in model.system.state_dict().items())
    check_snapshots(tmp_path / "run" / "snapshots", model.tokenizer.size)
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_an_online_system_learns(tmp_path):
    """One stage, one CTC output."""
    risk = {"kind": "early-emission", "factor": [[0, 0], [10, 2]]}
    recipe = tiny_recipe(
        tmp_path,
        model={"encoder": EMFORMER, "decoders": {"attention": ATTENTION}},
        optimiser={"peak_rate": 5e-3, "warmup_steps": 5},
        stages={"early": {"steps": 25, "losses": {"ctc": {"kind": "ctc", "risk": risk}} | HYBRID}},
        monitor={"dev_utterances": 5, "snapshot_steps": [0, 20], "snapshot_utterances": 2},
    )
    model = load_model(train(recipe, tmp_path / "run", progress=False))
    metrics = read_metrics(tmp_path / "run")
    steps = [line for line in metrics if "seconds" in line]
    assert "factor" not in steps[-1]
    for part in ("ctc", "attention"):
        assert statistics.mean(line[part] for line in steps[-5:]) < 0.95 * steps[0][part]
    dev = [line for line in metrics if "dev_error" in line]
    assert dev
    assert all(line["dev_errors"] == {"ctc": line["dev_error"]} for line in dev)
    assert not any("dev_factor" in line for line in dev)
    assert model.description["risks"] == {"ctc": {"kind": "early-emission", "factor": 2.0}}
    assert not model.description["spikes_moved"]
    assert model.trim is None
    assert isinstance(model.system.encoder, EmformerEncoder)
    with safe_open(tmp_path / "run" / "snapshots" / "step-00020.safetensors", "pt") as file:
        metadata = {name: json.loads(value) for name, value in file.metadata().items()}
    assert (metadata["risk"], metadata["factor"]) == ("early-emission", 2.0)


def test_spikes_stay_where_an_earlier_stage_has_moved_them(tmp_path):
    """Appendix D's plain second stage: there are still no times to give out."""
    stages = two_stages(2, {}, {}, "whole")
    stages["trimmed"]["losses"]["middle"] = MIDDLE
    model = load_model(train(tiny_recipe(tmp_path, stages=stages), tmp_path / "run", progress=False))
    assert {risk["kind"] for risk in model.description["risks"].values()} == {"none"}
    assert model.description["spikes_moved"]


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


def test_a_prepared_corpus_is_not_mistaken(trained, tmp_path):
    corpus = tiny_recipe(trained).corpus.model_dump()
    corpus["train_strings"] = 50
    with pytest.raises(RecipeError, match=r"prepared with corpus.train_strings 60, the recipe says 50"):
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
    known = {utterance.id for utterance in Prepared(trained / "prepared", "train").examples}
    assert saved["ids"]
    assert set(saved["ids"]) <= known
    assert (saved["stage"], saved["step"]) == ("first", 2)
    assert "NonFiniteError" in (tmp_path / "run" / "train.log").read_text().splitlines()[-1]


def first_cuts(prepared, count):
    """As a sampler hands them out."""
    from brctc.train import BatchConfig

    cuts, _ = next(Pool(prepared, BatchConfig(seconds=1000), seed=0).batches(Position().main))
    return cuts[:count]


def test_parts_add_up_to_the_batch(trained):
    """However a batch is cut, the weighed gradients of its parts are that of the whole."""
    prepared = Prepared(trained / "prepared", "train")
    tokenizers = load_model(trained / "run" / "model").tokenizers
    parts = {"encoder": ENCODER | {"dropout": 0}, "decoders": {"attention": ATTENTION | {"dropout": 0}}}
    torch.manual_seed(0)
    size = {"transcript": tokenizers["transcript"].size}
    system = System(SystemConfig.model_validate(parts), prepared.feature_dim, size)
    losses = {
        "middle": CTCConfig(on="middle"),
        "final": CTCConfig(),
        "said": DecoderLossConfig(of="attention"),
    }
    objective = Objective(system, losses).double()
    plan = PlannedBatch(first_cuts(prepared, 7), Position())
    loader = BatchLoader(prepared, tokenizers)

    def gradients(num_parts):
        objective.zero_grad()
        loaded = loader.load_parts(plan, range(num_parts), num_parts)
        for batch in loaded.values():
            source = Padded(batch.source.values.double(), batch.source.lengths)
            loss = objective(replace(batch, source=source), 0)["loss"]
            (len(batch) / len(plan.cuts) * loss).backward()
        return [parameter.grad.clone() for parameter in objective.parameters()]

    whole = gradients(1)
    for num_parts in (2, 3, 10):  # of ten parts, three are empty
        for a, b in zip(whole, gradients(num_parts), strict=True):
            assert a.sub(b).abs().max() <= 1e-6 * max(1, a.abs().max())
    ids = sorted(cut.id for part in range(3) for cut in split_batch(plan.cuts, part, 3))
    assert ids == sorted(cut.id for cut in plan.cuts)


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
    decoders = {"attention": ATTENTION, "transducer": TRANSDUCER}
    config = SystemConfig.model_validate({"encoder": ENCODER, "decoders": decoders})
    before, system = (System(config, 8, {"transcript": 12}) for _ in range(2))
    own = {name: tensor.clone() for name, tensor in system.state_dict().items()}
    inherit(system, before, "encoder")
    for name, tensor in system.state_dict().items():
        source = own if name.startswith("decoders.") else before.state_dict()
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
    stage = {"steps": 2, "losses": PLAIN, "curriculum": {"max_labels": 9, "share": 0.5}}
    with pytest.raises(ValueError, match=r"curriculum.max_labels is 9.* 1 to 4 labels"):
        train(tiny_recipe(trained, stages={"only": stage}), tmp_path / "run", progress=False)


def test_tails_are_trimmed_as_labels_allow(trained):
    """Each encoder frame count is what the labels need or more; the masks are those of SpecAugment alone."""
    prepared = Prepared(trained / "prepared", "train")
    tokenizers = load_model(trained / "run" / "model").tokenizers
    augment = tiny_recipe(trained).augment
    plan = PlannedBatch(first_cuts(prepared, 40), Position(step=3))
    settings = [augment, augment.model_copy(update={"trim_tail_frames": 30})]
    (whole,), (cut,), (same,) = (
        BatchLoader(prepared, tokenizers, setting, 1, 2).load_parts(plan, [0], 1).values()
        for setting in (*settings, settings[1])
    )
    assert cut.source.values.equal(same.source.values)
    assert cut.source.lengths.equal(same.source.lengths)
    taken = whole.source.lengths - cut.source.lengths
    assert 0 <= taken.min() < taken.max() <= 30
    assert (taken > 0).float().mean() > 0.5
    targets = cut.targets["transcript"]
    assert not check_feasible(targets.values, subsampled_lengths(cut.source.lengths, 2), targets.lengths)
    assert cut.source.values.shape[1] == cut.source.lengths.max()
    for n, length in enumerate(cut.source.lengths):
        assert cut.source.values[n, :length].equal(whole.source.values[n, :length])
        assert cut.source.values[n, length:].eq(0).all()


CTC = {"ctc": {"kind": "ctc"}}
PENALTY = {"kind": "ctc", "risk": {"kind": "delay-penalty", "factor": [[0, 0], [2, 0.5]]}}
OPTIONS = {
    "trim-tail": ({"augment": {"trim_tail_frames": 8}}, {}),
    "delay-penalty": ({}, {"ctc": PENALTY}),
    "attention-dropout": ({"model": {"encoder": EMFORMER | {"attention_dropout": 0.3}}}, {}),
    "summary": ({"model": {"encoder": EMFORMER | {"memory": "summary"}}}, {}),
    "peak-first": ({}, {"first": {"kind": "peak-first", "weight": [[0, 0], [2, 0.5]]}}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_act_and_repeat(trained, tmp_path, name):
    """An option changes what is learnt, the same way every time and after a resume."""
    changes, losses = OPTIONS[name]
    shared = {"model": {"encoder": EMFORMER}, "checkpoints": {"every_steps": 2, "keep": 3, "average": 1}}
    plain = tiny_recipe(trained, **shared, stages={"only": {"steps": 5, "losses": CTC}}, augment={})
    stages = {"only": {"steps": 5, "losses": CTC | losses}}
    other = tiny_recipe(trained, **{"augment": {}, **shared, **changes}, stages=stages)
    for folder, recipe in (("plain", plain), ("other", other), ("resumed", other)):
        train(recipe, tmp_path / folder, progress=False)
    shutil.rmtree(tmp_path / "resumed" / "model")
    for path in list_checkpoints(tmp_path / "resumed" / "checkpoints")[1:]:
        shutil.rmtree(path)
    train(other, tmp_path / "resumed", resume=True, progress=False)
    names = [weights_name(tmp_path / folder) for folder in ("plain", "other", "resumed")]
    assert names[0] != names[1] == names[2]
    steps = [line for line in read_metrics(tmp_path / "other") if "seconds" in line]
    weights = [0, 0.25, 0.5, 0.5, 0.5] if name == "peak-first" else [0] * 5
    for line, weight in zip(steps, weights, strict=True):
        assert line["loss"] == pytest.approx(line["ctc"] + weight * line.get("first", 0))
        assert ("first" in line) == (weight > 0)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
def test_a_full_disk_is_named(tmp_path):
    """Whatever a journal cannot write, the message says which file it was."""
    run = RunDirectory(tmp_path)
    with Journal(run, done=0, tensorboard=False, progress=False) as journal:
        journal._metrics = open("/dev/full", "w")  # noqa: SIM115
        with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
            journal.step({"step": 1, "loss": 1.0, "rate": 0.1})
        journal._metrics = open(os.devnull, "w")  # noqa: SIM115
