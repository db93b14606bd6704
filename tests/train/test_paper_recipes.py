"""The recipes of the paper's systems: tables 3 to 8, and the settings of appendix H."""

from itertools import product
from pathlib import Path

import pytest
import torch

from brctc.data import AugmentConfig, FeatureConfig
from brctc.data.corpora.base import SPEEDS
from brctc.evaluate.latency import data_collecting_latency_ms
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
from brctc.train import RISKS, BatchConfig, CheckpointConfig, OptimiserConfig, load_recipe, load_sweep

RECIPES = Path(__file__).parents[2] / "recipes"
HYBRID = {"middle": 0.09, "final": 0.21, "attention": 0.7}
TRANSDUCER = {"middle": 0.15, "final": 0.35, "transducer": 1.0}
NONE = RISKS.parse({})
ATTENTION = AttentionConfig(attention_dropout=0.1)

# table 2's units, and the blank; characters have one for what is unknown, BPE has it among its own
CLASSES = {
    "aishell1": {"transcript": 4233},
    "aishell2": {"transcript": 5216},
    "wenetspeech": {"transcript": 6269},
    "librispeech": {"transcript": 500},
    "must-c-v2": {"transcript": 500, "translation": 4000},
    "iwslt14": {"source": 10_000, "translation": 10_000},
}
FACTORS = {"aishell1": 10, "aishell2": 10, "wenetspeech": 30, "librispeech": 100}
SPEECH = list(FACTORS)

# of each stage
PARAMETERS = {
    "aishell1-attention-vanilla": (115_229_459,),
    "aishell1-attention-brctc": (115_229_459, 115_229_459),
    "aishell1-attention-second-plain": (115_229_459, 115_229_459),
    "aishell1-attention-second-early": (115_229_459, 115_229_459),
    "aishell1-transducer-vanilla": (92_629_266,),
    "aishell1-transducer-brctc": (115_229_459, 92_629_266),
    "aishell1-online-vanilla": (77_174_547,),
    "aishell1-online-brctc": (77_174_547,),
    "aishell2-attention-vanilla": (116_741_313,),
    "aishell2-attention-brctc": (116_741_313, 116_741_313),
    "aishell2-transducer-vanilla": (94_141_120,),
    "aishell2-transducer-brctc": (116_741_313, 94_141_120),
    "aishell2-online-vanilla": (78_686_401,),
    "aishell2-online-brctc": (78_686_401,),
    "wenetspeech-attention-vanilla": (118_360_827,),
    "wenetspeech-attention-brctc": (118_360_827, 118_360_827),
    "wenetspeech-transducer-vanilla": (95_760_634,),
    "wenetspeech-transducer-brctc": (118_360_827, 95_760_634),
    "librispeech-attention-vanilla": (109_488_105,),
    "librispeech-attention-brctc": (109_488_105, 109_488_105),
    "librispeech-transducer-vanilla": (86_887_912,),
    "librispeech-transducer-brctc": (109_488_105, 86_887_912),
    "iwslt14-de-en-vanilla": (65_453_089,),
    "iwslt14-de-en-brctc": (65_453_089, 65_453_089),
    "iwslt14-es-en-vanilla": (65_453_089,),
    "iwslt14-es-en-brctc": (65_453_089, 65_453_089),
    "must-c-v2-vanilla": (103_094_069,),
    "must-c-v2-brctc": (57_807_849, 103_094_069),
}


def paper(name):
    return load_recipe(RECIPES / "paper" / f"{name}.yaml")


def weights(stage):
    return {name: loss.weight for name, loss in stage.losses.items()}


def risks(stage):
    return [stage.losses[name].risk for name in ("middle", "final")]


def early(factor):
    return RISKS.parse({"kind": "early-finish", "factor": factor})


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name):
    recipe = paper(name)
    classes = CLASSES[recipe.corpus.kind]
    width = classes["source"] if recipe.features is None else recipe.features.dim
    with torch.device("meta"):
        systems = [System(recipe.system_of(stage), width, classes) for stage in recipe.stages.values()]
    assert tuple(map(count_parameters, systems)) == PARAMETERS[name]


