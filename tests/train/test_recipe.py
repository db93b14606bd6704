"""Recipes: what is wrong is refused before anything runs, by the name of its key."""

import json
from pathlib import Path

import pytest
import torch
import yaml

from brctc.data import AugmentConfig
from brctc.models import (
    AttentionConfig,
    EmformerConfig,
    EncoderConfig,
    System,
    TransducerConfig,
    TrimConfig,
    count_parameters,
)
from brctc.train import (
    CheckpointConfig,
    OptimiserConfig,
    RecipeError,
    RiskConfig,
    WeightConfig,
    load_recipe,
    parse_recipe,
)
from brctc.train.recipe import differences
from tests.train.tiny import ATTENTION, EMFORMER, TRANSDUCER, tiny_recipe

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture
def content(tmp_path):
    return tiny_recipe(tmp_path).model_dump(mode="json")


def changed(content, key, value):
    """The content with one value changed; `...` removes it."""
    *sections, last = (int(part) if part.isdecimal() else part for part in key.split("."))
    place = content
    for section in sections:
        if place[section] is None:
            place[section] = {}
        place = place[section]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return content


ONE_DECODER = {"attention": ATTENTION}

REFUSED = [
    # the key, its value, and what the message says
    ("optimiser.peak_lr", 1, "optimiser.peak_lr: unknown key; did you mean optimiser.peak_rate?"),
    ("stages.second.inter_risk.factr", 1, "unknown key; did you mean stages.second.inter_risk.factor?"),
    ("warmup_steps", 5, "warmup_steps: unknown key; did you mean optimiser.warmup_steps?"),
    ("model.encoder.zzz", 5, "model.encoder.zzz: unknown key; valid here: kind, subsampling, "),
    ("corpus.options.train_string", 5, "did you mean corpus.options.train_strings?"),
    ("corpus.options.train_strings", 0, "corpus.options.train_strings: input should be greater than"),
    ("corpus.options.features", {}, "corpus.options: features have a section of their own"),
    ("corpus.name", "handwritting", "did you mean 'handwriting'?"),
    ("corpus.name", None, "corpus.options.train_strings: unknown key"),
    ("corpus.manifests", {"train": "a", "dev": "b"}, "corpus.name: say either the name .* or your own"),
    ("corpus.manifests", {"trian": "a"}, "corpus.manifests.trian"),
    ("features", {}, "features: handwriting has none but its pixels"),
    ("batch_s", ..., "batch_s: missing"),
    ("batch_s", "many", "batch_s: .*number.*got 'many'"),
    ("batch_s", float("inf"), "batch_s: .*finite"),
    ("precision", "bf-16", "precision: expected 'float32' or 'bf16'; did you mean 'bf16'?"),
    ("optimiser.hold", 0.5, "optimiser.hold: the schedule inverse-sqrt has none"),
    ("optimiser.schedule", "hold-cosine", "optimiser.hold: the schedule hold-cosine needs it"),
    ("stages", {}, "stages: .*at least 1 item"),
    ("stages.first.epochs", 3, "stages.first.steps: a stage lasts so many steps or so many epochs"),
    ("stages.first.steps", None, "stages.first.steps: a stage lasts so many steps or so many epochs"),
    ("stages.first.inherit", "whole", "stages.first.inherit: the first stage has nothing to inherit"),
    ("stages.second.inherit", None, "stages.second.inherit: a later stage inherits"),
    ("stages.first.weights.attention", 0.7, "stages.first.weights.attention: .*model.attention is missing"),
    ("stages.first.weights.transducer", 1, "stages.first.weights.transducer: .*model.transducer is missing"),
    ("model.attention", ATTENTION, "model.attention: no stage trains it"),
    ("model.transducer", TRANSDUCER, "model.transducer: no stage trains it"),
    ("stages.second.weights", {"inter": 0, "ctc": 1}, "stages.second.inter_risk: has no effect"),
    ("stages.first.weights", {"inter": 1, "ctc": 1}, "stages.first.final_risk: has no effect"),
    ("stages.first.inter_risk", {"kind": "none", "factor": 3}, 'inter_risk.factor: a risk of kind "none"'),
    ("stages.first.inter_risk", {"kind": "early-finish"}, "inter_risk.factor: .*needs a factor above 0"),
    ("stages.first.inter_risk.kind", "early-finnish", "did you mean 'early-finish'?"),
    ("stages.first.inter_risk.factor", [[0, 1], [0, 2]], "inter_risk.factor: .*must rise, but 0 follows 0"),
    (
        "stages.first.inter_risk.factor",
        [[0.5, 1]],
        "the step of the point .* whole number",
    ),
    ("stages.first.inter_risk.factor", [3], "inter_risk.factor: .*got the point 3"),
    ("stages.first.inter_risk.factor", [], "inter_risk.factor: .*got an empty list"),
    ("stages.first.inter_risk.factor", -1, "inter_risk.factor: expected a finite number from 0"),
    ("stages.first.inter_risk.kind", "delay_penalty", "did you mean 'delay-penalty'?"),
    (
        "stages.first.final_risk",
        {"kind": "delay-penalty"},
        "final_risk.factor: .*delay-penalty needs a factor",
    ),
    ("stages.first.peak_first", -1, "stages.first.peak_first: expected a finite number from 0"),
    ("stages.first.peak_first", [[5, 1], [2, 0]], "stages.first.peak_first: .*must rise, but 2 follows 5"),
    (
        "stages.first",
        {"steps": 3, "weights": {"inter": 1, "ctc": 1}, "peak_first": 0.1},
        "first.peak_first: has no",
    ),
    ("augment.trim_tail_frames", -1, "augment.trim_tail_frames: input should be greater"),
    ("augment.trim_tail_frames", 2.5, "augment.trim_tail_frames: .*valid integer"),
    ("augment.trim_tail", 5, "unknown key; did you mean augment.trim_tail_frames?"),
    ("stages.first.trim", {"threshold": 2}, "stages.first.trim.threshold: input should be less than 1"),
    ("stages.first.curriculum.share", 1.5, "stages.first.curriculum.share: "),
    ("decode.ctc_weight", 1.0, "decode.ctc_weight: "),
    ("checkpoints.average", 4, "checkpoints.average: 4 are to be averaged, but keep is 3"),
    ("checkpoints.every_epochs", 1, "checkpoints.every_steps: say either every_steps or every_epochs"),
    ("decode.method", "transducer", "decode.method: the last stage does not train the decoder"),
    ("decode.method", "attention", "decode.method: the last stage does not train the decoder"),
    ("tokens", {"kind": "bpe"}, 'tokens: kind "bpe" needs a size'),
    ("model.encoder.heads", 3, "model.encoder: dim is 16, expected an even number that 3 heads divide"),
    ("seed", -1, "seed: "),
    ("model.encoder.kind", "former", "model.encoder.kind: expected 'conformer', 'emformer', got 'former'"),
    ("model.encoder", {"chunk_frames": 8}, "model.encoder.chunk_frames: unknown key"),
    ("model.encoder", {**EMFORMER, "chunk_frame": 8}, "chunk_frame: .* mean model.encoder.chunk_frames?"),
    ("model.encoder", {**EMFORMER, "chunk_frames": 0}, "model.encoder.chunk_frames: input should be greater"),
    ("model.encoder", {**EMFORMER, "heads": 3}, "model.encoder: dim is 16, expected"),
    (
        "model.encoder",
        EMFORMER,
        "stages.first.weights.inter: is 0.5, but an emformer has no intermediate CTC",
    ),
]


