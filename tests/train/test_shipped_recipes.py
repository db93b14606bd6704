"""The recipes that come with brctc."""

from pathlib import Path

import pytest
import torch

from brctc.data import AugmentConfig
from brctc.models import (
    AttentionConfig,
    ConformerConfig,
    EmformerConfig,
    LegoNNConfig,
    System,
    TransducerConfig,
    TrimConfig,
    count_parameters,
)
from brctc.train import (
    RISKS,
    BatchConfig,
    CheckpointConfig,
    OptimiserConfig,
    load_recipe,
)
from brctc.train.recipe import differences

RECIPES = Path(__file__).parents[2] / "recipes"
MARGINS = {"handwriting/brctc.yaml": 5, "multi30k/mt-brctc.yaml": 4}
NAMES = sorted(
    path.relative_to(RECIPES).as_posix()
    for path in RECIPES.rglob("*.yaml")
    if not path.name.startswith("base") and path.parent.name != "sweeps"  # these are not whole
)


def test_recipes_are_shipped():
    assert NAMES == [
        "bass/st-brctc.yaml",
        "bass/st-vanilla.yaml",
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
        "multi30k/mt-brctc.yaml",
        "multi30k/mt-vanilla-phases.yaml",
        "multi30k/mt-vanilla.yaml",
        "multi30k/st-brctc.yaml",
        "multi30k/st-vanilla-phases.yaml",
        "multi30k/st-vanilla.yaml",
        "paper/aishell1-attention.yaml",
        "paper/aishell1-transducer.yaml",
        "paper/iwslt14-de-en-brctc.yaml",
        "paper/iwslt14-de-en-vanilla.yaml",
        "paper/iwslt14-es-en-brctc.yaml",
        "paper/iwslt14-es-en-vanilla.yaml",
        "paper/librispeech-attention.yaml",
        "paper/librispeech-transducer.yaml",
        "paper/online-attention.yaml",
        "tatoeba/mt-brctc.yaml",
        "tatoeba/mt-vanilla.yaml",
    ]


@pytest.mark.parametrize("name", [name for name in NAMES if "brctc" in name and "paper" not in name])
def test_arms_differ_in_risks_and_trimming_alone(name):
    plain = name.replace("brctc", "vanilla")
    if name.startswith(("tatoeba", "bass")):
        return  # they are those of multi30k
    if name.startswith("multi30k"):  # the baseline has the usual order of frames
        other = load_recipe(RECIPES / plain).model_dump(mode="json")
        plain = plain.replace("vanilla", "vanilla-phases")
        phases = load_recipe(RECIPES / plain).model_dump(mode="json")
        assert [key for key, *_ in differences(other, phases)] == ["model.encoder.phases"]
    arms = [load_recipe(RECIPES / n).model_dump(mode="json") for n in (name, plain)]
    for key, brctc, vanilla in differences(*arms):
        _, stage, section, *rest = key.split(".")
        assert key.startswith("stages.")
        assert section == "trim" or (section, rest[1]) == ("losses", "risk")
        assert vanilla in (None, "none", 0.0), (stage, brctc)
    # the paper's margin, or less where utterances are short (recipes/digit-strings/base-early-finish.yaml)
    trim = arms[0]["stages"]["second"]["trim"]
    assert (trim["threshold"], trim["margin"]) == (0.99, MARGINS.get(name, 2))
    assert arms[0]["stages"]["second"]["losses"]["final"]["risk"]["kind"] == "none"