def check_recognition(recipe, corpus, **features):
    """Tables 3, 4 and 7, where they are the same for all."""
    assert (recipe.corpus.kind, recipe.corpus.speeds) == (corpus, SPEEDS)
    assert recipe.features == FeatureConfig(pitch=True, **features)
    assert recipe.features.dim == 83
    assert recipe.optimiser == OptimiserConfig(peak_rate=3e-4, warmup_steps=25000)
    assert recipe.batch == BatchConfig(seconds=3200 if corpus == "wenetspeech" else 400)
    assert recipe.augment == AugmentConfig()
    assert recipe.checkpoints == CheckpointConfig(every_epochs=1, keep=10, average=10)
    tokens = recipe.tokens["transcript"]
    assert (tokens.kind, tokens.size) == (("bpe", 500) if corpus == "librispeech" else ("char", None))


@pytest.mark.parametrize(("corpus", "system"), list(product(SPEECH, ("attention", "transducer"))))
def test_offline(corpus, system):
    """Tables 3, 7 and 8; the baseline has one stage as long as both."""
    vanilla, brctc = (paper(f"{corpus}-{system}-{arm}") for arm in ("vanilla", "brctc"))
    (only,), (first, second) = vanilla.stages.values(), brctc.stages.values()
    assert (only.epochs, first.epochs, second.epochs) == (100, 50, 50)
    risk = early(FACTORS[corpus])
    assert [risks(stage) for stage in (only, first, second)] == [[NONE, NONE], [risk, risk], [risk, NONE]]
    assert (only.trim, first.trim, second.trim) == (None, None, TrimConfig())
    own = HYBRID if system == "attention" else TRANSDUCER
    assert (weights(only), weights(first), weights(second)) == (own, HYBRID, own)
    assert second.inherit == ("whole" if system == "attention" else "encoder")
    decoders = {"attention": ATTENTION, "transducer": TransducerConfig()}
    assert vanilla.model.decoders == {system: decoders[system]}
    assert brctc.model.decoders == {name: decoders[name] for name in ("attention", system)}
    for recipe in (vanilla, brctc):
        check_recognition(recipe, corpus)
        assert recipe.model.encoder == ConformerConfig(attention_dropout=0.1)
        decode = recipe.decode
        assert (decode.method, decode.beam, decode.ctc_weight, decode.length_reward) == (system, 10, 0.5, 0)


@pytest.mark.parametrize(("corpus", "ahead"), [("aishell1", 8), ("aishell2", 4)])
def test_online(corpus, ahead):
    """Tables 4 and 7."""
    for arm, risk in (("vanilla", NONE), ("brctc", RISKS.parse({"kind": "early-emission", "factor": 20}))):
        recipe = paper(f"{corpus}-online-{arm}")
        check_recognition(recipe, corpus, pitch_look_ahead_frames=10)
        (stage,) = recipe.stages.values()
        assert (stage.epochs, stage.trim, stage.losses["ctc"].risk) == (100, None, risk)
        assert weights(stage) == {"ctc": 0.3, "attention": 0.7}
        expected = EmformerConfig(memory="summary", attention_dropout=0.1, right_context_frames=ahead)
        assert recipe.model.encoder == expected
        assert recipe.model.decoders == {"attention": ATTENTION}
        assert recipe.decode.method == "ctc-greedy"
        with torch.device("meta"):
            system = System(recipe.system_of(stage), 83, CLASSES[corpus])
        dim, ff = 512, 2048
        attention = 4 * (dim * dim + dim)
        layer = attention + (dim * ff + ff) + (ff * dim + dim) + 2 * 2 * dim
        assert count_parameters(system.encoder.emformer) == 12 * layer + 2 * dim


