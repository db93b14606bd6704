"""Recipes: what is wrong is refused before anything runs, by the name of its key."""

import json

import pytest
import yaml

from brctc.models import (
    EmformerConfig,
)
from brctc.train import (
    RISKS,
    RecipeError,
    load_recipe,
    parse_recipe,
)
from tests.train.tiny import (
    ATTENTION,
    EMFORMER,
    ENCODER,
    FINAL,
    TRANSDUCER,
    decoder_loss,
    tiny_recipe,
)


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


RISK = "stages.first.losses.middle.risk"
REFUSED = [
    # the key, its value, and what the message says
    ("optimiser.peak_lr", 1, "optimiser.peak_lr: unknown key; did you mean optimiser.peak_rate?"),
    (f"{RISK}.factr", 1, "unknown key; did you mean stages.first.losses.middle.risk.factor?"),
    ("warmup_steps", 5, "warmup_steps: unknown key; did you mean optimiser.warmup_steps?"),
    ("model.encoder.zzz", 5, "model.encoder.zzz: unknown key; valid here: kind, dim, "),
    ("corpus.train_string", 5, "corpus.train_string: unknown key; did you mean corpus.train_strings?"),
    ("corpus.train_strings", 0, "corpus.train_strings: input should be greater than"),
    (
        "corpus.kind",
        "handwritting",
        "corpus.kind: there is no corpus 'handwritting': did you mean 'handwriting'?",
    ),
    ("corpus.kind", ..., "corpus.kind: required; there are: .*handwriting"),
    ("corpus", {"kind": "manifests", "prepared": "p"}, "corpus.manifests: missing"),
    (
        "corpus",
        {"kind": "manifests", "prepared": "p", "manifests": {"trian": "a"}},
        "corpus.manifests: needs at least train and dev",
    ),
    ("features", {}, "features: handwriting is not audio: it has none to choose"),
    ("batch", ..., "batch: missing"),
    ("batch.seconds", "many", "batch.seconds: .*number.*got 'many'"),
    ("batch.seconds", float("inf"), "batch.seconds: .*finite"),
    ("batch", {}, "batch.seconds: a batch is measured in seconds or in tokens"),
    ("batch", {"tokens": 100}, "batch: a batch of handwriting is measured in seconds"),
    ("precision", "bf-16", "precision: expected 'float32' or 'bf16'; did you mean 'bf16'?"),
    ("optimiser.hold", 0.5, "optimiser.hold: the schedule inverse-sqrt has none"),
    ("optimiser.schedule", "hold-cosine", "optimiser.hold: the schedule hold-cosine needs it"),
    ("stages", {}, "stages: .*at least 1 item"),
    ("stages.first.epochs", 3, "stages.first.steps: a stage lasts so many steps or so many epochs"),
    ("stages.first.steps", None, "stages.first.steps: a stage lasts so many steps or so many epochs"),
    ("stages.first.inherit", "whole", "stages.first.inherit: the first stage has nothing to inherit"),
    ("stages.second.inherit", None, "stages.second.inherit: a later stage inherits"),
    ("stages.first.losses", {}, "stages.first.losses: .*at least 1 item"),
    (
        "stages.first.losses.middle.kind",
        "cct",
        "middle.kind: there is no loss 'cct': did you mean 'ctc'?",
    ),
    (
        "stages.first.losses.middle.on",
        "midle",
        "middle.on: there is no tap 'midle'; the encoder has middle",
    ),
    ("stages.first.losses.middle.text", "words", "losses.middle.text: there is no CTC head for 'words'"),
    (
        "stages.first.losses.said",
        decoder_loss("attention"),
        "stages.first.losses.said.of: trains an undefined decoder: model.decoders has none, not 'attention'",
    ),
    ("stages.first.losses.loss", FINAL, "losses.loss: the log calls something else so"),
    ("stages.first.losses.type", FINAL, "losses.type: 'type' cannot be a name"),
    ("model.decoders", {"a.b": ATTENTION}, "model.decoders.a.b: 'a.b' cannot be a name"),
    ("stages.first.losses.middle.weight", -1, "losses.middle.weight: expected a finite number from 0"),
    ("stages.first.losses.middle.weight", [[5, 1], [2, 0]], "middle.weight: .*must rise, but 2 follows 5"),
    ("model.decoders", {"said": ATTENTION}, "model.decoders.said: no stage trains it"),
    ("model.decoders", {"said": TRANSDUCER}, "model.decoders.said: no stage trains it"),
    ("model.decoders", {"said": {"layers": 2}}, "model.decoders.said.kind: required; there are: attention"),
    ("model.decoders", {"said": ATTENTION | {"on": "end"}}, "model.decoders.said.on: there is no tap 'end'"),
    ("model.heads", {"words": {}}, "stages.first.losses.middle.text: there is no CTC head for 'transcript'"),
    ("model.output", "words", "model.output: there are no tokens for 'words': tokens has transcript"),
    (RISK, {"kind": "none", "factor": 3}, 'risk.factor: a risk of kind "none" has no factor'),
    (RISK, {"kind": "early-finish"}, "risk.factor: .*early-finish needs a factor above 0"),
    (f"{RISK}.kind", "early-finnish", "there is no risk 'early-finnish': did you mean 'early-finish'?"),
    (f"{RISK}.factor", [[0, 1], [0, 2]], "risk.factor: .*must rise, but 0 follows 0"),
    (f"{RISK}.factor", [[0.5, 1]], "the step of the point .* whole number"),
    (f"{RISK}.factor", [3], "risk.factor: .*got the point 3"),
    (f"{RISK}.factor", [], "risk.factor: .*got an empty list"),
    (f"{RISK}.factor", -1, "risk.factor: expected a finite number from 0"),
    (f"{RISK}.kind", "delay_penalty", "did you mean 'delay-penalty'?"),
    ("augment.trim_tail_frames", -1, "augment.trim_tail_frames: input should be greater"),
    ("augment.trim_tail_frames", 2.5, "augment.trim_tail_frames: .*valid integer"),
    ("augment.trim_tail", 5, "unknown key; did you mean augment.trim_tail_frames?"),
    ("stages.first.trim", {"threshold": 2}, "stages.first.trim.threshold: input should be less than 1"),
    ("stages.first.curriculum.share", 1.5, "stages.first.curriculum.share: "),
    ("decode.ctc_weight", 1.0, "decode.ctc_weight: "),
    ("checkpoints.average", 4, "checkpoints.average: 4 are to be averaged, but keep is 3"),
    ("checkpoints.average_of", "first", "checkpoints.average_of: expected 'last' or 'best'"),
    ("checkpoints.every_epochs", 1, "checkpoints.every_steps: say either every_steps or every_epochs"),
    ("decode.method", "transducer", "decode.method: the last stage does not train the decoder"),
    ("decode.method", "attention", "decode.method: the last stage does not train the decoder"),
    ("tokens.transcript", {"kind": "bpe"}, 'tokens.transcript: kind "bpe" needs a size'),
    (
        "tokens.transcript",
        {"same_as": "other"},
        "transcript.same_as: 'other' has no tokens of its own",
    ),
    ("tokens.other", {"same_as": "transcript", "size": 5}, "tokens.other"),
    ("model.encoder.heads", 3, "model.encoder: dim is 16, expected an even number that 3 heads divide"),
    ("seed", -1, "seed: "),
    ("model.encoder.kind", "former", "model.encoder.kind: there is no encoder 'former': did you mean"),
    ("model.encoder", {"chunk_frames": 8}, "model.encoder.chunk_frames: unknown key"),
    ("model.encoder", {**EMFORMER, "chunk_frame": 8}, "chunk_frame: .* mean model.encoder.chunk_frames?"),
    ("model.encoder", {**EMFORMER, "chunk_frames": 0}, "model.encoder.chunk_frames: input should be greater"),
    ("model.encoder", {**EMFORMER, "heads": 3}, "model.encoder: dim is 16, expected"),
    ("model.encoder", {**ENCODER, "first_layers": 10**5}, "first_layers: input should be less than"),
    (
        "model.encoder",
        EMFORMER,
        "stages.first.losses.middle.on: there is no tap 'middle'; the encoder has final",
    ),
]