def weights(stage):
    return {name: loss.weight for name, loss in stage.losses.items()}


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
    risk, none = RISKS.parse({"kind": "early-finish", "factor": factor}), RISKS.parse({})
    assert (first.epochs, second.epochs) == (50, 50)
    assert [first.losses[name].risk for name in ("middle", "final")] == [risk, risk]
    assert [second.losses[name].risk for name in ("middle", "final")] == [risk, none]
    assert (first.trim, second.trim) == (None, TrimConfig())
    hybrid = {"middle": 0.09, "final": 0.21, "attention": 0.7}
    assert weights(first) == hybrid
    if system == "attention":
        assert (weights(second), second.inherit) == (hybrid, "whole")
    else:
        assert weights(second) == {"middle": 0.15, "final": 0.35, "transducer": 1.0}
        assert second.inherit == "encoder"
    assert recipe.optimiser == OptimiserConfig(peak_rate=3e-4, warmup_steps=25000)
    assert recipe.batch == BatchConfig(seconds=400)
    assert recipe.augment == AugmentConfig()
    assert recipe.corpus.speeds == (0.9, 1.0, 1.1)
    assert recipe.model.encoder == ConformerConfig(attention_dropout=0.1)
    decoders = {"attention": AttentionConfig(attention_dropout=0.1)}
    decoders |= {"transducer": TransducerConfig()} if system == "transducer" else {}
    assert recipe.model.decoders == decoders
    assert (recipe.decode.method, recipe.decode.beam, recipe.decode.ctc_weight) == (system, 10, 0.5)
    assert recipe.checkpoints == CheckpointConfig(every_epochs=1, keep=10, average=10)
    with torch.device("meta"):
        size = {"transcript": classes}
        systems = [System(recipe.system_of(stage), 80, size) for stage in recipe.stages.values()]
    assert tuple(map(count_parameters, systems)) == parameters


@pytest.mark.parametrize("pair", ["de-en", "es-en"])
def test_text_translation_of_the_paper(pair):
    """Tables 6, 7 and 8; the baseline has one stage as long as both."""
    names = (f"iwslt14-{pair}-{arm}.yaml" for arm in ("vanilla", "brctc"))
    vanilla, brctc = (load_recipe(RECIPES / "paper" / name) for name in names)
    risk, none = RISKS.parse({"kind": "early-finish", "factor": 50}), RISKS.parse({})
    (only,), (first, second) = vanilla.stages.values(), brctc.stages.values()
    assert (only.epochs, first.epochs, second.epochs) == (200, 150, 50)
    for stage, middle, final in ((only, none, none), (first, risk, risk), (second, risk, none)):
        assert weights(stage) == {"middle": 0.09, "final": 0.21, "attention": 0.7}
        assert (stage.losses["middle"].risk, stage.losses["final"].risk) == (middle, final)
    assert (only.trim, first.trim, second.trim) == (None, None, TrimConfig(text="translation"))
    sizes = {"source": 10_000, "translation": 10_000}
    for recipe in (vanilla, brctc):
        assert recipe.corpus.languages == pair
        assert recipe.model.encoder == LegoNNConfig(attention_dropout=0.3)
        assert recipe.model.decoders["attention"].attention_dropout == 0.3
        assert recipe.optimiser == OptimiserConfig(peak_rate=2e-3, warmup_steps=10000)
        assert recipe.checkpoints.average_of == "best"
        assert (recipe.decode.method, recipe.decode.beam) == ("attention", 5)
        for stage in recipe.stages.values():
            with torch.device("meta"):
                system = System(recipe.system_of(stage), 10_000, sizes)
            assert count_parameters(system) == 65_453_089


def test_the_online_recipe_of_the_paper():
    """Tables 4 and 7."""
    recipe = load_recipe(RECIPES / "paper" / "online-attention.yaml")
    (stage,) = recipe.stages.values()
    assert recipe.model.encoder == EmformerConfig(memory="summary", attention_dropout=0.1)
    assert recipe.model.decoders == {"attention": AttentionConfig(attention_dropout=0.1)}
    assert weights(stage) == {"ctc": 0.3, "attention": 0.7}
    assert (stage.epochs, stage.trim) == (100, None)
    assert stage.losses["ctc"].risk == RISKS.parse({"kind": "early-emission", "factor": 20})
    assert recipe.optimiser == OptimiserConfig(peak_rate=3e-4, warmup_steps=25000)
    assert (recipe.batch, recipe.augment) == (BatchConfig(seconds=400), AugmentConfig())
    assert recipe.decode.method == "ctc-greedy"
    with torch.device("meta"):
        system = System(recipe.system_of(stage), 80, {"transcript": 4233})
    dim, ff = 512, 2048
    attention = 4 * (dim * dim + dim)
    layer = attention + (dim * ff + ff) + (ff * dim + dim) + 2 * 2 * dim
    assert count_parameters(system.encoder.emformer) == 12 * layer + 2 * dim
    assert count_parameters(system) == 76_912_403