@pytest.mark.parametrize(
    ("corpus", "latencies"),
    [("aishell1", [120, 240, 480, 720, 960]), ("aishell2", [80, 160, 320, 480, 640])],
)
def test_sweeps(corpus, latencies):
    """Appendix H: five chunks with the factors 0 and 20, each from nothing."""
    plan = load_sweep(RECIPES / "sweeps" / f"paper-{corpus}.yaml", "exp")
    assert plan.starts == {}
    assert all(cell.recipe.start is None for cell in plan.cells)
    for arm in ("vanilla", "brctc"):
        cells = [cell for cell in plan.cells if cell.method == arm]
        found = [data_collecting_latency_ms(cell.chunk_ms, cell.right_context_ms) for cell in cells]
        assert found == latencies
        by_chunk = {cell.recipe.model.encoder.chunk_frames: cell.recipe for cell in cells}
        assert list(by_chunk) == [2, 4, 8, 12, 16]
        assert {recipe.model.encoder.left_context_frames for recipe in by_chunk.values()} == {8}
        assert by_chunk[8] == paper(f"{corpus}-online-{arm}")


@pytest.mark.parametrize("pair", ["de-en", "es-en"])
def test_text_translation(pair):
    """Tables 6, 7 and 8."""
    vanilla, brctc = (paper(f"iwslt14-{pair}-{arm}") for arm in ("vanilla", "brctc"))
    (only,), (first, second) = vanilla.stages.values(), brctc.stages.values()
    assert (only.epochs, first.epochs, second.epochs) == (200, 150, 50)
    risk = early(50)
    assert [risks(stage) for stage in (only, first, second)] == [[NONE, NONE], [risk, risk], [risk, NONE]]
    assert all(weights(stage) == HYBRID for stage in (only, first, second))
    assert (only.trim, first.trim, second.trim) == (None, None, TrimConfig(text="translation"))
    for recipe in (vanilla, brctc):
        assert recipe.corpus.languages == pair
        assert recipe.model.encoder == LegoNNConfig(attention_dropout=0.3)
        decoder = {"feed_forward_dim": 1024, "dropout": 0.3, "attention_dropout": 0.3}
        assert recipe.model.decoders == {"attention": AttentionConfig(text="translation", **decoder)}
        assert recipe.optimiser == OptimiserConfig(peak_rate=2e-3, warmup_steps=10000)
        assert recipe.checkpoints.average_of == "best"
        assert (recipe.decode.method, recipe.decode.beam) == ("attention", 5)


def test_speech_translation():
    """Tables 5, 7 and 8."""
    vanilla, brctc = (paper(f"must-c-v2-{arm}") for arm in ("vanilla", "brctc"))
    (only,), (first, second) = vanilla.stages.values(), brctc.stages.values()
    assert (only.epochs, first.epochs, second.epochs) == (100, 60, 40)
    risk = early(50)
    assert [risks(stage) for stage in (only, first, second)] == [[NONE, NONE], [risk, risk], [risk, NONE]]
    both = {"middle": 0.09, "final": 0.21, "translation": 0.21, "attention": 0.49}
    assert (weights(only), weights(first), weights(second)) == (both, HYBRID, both)
    assert (only.trim, first.trim, second.trim) == (None, None, TrimConfig())
    assert (first.decoders, second.decoders) == (["transcript"], ["translation"])
    translates = AttentionConfig(text="translation", on="translation", attention_dropout=0.1)
    assert vanilla.model.decoders == {"translation": translates}
    assert brctc.model.decoders == {"translation": translates, "transcript": ATTENTION}
    for recipe in (vanilla, brctc):
        assert recipe.features == FeatureConfig()
        assert (recipe.corpus.languages, recipe.corpus.speeds) == ("en-de", SPEEDS)
        assert {name: config.size for name, config in recipe.tokens.items()} == CLASSES["must-c-v2"]
        assert recipe.model.encoder == ConformerConfig(dim=256, attention_dropout=0.1)
        upper = recipe.model.upper_encoders["translation"]
        layers = {"subsampling": 1, "first_layers": 3, "second_layers": 3, "attention_dropout": 0.1}
        assert (upper.on, upper.encoder) == ("final", ConformerConfig(**layers))
        masks = recipe.augment
        assert (masks.num_time_masks, masks.time_mask_share, masks.max_time_warp) == (5, 0.05, 5)
        assert (masks.num_frequency_masks, masks.frequency_mask_length) == (2, 27)
        assert recipe.optimiser == OptimiserConfig(peak_rate=1e-3, warmup_steps=25000)
        assert recipe.checkpoints == CheckpointConfig(every_epochs=1, average_of="best")
        assert (recipe.decode.method, recipe.decode.beam) == ("attention", 10)