@pytest.mark.parametrize(("key", "value", "message"), REFUSED)
def test_refusals(content, key, value, message):
    with pytest.raises(RecipeError, match=message):
        parse_recipe(changed(content, key, value), "my.yaml")


def test_the_best_are_found_on_the_development_set(content):
    best = changed(content, "checkpoints.average_of", "best")
    assert parse_recipe(best).checkpoints.average_of == "best"
    message = "checkpoints.average_of: the best are found on the development set, but dev_utterances is 0"
    with pytest.raises(RecipeError, match=message):
        parse_recipe(changed(best, "monitor.dev_utterances", 0))


def test_trimming_needs_a_ctc_that_decides(content):
    message = r"stages.second.trim: needs a CTC loss of transcript on middle, which decides what is cut"
    content["stages"]["second"]["losses"]["middle"]["weight"] = 0
    with pytest.raises(RecipeError, match=message):
        parse_recipe(content)
    del content["stages"]["second"]["losses"]["middle"]
    with pytest.raises(RecipeError, match=message):
        parse_recipe(content)


def online(content):
    """One stage, as an emformer learns it."""
    losses = {"ctc": {"kind": "ctc", "risk": {"kind": "early-emission", "factor": 2}}}
    return {**content, "model": {"encoder": EMFORMER}, "stages": {"only": {"steps": 3, "losses": losses}}}


