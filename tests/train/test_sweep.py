"""Sweeps are checked as a whole before anything is trained."""

from pathlib import Path

import pytest
import yaml

from brctc.train import RecipeError, load_sweep
from tests.train.tiny import EMFORMER, tiny_recipe

RECIPES = Path(__file__).parents[2] / "recipes"

STAGE = {"steps": 4, "losses": {"ctc": {"kind": "ctc"}}}
EARLY = {"stages.only.losses.ctc.risk": {"kind": "early-emission", "factor": 5}}
LATE = {"stages.only.losses.ctc.risk": {"kind": "early-emission", "factor": 1}}
FINISH = {"kind": "early-finish", "factor": 5}
SWEEP = {
    "recipe": "online.yaml",
    "tune": {"stages.only.inherit": "whole", "stages.only.steps": 2},
    "starts": {"plain": {}, "early": EARLY},
    "methods": {
        "vanilla": {"start": "plain"},
        "early": {"start": "early", "changes": LATE},
    },
    "blocks": [
        {"chunks_ms": [40, 20], "methods": ["early", "vanilla"]},
        {"chunks_ms": [40], "right_contexts": [0.5, 1], "methods": ["early"]},
    ],
}


ALONE = {"blocks": [{"chunks_ms": [40], "methods": ["early"]}]}


def write_sweep(folder, **changes):
    recipe = tiny_recipe(folder, model={"encoder": EMFORMER}, stages={"only": STAGE})
    (folder / "online.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(SWEEP | changes, sort_keys=False))
    return path


def test_cells(tmp_path):
    """Each once, in the order of the methods; all start with the model of the recipe itself."""
    plan = load_sweep(write_sweep(tmp_path), "out", {"seed": 3})
    names = ["vanilla-20+10", "vanilla-40+20", "early-20+10", "early-40+20", "early-40+40"]
    assert [cell.name for cell in plan.cells] == names
    assert list(plan.starts) == ["start-plain", "start-early"]
    factors = [recipe.stages["only"].losses["ctc"].risk.factor for recipe in plan.starts.values()]
    assert factors == [0, 5]
    for recipe in plan.starts.values():
        assert (recipe.start, recipe.stages["only"].steps, recipe.seed) == (None, 4, 3)
    for cell in plan.cells:
        recipe, encoder = cell.recipe, cell.recipe.model.encoder
        start = "out/start-early" if cell.method == "early" else "out/start-plain"
        assert (recipe.start, recipe.seed) == (start, 3)
        assert (recipe.stages["only"].steps, recipe.stages["only"].inherit) == (2, "whole")
        assert (cell.chunk_ms, cell.right_context_ms) == (
            10 * encoder.chunk_frames,
            10 * encoder.right_context_frames,
        )
        assert recipe.stages["only"].losses["ctc"].risk.factor == (1 if cell.method == "early" else 0)


def test_without_starts_cells_are_trained_from_nothing(tmp_path):
    methods = {"vanilla": {}, "early": {"changes": EARLY}}
    plan = load_sweep(write_sweep(tmp_path, starts={}, methods=methods), "out")
    assert plan.starts == {}
    assert {(cell.recipe.start, cell.recipe.stages["only"].steps) for cell in plan.cells} == {(None, 4)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": {"vanilla": {}}}, "blocks.0.methods: there is no method 'early', but vanilla"),
        ({"method": {}}, r"sweep.yaml: method: unknown key; did you mean methods\?"),
        (
            {"blocks": [{"chunk_ms": [40]}]},
            r"blocks.0.chunk_ms: unknown key; did you mean blocks.0.chunks_ms\?",
        ),
        ({"blocks": [{"chunks_ms": [35], "methods": ["early"]}]}, "35 ms is no whole number of frames of 10"),
        (
            {"methods": {"early": {"changes": {"stages.only.risk": 1}}}, **ALONE},
            "methods.early: stages.only.risk: unknown",
        ),
        ({"starts": {"plain": {}}}, "methods.early.start: there is no start 'early', but plain"),
        ({"recipe": "nothing.yaml"}, "there is no recipe .*nothing.yaml"),
        (
            {
                "methods": {
                    "early": {
                        "changes": {"stages.only.losses.ctc.risk": {"kind": "early-finish", "factor": 5}}
                    }
                },
                **ALONE,
            },
            "methods.early: losses.ctc.risk: early-finish has no latency",
        ),
    ],
)
def test_what_cannot_be_run_is_refused(tmp_path, changes, message):
    with pytest.raises(RecipeError, match=message):
        load_sweep(write_sweep(tmp_path, **changes), "out")


