"""How long does a training step take, and how much of it is waiting for data?

Short trainings of the recipes behind the README's figures, on real data, one thread each. With another
checkout beside this one, both take turns, and the ratio of their medians is what counts.

    python benchmarks/train_step.py --digits data/audiomnist
    python benchmarks/train_step.py --digits data/audiomnist --against ../before
    python benchmarks/train_step.py --quick                 # handwriting alone, a few steps

The other checkout has a .venv of its own. A recipe that it writes differently is passed with
--against-set, once for each recipe: --against-set 'handwriting/brctc batch_s=16'.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bars import Check, finish

ROOT = Path(__file__).parent.parent
RECIPES = ("handwriting/brctc", "digit-strings/transducer-brctc", "digit-strings/online")
SKIPPED = 10  # steps until everything is warm


def stages(recipe: str, steps: int) -> list[str]:
    """The last stage is where most of the work is: it gets all but a few steps."""
    if recipe.endswith("online"):
        return [f"stages.only.steps={steps}"]
    return ["stages.first.steps=2", f"stages.second.steps={steps}"]


def run(checkout: Path, recipe: str, folder: Path, steps: int, changes: list[str]) -> list[dict]:
    """The steps of a short training by a checkout's own code."""
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    python = checkout / ".venv" / "bin" / "python"
    fixed = ["checkpoints.every_steps=100000", "monitor={dev_utterances: 0, tensorboard: false}"]
    fixed.append(f"corpus.prepared={folder / 'prepared'}")
    command = [python, "-m", "brctc", "train", recipe, "--out", out, "--set", *stages(recipe, steps)]
    subprocess.run(
        [*map(str, command), *fixed, *changes],
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"},
        check=True,
        capture_output=True,
        cwd=checkout,
    )
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [line["seconds"] for line in lines if "seconds" in line][SKIPPED:]


def total(seconds: dict) -> float:
    return sum(seconds.values())


def measure(recipe: str, options: argparse.Namespace, folder: Path) -> tuple[list[Check], dict]:
    sides = {"this": (ROOT, options.sets)}
    if options.against:
        sides["other"] = (Path(options.against).resolve(), options.against_sets.get(recipe, []))
    steps: dict[str, list[dict]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, (checkout, changes) in sides.items():
            place = folder / name / recipe
            place.mkdir(parents=True, exist_ok=True)
            steps[name] += run(checkout, recipe, place, options.steps, list(changes))
    medians = {name: statistics.median(map(total, found)) for name, found in steps.items()}
    waited = sum(s["data"] for s in steps["this"]) / sum(map(total, steps["this"]))
    against = f", {medians['this'] / medians['other']:.3f} of the other's" if "other" in medians else ""
    print(f"{recipe}: {1e3 * medians['this']:.1f} ms a step{against}; waiting for data {waited:.2%}")
    checks = [Check(f"{recipe}: share of waiting for data", waited, 0.05, at_most=True)]
    if "other" in medians:
        ratio = medians["this"] / medians["other"]
        checks.append(Check(f"{recipe}: step against the other checkout", ratio, 1.0, at_most=True))
    return checks, {"medians": medians, "waiting": waited}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--digits", help="AudioMNIST's folder or manifest; without it, handwriting alone")
    parser.add_argument("--against", metavar="DIR", help="another checkout with its own .venv")
    parser.add_argument("--against-set", action="append", default=[], metavar="RECIPE KEY=VALUE ...")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--quick", action="store_true", help="one round of a few steps of handwriting")
    parser.add_argument("--json", metavar="FILE", help="gets the figures")
    options = parser.parse_args()
    options.against_sets = {text.split()[0]: text.split()[1:] for text in options.against_set}
    if options.quick:
        options.rounds, options.steps = 1, 15
    recipes = RECIPES if options.digits and not options.quick else RECIPES[:1]
    checks: list[Check] = []
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for recipe in recipes:
            digits = recipe.startswith("digit-strings")
            options.sets = [f"corpus.source={Path(options.digits).resolve()}"] if digits else []
            found, figures[recipe] = measure(recipe, options, Path(folder))
            checks += found
    finish(checks, figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