def test_an_emformer_has_nothing_to_trim(content):
    content = online(content)
    recipe = parse_recipe(content)
    stage = recipe.stages["only"]
    assert isinstance(recipe.model.encoder, EmformerConfig)
    assert stage.watched == stage.losses["ctc"]
    assert stage.watched.risk == RISKS.parse({"kind": "early-emission", "factor": 2})
    content["stages"]["only"]["trim"] = {}
    with pytest.raises(RecipeError, match=r"stages.only.trim: an encoder of kind emformer cannot be trimmed"):
        parse_recipe(content)


def test_an_emformer_hears_no_utterance_as_a_whole(content):
    content = online(content)
    content["model"]["normalisation"] = "utterance"
    with pytest.raises(
        RecipeError,
        match=r"model.normalisation: is .utterance., but an .*emformer hears no utterance as a whole",
    ):
        parse_recipe(content)


def test_greedy_decoding_without_a_final_ctc(content):
    content["stages"]["second"]["losses"]["final"]["weight"] = 0
    with pytest.raises(RecipeError, match=r"decode.method: the last stage does not train the final CTC"):
        parse_recipe(content)


def test_nothing_to_train(content):
    for loss in content["stages"]["first"]["losses"].values():
        loss["weight"] = 0
    with pytest.raises(RecipeError, match=r"stages.first.losses: all weights are 0"):
        parse_recipe(content)


def test_epochs_that_would_never_end(content):
    stage = content["stages"]["first"]
    stage.update(curriculum={"max_labels": 2, "share": 1})
    assert parse_recipe(content).stages["first"].steps == 12
    stage.update(steps=None, epochs=2)
    with pytest.raises(RecipeError, match="so that no epoch would end: say steps, not epochs"):
        parse_recipe(content)


def test_texts_that_share_tokens(content):
    content["tokens"]["translation"] = {"same_as": "transcript"}
    assert parse_recipe(content).unit_tokens.kind == "char"
    content["model"]["output"] = "translation"
    content["model"]["heads"]["translation"] = {}
    content["stages"]["second"]["losses"]["final"]["text"] = "translation"
    assert parse_recipe(content).unit_tokens.kind == "char"


def test_all_problems_at_once(content):
    content["optimiser"]["peak_lr"] = content["optimiser"].pop("peak_rate")
    content["batch"]["seconds"] = -1
    with pytest.raises(RecipeError) as caught:
        parse_recipe(content, "my.yaml")
    lines = str(caught.value).splitlines()
    assert all(line.startswith("my.yaml: ") for line in lines)
    assert [line.split(": ")[1] for line in lines] == [
        "optimiser.peak_rate",
        "optimiser.peak_lr",
        "batch.seconds",
    ]


def test_resolved_recipe_is_plain_and_complete(content):
    assert parse_recipe(json.loads(json.dumps(content))).model_dump(mode="json") == content
    assert content["corpus"]["stretch"] == 2  # a default that was not written down


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
    losses = "{middle: &a {risk: {kind: early-finish, factor: 5}}, final: *a}"
    path.write_text(f"base: base.yaml\nstages: {{first: {{losses: {losses}}}}}\n")
    first = load_recipe(path, {"stages.first.losses.middle.risk.factor": 3}).stages["first"]
    assert [first.losses[name].risk.factor for name in ("middle", "final")] == [3, 5]


def test_null_removes_a_key(tmp_path, content):
    """A section, a stage, a loss; in a file or from the command line."""
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(content))
    path = tmp_path / "child.yaml"
    path.write_text(
        "base: base.yaml\naugment: null\nstages: {second: null, first: {losses: {middle: null}}}\n"
    )
    recipe = load_recipe(path)
    assert recipe.augment is None
    assert list(recipe.stages) == ["first"]
    assert list(recipe.stages["first"].losses) == ["final"]
    assert load_recipe(path, {"stages.first.curriculum": None}).stages["first"].curriculum is None
    with pytest.raises(RecipeError, match=r"stages: .*at least 1 item"):
        load_recipe(path, {"stages.first": None})
    with pytest.raises(RecipeError, match="optimiser: missing"):
        load_recipe(path, {"optimiser": None})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"stages.third.steps": 5}, "stages.third.losses: missing"),
        ({"seed.x": 5}, "seed.x: seed is a value, not a section"),
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


def test_stages_have_the_decoders_that_they_train(tmp_path):
    losses = [{"final": FINAL, "said": decoder_loss(name)} for name in ("attention", "transducer")]
    stages = {
        name: {"steps": 1, "inherit": inherit, "losses": terms}
        for name, inherit, terms in zip("ab", (None, "encoder"), losses, strict=True)
    }
    model = {"decoders": {"attention": ATTENTION, "transducer": TRANSDUCER}}
    recipe = tiny_recipe(tmp_path, model=model, stages=stages)
    first, second = (recipe.system_of(stage) for stage in recipe.stages.values())
    assert list(first.decoders) == ["attention"]
    assert list(second.decoders) == ["transducer"]
