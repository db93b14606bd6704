"""The recipes that come with brctc."""

from pathlib import Path

import pytest

from brctc.train import load_recipe
from brctc.train.recipe import differences
from tests.train.test_paper_recipes import PARAMETERS as PAPER

RECIPES = Path(__file__).parents[2] / "recipes"
MARGINS = {"handwriting/brctc.yaml": 5}
THRESHOLDS = {"multi30k/mt-brctc.yaml": 0.9, "multi30k/st-brctc.yaml": 0.95}
NAMES = sorted(
    path.relative_to(RECIPES).as_posix()
    for path in RECIPES.rglob("*.yaml")
    if not path.name.startswith("base") and path.parent.name != "sweeps"  # these are not whole
)


def test_recipes_are_shipped():
    assert [
        "bass/st-brctc.yaml",
        "bass/st-vanilla.yaml",
        "digit-strings/attention-brctc.yaml",
        "digit-strings/attention-vanilla.yaml",
        "digit-strings/online.yaml",
        "digit-strings/transducer-brctc.yaml",
        "digit-strings/transducer-second-early.yaml",
        "digit-strings/transducer-second-plain.yaml",
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
        *(f"paper/{name}.yaml" for name in sorted(PAPER)),
        "tatoeba/mt-brctc.yaml",
        "tatoeba/mt-vanilla.yaml",
    ] == NAMES


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
    # the paper's rule, but for what a recipe gives reasons for
    trim = arms[0]["stages"]["second"]["trim"]
    assert (trim["threshold"], trim["margin"]) == (THRESHOLDS.get(name, 0.99), MARGINS.get(name, 2))
    assert arms[0]["stages"]["second"]["losses"]["final"]["risk"]["kind"] == "none"


@pytest.mark.parametrize("name", [name for name in NAMES if "-second-" in name])
def test_the_alternatives_differ_in_one_risk_of_the_second_stage(name):
    """Appendix D: plain CTC, or the early finish, throughout the second stage."""
    chosen = load_recipe(RECIPES / f"{name.partition('-second-')[0]}-brctc.yaml").model_dump(mode="json")
    other = load_recipe(RECIPES / name).model_dump(mode="json")
    changed, kind = ("middle", "none") if "plain" in name else ("final", "early-finish")
    found = dict.fromkeys(key for key, *_ in differences(chosen, other))
    risk = f"stages.second.losses.{changed}.risk"
    assert all(key.startswith(f"{risk}.") for key in found)
    losses = other["stages"]["second"]["losses"]
    assert losses["middle"]["risk"] == losses["final"]["risk"]
    assert losses[changed]["risk"]["kind"] == kind