@pytest.mark.parametrize(("key", "value", "message"), REFUSED)
def test_refusals(content, key, value, message):
    with pytest.raises(RecipeError, match=message):
        parse_recipe(changed(content, key, value), "my.yaml")


def test_trimming_without_an_intermediate_ctc(content):
    del content["stages"]["second"]["inter_risk"]
    content["stages"]["second"]["weights"] = {"inter": 0, "ctc": 1}
    with pytest.raises(RecipeError, match=r"stages.second.trim: needs a trained intermediate CTC"):
        parse_recipe(content)


def online(content):
    """One stage, as an emformer learns it."""
    risk = {"kind": "early-emission", "factor": 2}
    stage = {"steps": 3, "weights": {"inter": 0, "ctc": 1}, "final_risk": risk}
    return {**content, "model": {"encoder": EMFORMER}, "stages": {"only": stage}}


def test_an_emformer_has_one_ctc_and_nothing_to_trim(content):
    content = online(content)
    recipe = parse_recipe(content)
    stage = recipe.stages["only"]
    assert isinstance(recipe.model.encoder, EmformerConfig)
    assert recipe.risk_of(stage) == stage.final_risk == RiskConfig(kind="early-emission", factor=2)
    refused = [
        (
            {"inter": 0.1, "ctc": 1},
            None,
            r"stages.only.weights.inter: is 0.1, .* has no intermediate CTC: say 0",
        ),
        ({"inter": 0.1, "ctc": 1}, {}, r"stages.only.trim: an emformer has no second half to trim for"),
        ({"inter": 0, "ctc": 1}, {}, r"stages.only.trim: needs a trained intermediate CTC"),
    ]
    for weights, trim, message in refused:
        content["stages"]["only"].update(weights=weights, trim=trim)
        with pytest.raises(RecipeError, match=message):
            parse_recipe(content)


