"""What a training will cost, beside what it then did."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from brctc.models import System
from brctc.train import Objective, load_recipe, parse_recipe, read_metrics, train
from brctc.train.config import Recipe
from brctc.train.corpus import ensure_prepared
from brctc.train.cost import choose_devices, estimate_cost
from brctc.train.devices import DEVICES, UTILISATION, find_device
from brctc.train.plan import plan_data
from brctc.train.step_cost import BatchShape, Sizes, cost_of_step, synthetic_batch
from tests.train.tiny import ATTENTION, EMFORMER, ENCODER, FINAL, PLAIN, TRANSDUCER, decoder_loss, tiny_recipe
from tests.train.translations import mt_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
DROPPED = {"attention_dropout": 0.1}  # on a CPU, torch's fused attention is none that the counter knows


def steps_of(run: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in read_metrics(run):
        if "seconds" in record:
            found[record["stage"]] = found.get(record["stage"], 0) + 1
    return found


def test_steps_are_those_that_are_trained(tmp_path):
    """By epochs, with and without a curriculum, and by steps."""
    stages = {
        "short": {
            "epochs": 2,
            "losses": PLAIN,
            "curriculum": {"max_labels": 2, "only_steps": 3, "share": 0.25},
        },
        "all": {"epochs": 3, "losses": PLAIN, "inherit": "whole"},
        "last": {"steps": 5, "losses": PLAIN, "inherit": "whole", "trim": {}},
    }
    recipe = tiny_recipe(tmp_path, stages=stages, batch={"seconds": 2.0})
    ensure_prepared(recipe)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    cost = estimate_cost(recipe)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert all(stage.length.exact for stage in cost.stages.values())
    train(recipe, tmp_path / "run", progress=False)
    assert {name: stage.length.steps for name, stage in cost.stages.items()} == steps_of(tmp_path / "run")
    assert [stage.trimmed for stage in cost.stages.values()] == [False, False, True]


def test_texts(tmp_path):
    recipe = mt_recipe(tmp_path)
    ensure_prepared(recipe)
    plan = plan_data(recipe)
    assert plan.seconds is None
    assert plan.examples == 40
    train(recipe, tmp_path / "run", progress=False)
    assert {name: steps.steps for name, steps in plan.stages.items()} == steps_of(tmp_path / "run")


def real_flop(recipe: Recipe, sizes: Sizes, shape: BatchShape) -> int:
    """Of a step on the CPU, with all losses as they are."""
    stage = next(iter(recipe.stages.values()))
    system = System(recipe.system_of(stage), sizes.input_size, sizes.vocab_sizes)
    objective = Objective(system, stage.losses)
    batch = synthetic_batch(recipe, shape, sizes, "cpu")
    with FlopCounterMode(display=False) as counter:
        objective(batch, 0)["loss"].backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "encoder", [ENCODER | DROPPED, ENCODER | DROPPED | {"positions": "relative"}, EMFORMER | DROPPED]
)
def test_flop_are_those_of_a_real_step(tmp_path, encoder):
    heads = {"middle": FINAL | {"on": "middle"}} if encoder["kind"] == "conformer" else {}
    stages = {
        "only": {"steps": 1, "losses": {"final": FINAL, **heads, "attention": decoder_loss("attention")}}
    }
    model = {"encoder": encoder, "decoders": {"attention": ATTENTION | DROPPED}}
    recipe = tiny_recipe(tmp_path, model=model, stages=stages)
    sizes, shape = Sizes(8, {"transcript": 12}), BatchShape(3, 40, {"transcript": 5})
    found = cost_of_step(recipe, recipe.stages["only"], sizes, shape).flop
    assert found == real_flop(recipe, sizes, shape)


def test_flop_of_texts(tmp_path):
    recipe = mt_recipe(tmp_path)
    sizes, shape = Sizes(9, {"source": 9, "translation": 7}), BatchShape(4, 6, {"translation": 5})
    first = next(iter(recipe.stages.values()))
    found = cost_of_step(recipe, first, sizes, shape)
    assert cost_of_step(recipe, first, sizes, replace(shape, examples=8)).flop == 2 * found.flop
    assert found.activation_bytes > 0


def test_flop_of_a_transducer_by_hand(tmp_path):
    """The joint network and the LSTM beside a system without them."""
    model = {"encoder": ENCODER, "decoders": {"transducer": TRANSDUCER}}
    stages = {"only": {"steps": 1, "losses": PLAIN | {"transducer": decoder_loss("transducer")}}}
    whole = tiny_recipe(tmp_path, model=model, stages=stages)
    plain = tiny_recipe(tmp_path, stages={"only": {"steps": 1, "losses": PLAIN}})
    N, T, U, C, D = 2, 30, 4, 12, 16
    sizes, shape = Sizes(8, {"transcript": C}), BatchShape(N, T, {"transcript": U})
    added = [cost_of_step(r, r.stages["only"], sizes, shape).flop for r in (whole, plain)]
    W = U + 1
    products = N * T * W * D * C + N * T * D * D + N * W * D * D + N * W * 2 * D * 4 * D
    assert added[0] - added[1] == pytest.approx(3 * 2 * products, rel=0.02)  # forward, and twice backward


def test_devices_share_a_batch(tmp_path):
    recipe = tiny_recipe(tmp_path)
    ensure_prepared(recipe)
    one, two = (estimate_cost(recipe, devices=count) for count in (1, 2))
    assert two.flop == pytest.approx(one.flop)
    assert two.memory.activations == pytest.approx(one.memory.activations / 2, rel=0.1)
    assert two.memory.weights == one.memory.weights
    h100 = DEVICES["h100"]
    assert one.hours(h100) == pytest.approx(one.flop / (66.9e12 * UTILISATION["float32"]) / 3600)
    assert two.hours(h100) == pytest.approx((one.hours(h100) or 0) / 2)
    with pytest.raises(ValueError, match="--gpus 0: expected 1 or more"):
        estimate_cost(recipe, devices=0)


def test_precision(tmp_path):
    full, half = (estimate_cost(tiny_recipe(tmp_path, precision=p)) for p in ("float32", "bf16"))
    assert half.memory.activations < full.memory.activations
    assert half.memory.weights == full.memory.weights
    assert half.hours(DEVICES["v100"]) is None
    with pytest.raises(ValueError, match="a V100 has no bf16"):
        find_device("V100", "bf16")
    with pytest.raises(ValueError, match=r"no device 'rtx-4080'; did you mean rtx-4090\?"):
        choose_devices("rtx-4080", "float32")
    with pytest.raises(ValueError, match="known are v100, a100"):
        choose_devices("x", "float32")
    assert list(choose_devices("RTX 4090", "bf16")) == ["rtx-4090"]


def test_a_corpus_that_is_not_there(tmp_path):
    losses = {"only": {"epochs": 2, "losses": PLAIN}}
    recipe = tiny_recipe(tmp_path, stages=losses)
    with pytest.raises(
        ValueError, match=r"stages.only.epochs: .* is not prepared.* give its size by --hours"
    ):
        estimate_cost(recipe)
    with pytest.raises(ValueError, match="--pairs 5: the size of handwriting is given by --hours"):
        estimate_cost(recipe, pairs=5)
    with pytest.raises(ValueError, match="--hours -1: expected more than nothing"):
        estimate_cost(recipe, hours=-1)
    plan = plan_data(recipe, hours=1.0)
    assert plan.stages["only"].steps == 2 * 3600 / 6
    assert not plan.stages["only"].exact
    assert "is not prepared: nothing was counted" in plan.notes[0]
    assert not (tmp_path / "prepared").exists()
    ensure_prepared(recipe)
    with pytest.raises(ValueError, match=r"--hours 1: .* is prepared, its own size counts"):
        plan_data(recipe, hours=1.0)
    other = parse_recipe(
        recipe.model_dump(mode="json") | {"tokens": {"transcript": {"kind": "bpe", "size": 900}}}
    )
    with pytest.raises(ValueError, match="do not make a BPE vocabulary of 900"):
        plan_data(other)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in sorted((RECIPES / "paper").glob("*.yaml")) if not path.name.startswith("base")],
    ids=lambda path: path.stem,
)  # fmt: skip
def test_systems_of_the_paper(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    cost = estimate_cost(load_recipe(path))
    parameters = max(sum(stage.parameters.values()) for stage in cost.stages.values())
    assert 30e6 < parameters < 200e6
    # a parameter of the encoder is used about once a frame of it, and costs 6 operations
    shape, stage = cost.data.shapes[-1], next(iter(cost.stages.values()))
    assert 0.1 < stage.flop_per_step / (6 * parameters * shape.size / 4) < 12
    assert cost.memory.total > 16 * parameters
    assert torch.cuda.is_initialized() is False