def test_a_recipe_is_no_sweep(tmp_path):
    write_sweep(tmp_path)
    with pytest.raises(RecipeError, match=r"online\.yaml is a recipe, not a sweep"):
        load_sweep(tmp_path / "online.yaml", "out")


def test_changes_come_in_their_order_and_are_a_methods_own(tmp_path):
    """A value inside a section that `tune` has set; and what is given wins."""
    tune = SWEEP["tune"] | {"optimiser": {"peak_rate": 1e-3, "warmup_steps": 1}}
    methods = {
        "slow": {"start": "plain", "changes": {"optimiser.peak_rate": 1e-5}},
        "vanilla": {"start": "plain"},
        "early": {"changes": {"stages.only.losses.ctc.risk.factor": 30}},
    }
    blocks = [{"chunks_ms": [40], "methods": list(methods)}]
    path = write_sweep(tmp_path, tune=tune, methods=methods, blocks=blocks)
    given = {"stages.only.losses.ctc.risk": {"kind": "early-emission", "factor": 0.5}}
    slow, vanilla, early = load_sweep(path, "out", given).cells
    assert (slow.recipe.optimiser.peak_rate, vanilla.recipe.optimiser.peak_rate) == (1e-5, 1e-3)
    assert early.recipe.stages["only"].losses["ctc"].risk.factor == 0.5


def test_a_sweep_that_builds_on_one_elsewhere(tmp_path):
    write_sweep(tmp_path)
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / "sweep.yaml"
    path.write_text("base: ../sweep.yaml\nblocks: [{chunks_ms: [40], methods: [early]}]\n")
    assert [cell.name for cell in load_sweep(path, "out").cells] == ["early-40+20"]


def test_sizes_of_chunks_are_the_sweeps(tmp_path):
    with pytest.raises(RecipeError, match=r"chunk_frames: the sizes of chunks are those of the sweep"):
        load_sweep(write_sweep(tmp_path), "out", {"model.encoder.chunk_frames": 4})


def test_sizes_are_in_frames_of_the_cell_itself(tmp_path):
    encoder = {"model.encoder.subsampling": 2, "model.encoder.subsampling_channels": 4}
    methods = {"vanilla": {"start": "plain"}, "early": {"changes": encoder}}
    blocks = [{"chunks_ms": [40], "methods": ["vanilla", "early"]}]
    vanilla, early = load_sweep(write_sweep(tmp_path, methods=methods, blocks=blocks), "out").cells
    sizes = [
        (c.recipe.model.encoder.chunk_frames, c.recipe.model.encoder.right_context_frames)
        for c in (vanilla, early)
    ]
    assert sizes == [(4, 2), (2, 1)]
    blocks = [{"chunks_ms": [20], "methods": ["vanilla", "early"]}]
    with pytest.raises(RecipeError, match=r"blocks: early: 10 ms is no whole number of frames of 20 ms"):
        load_sweep(write_sweep(tmp_path, methods=methods, blocks=blocks), "out")


def test_cells_have_one_corpus(tmp_path):
    methods = SWEEP["methods"] | {"early": {"changes": {"corpus.test_strings": 6}}}
    message = r"corpus.test_strings is 6 in early-20\+10, but 5 in vanilla-20\+10"
    with pytest.raises(RecipeError, match=message):
        load_sweep(write_sweep(tmp_path, methods=methods), "out")


def test_starts_that_no_cell_needs_are_left_out(tmp_path):
    plan = load_sweep(write_sweep(tmp_path, **ALONE), "out")
    assert list(plan.starts) == ["start-early"]


def test_an_offline_recipe_is_refused(tmp_path):
    path = write_sweep(tmp_path)
    (tmp_path / "online.yaml").write_text(tiny_recipe(tmp_path).model_dump_json())
    with pytest.raises(RecipeError, match=r"online.yaml needs a streaming encoder"):
        load_sweep(path, "out")


@pytest.mark.parametrize("name", ["digit-strings", "digit-strings-long", "grid"])
def test_sweeps_are_shipped(name):
    """Every cell has had as many steps as any other, and plain CTC is what others are compared with."""
    plan = load_sweep(RECIPES / "sweeps" / f"{name}.yaml", "out")
    assert plan.cells[0].method == "vanilla"
    assert {"vanilla", "emission"} <= {cell.method for cell in plan.cells}
    assert {cell.recipe.corpus.kind for cell in plan.cells} == {name.removesuffix("-long")}
    assert len({cell.recipe.stages["only"].steps for cell in plan.cells}) == 1
    assert len({recipe.stages["only"].steps for recipe in plan.starts.values()}) == 1
    assert all(cell.recipe.start is not None for cell in plan.cells)
    assert len({cell.recipe.batch.seconds for cell in plan.cells}) == 1