def test_an_emformer_hears_no_utterance_as_a_whole(content):
    content = online(content)
    content["model"]["normalisation"] = "utterance"
    with pytest.raises(RecipeError, match=r"model: normalisation is .utterance., but an emformer"):
        parse_recipe(content)


def test_greedy_decoding_without_a_final_ctc(content):
    content["stages"]["second"]["weights"] = {"inter": 1, "ctc": 1}
    with pytest.raises(RecipeError, match=r"decode.method: the last stage does not train the final CTC"):
        parse_recipe(content)


def test_nothing_to_train(content):
    for risk in ("inter_risk", "final_risk"):
        del content["stages"]["first"][risk]
    content["stages"]["first"]["weights"] = {"ctc": 0}
    with pytest.raises(RecipeError, match=r"stages.first.weights: all are 0"):
        parse_recipe(content)


def test_all_problems_at_once(content):
    content["optimiser"]["peak_lr"] = content["optimiser"].pop("peak_rate")
    content["batch_s"] = -1
    with pytest.raises(RecipeError) as caught:
        parse_recipe(content, "my.yaml")
    lines = str(caught.value).splitlines()
    assert all(line.startswith("my.yaml: ") for line in lines)
    assert [line.split(": ")[1] for line in lines] == [
        "optimiser.peak_rate",
        "optimiser.peak_lr",
        "batch_s",
    ]


def test_resolved_recipe_is_plain_and_complete(content):
    assert parse_recipe(json.loads(json.dumps(content))).model_dump(mode="json") == content
    assert content["corpus"]["options"]["stretch"] == 2  # a default that was not written down


def test_file_with_base_and_overrides(tmp_path, content):
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "middle.yaml").write_text("base: base.yaml\noptimiser: {warmup_steps: 7}\n")
    path = tmp_path / "child.yaml"
    path.write_text("base: middle.yaml\noptimiser: {peak_rate: 3e-4}\naugment: null\n")
    recipe = load_recipe(path, {"stages.second.steps": 5, "model.encoder.dropout": "0.2"})
    assert (recipe.optimiser.peak_rate, recipe.optimiser.warmup_steps) == (3e-4, 7)
    assert recipe.augment is None
    assert [stage.steps for stage in recipe.stages.values()] == [12, 5]
    assert recipe.model.encoder.dropout == 0.2


def test_sections_that_share_an_anchor_are_changed_one_by_one(tmp_path, content):
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(content))
    path = tmp_path / "anchors.yaml"
    path.write_text(
        "base: base.yaml\nstages: {first: {inter_risk: &a {kind: early-finish, factor: 5}, final_risk: *a}}\n"
    )
    first = load_recipe(path, {"stages.first.inter_risk.factor": 3}).stages["first"]
    assert (first.inter_risk.factor, first.final_risk.factor) == (3, 5)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"stages.third.steps": 5}, "stages.third.weights: missing"),
        ({"batch_s.x": 5}, "batch_s.x: batch_s is a value, not a section"),
        ({"optimizer.peak_rate": 5}, "optimizer: unknown key; did you mean optimiser?"),
    ],
)
def test_wrong_overrides(tmp_path, content, override, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(RecipeError, match=message):
        load_recipe(path, override)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: loop.yaml", "builds on itself"),
        ("base: missing.yaml", "there is no recipe .*missing.yaml"),
        ("base: 3", "base: expected the name of a recipe"),
        ("[1, 2]", "is not a recipe: it holds list"),
        ("a: [1", "is not YAML"),
        ("seed: 1\nseed: 2", "line 2: seed is written twice"),
        ("", "is not a recipe: it holds NoneType"),
    ],
)
def test_files_that_are_no_recipes(tmp_path, text, message):
    path = tmp_path / "loop.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=message):
        load_recipe(path)


def test_stages_have_the_decoders_that_count(tmp_path):
    weights = [{"ctc": 0.3, "attention": 0.7}, {"ctc": 0.5, "transducer": 1.0}]
    stages = {
        name: {"steps": 1, "inherit": inherit, "weights": weight}
        for name, inherit, weight in zip("ab", (None, "encoder"), weights, strict=True)
    }
    model = {"attention": ATTENTION, "transducer": TRANSDUCER}
    recipe = tiny_recipe(tmp_path, model=model, stages=stages)
    first, second = (recipe.system_of(stage) for stage in recipe.stages.values())
    assert (first.attention is None, first.transducer is None) == (False, True)
    assert (second.attention is None, second.transducer is None) == (True, False)


NAMES = sorted(
    path.relative_to(RECIPES).as_posix()
    for path in RECIPES.rglob("*.yaml")
    if not path.name.startswith("base") and path.parent.name != "sweeps"  # these are not whole
)


def test_recipes_are_shipped():
    assert NAMES == [
        "digit-strings/attention-brctc.yaml",
        "digit-strings/attention-vanilla.yaml",
        "digit-strings/online.yaml",
        "digit-strings/transducer-brctc.yaml",
        "digit-strings/transducer-vanilla.yaml",
        "grid/online.yaml",
        "grid/transducer-brctc.yaml",
        "grid/transducer-vanilla.yaml",
        "handwriting/brctc.yaml",
        "handwriting/vanilla.yaml",
        "paper/aishell1-attention.yaml",
        "paper/aishell1-transducer.yaml",
        "paper/librispeech-attention.yaml",
        "paper/librispeech-transducer.yaml",
        "paper/online-attention.yaml",
    ]


@pytest.mark.parametrize("name", [name for name in NAMES if "brctc" in name])
def test_arms_differ_in_risks_and_trimming_alone(name):
    arms = [
        load_recipe(RECIPES / n).model_dump(mode="json") for n in (name, name.replace("brctc", "vanilla"))
    ]
    for key, brctc, vanilla in differences(*arms):
        stage, section = key.split(".")[1:3]
        assert key.startswith("stages.")
        assert section in ("inter_risk", "final_risk", "trim")
        assert vanilla in (None, "none", 0.0), (stage, brctc)
    # the paper's margin, or less where utterances are short (recipes/digit-strings/base-early-finish.yaml)
    trim = arms[0]["stages"]["second"]["trim"]
    assert trim == {"threshold": 0.99, "margin": 5 if "handwriting" in name else 2}
    assert arms[0]["stages"]["second"]["final_risk"]["kind"] == "none"


@pytest.mark.parametrize(
    ("corpus", "system", "factor", "classes", "parameters"),
    [
        ("aishell1", "attention", 10, 4233, (114_967_315, 114_967_315)),
        ("aishell1", "transducer", 10, 4233, (114_967_315, 92_367_122)),
        ("librispeech", "attention", 100, 500, (109_225_961, 109_225_961)),
        ("librispeech", "transducer", 100, 500, (109_225_961, 86_625_768)),
    ],
)
def test_paper_recipes(corpus, system, factor, classes, parameters):
    """Tables 3, 7 and 8."""
    recipe = load_recipe(RECIPES / "paper" / f"{corpus}-{system}.yaml")
    first, second = recipe.stages.values()
    risk = RiskConfig(kind="early-finish", factor=factor)
    assert (first.epochs, second.epochs) == (50, 50)
    assert (first.inter_risk, first.final_risk, first.trim) == (risk, risk, None)
    assert (second.inter_risk, second.final_risk, second.trim) == (risk, RiskConfig(), TrimConfig())
    assert first.weights == WeightConfig(inter=0.3, ctc=0.3, attention=0.7)
    if system == "attention":
        assert (second.weights, second.inherit) == (first.weights, "whole")
    else:
        assert second.weights == WeightConfig(inter=0.3, ctc=0.5, transducer=1.0)
        assert second.inherit == "encoder"
    assert recipe.optimiser == OptimiserConfig(peak_rate=3e-4, warmup_steps=25000)
    assert recipe.batch_s == 400
    assert recipe.augment == AugmentConfig()
    assert recipe.corpus.options["speeds"] == [0.9, 1.0, 1.1]
    assert recipe.model.encoder == EncoderConfig()
    assert recipe.model.attention == AttentionConfig()
    assert recipe.model.transducer == (TransducerConfig() if system == "transducer" else None)
    assert (recipe.decode.method, recipe.decode.beam, recipe.decode.ctc_weight) == (system, 10, 0.5)
    assert recipe.checkpoints == CheckpointConfig(every_epochs=1, keep=10, average=10)
    with torch.device("meta"):
        systems = [System(recipe.system_of(stage), 80, classes) for stage in recipe.stages.values()]
    assert tuple(map(count_parameters, systems)) == parameters


def test_the_online_recipe_of_the_paper():
    """Tables 4 and 7."""
    recipe = load_recipe(RECIPES / "paper" / "online-attention.yaml")
    (stage,) = recipe.stages.values()
    assert recipe.model.encoder == EmformerConfig()
    assert recipe.model.attention == AttentionConfig()
    assert recipe.model.transducer is None
    assert stage.weights == WeightConfig(inter=0, ctc=0.3, attention=0.7)
    assert (stage.epochs, stage.trim) == (100, None)
    assert recipe.risk_of(stage) == RiskConfig(kind="early-emission", factor=20)
    assert recipe.optimiser == OptimiserConfig(peak_rate=3e-4, warmup_steps=25000)
    assert (recipe.batch_s, recipe.augment) == (400, AugmentConfig())
    assert recipe.decode.method == "ctc-greedy"
    with torch.device("meta"):
        system = System(recipe.system_of(stage), 80, 4233)
    dim, ff = 512, 2048
    attention = 4 * (dim * dim + dim)
    layer = attention + (dim * ff + ff) + (ff * dim + dim) + 2 * 2 * dim
    assert count_parameters(system.encoder.emformer) == 12 * layer + 2 * dim
    assert count_parameters(system) == 76_912_403
