"""Is a training as long and as large as `brctc train --dry-run` says?

On one core: CPU time beside the estimate for the registry's core, and the memory that is added.

    python benchmarks/training_cost.py  # a short training of handwriting/brctc
    python benchmarks/training_cost.py --step paper/aishell1-attention-brctc --seconds 20  # full size
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from bars import peak_growth_bytes

from brctc.cli.shared import find_recipe
from brctc.models import System, count_parameters
from brctc.train import Objective, load_recipe, train
from brctc.train.corpus import ensure_prepared
from brctc.train.cost import ADAM_STATES, FLOAT_BYTES, estimate_cost
from brctc.train.devices import DEVICES, hours_on
from brctc.train.plan import plan_data
from brctc.train.step_cost import cost_of_step, synthetic_batch

CORE = DEVICES["cpu-core"]


def compare(call: Callable[[], object], flop: float, memory: float) -> None:
    """Prints what a call takes beside what was estimated."""
    seconds = 0.0

    def timed() -> None:
        nonlocal seconds
        start = time.process_time()
        call()
        seconds = time.process_time() - start

    added = peak_growth_bytes(timed)
    estimated = 3600 * hours_on(CORE, "float32", flop)
    share = flop / seconds / CORE.peak_flops["float32"]
    print(f"  CPU seconds: {seconds:.1f}, estimated {estimated:.1f}: {seconds / estimated:.2f} times that")
    print(f"  {flop / seconds / 1e9:.1f} GFLOP/s, {share:.0%} of what the registry's core could")
    print(f"  memory [MB]: {added / 1e6:.0f}, estimated {memory / 1e6:.0f}: {added / memory:.2f} times that")


def compare_training(steps: int) -> None:
    """Checkpoints, validation and data are part of it; preparing is not."""
    with tempfile.TemporaryDirectory() as folder:
        changes = {"corpus.prepared": f"{folder}/prepared", "checkpoints.every_steps": steps}
        changes |= {f"stages.{stage}.steps": steps for stage in ("first", "second")}
        recipe = load_recipe(find_recipe("handwriting/brctc"), changes)
        ensure_prepared(recipe)
        cost = estimate_cost(recipe)
        print(f"handwriting/brctc, {2 * steps} steps")
        run = Path(folder) / "run"
        compare(lambda: train(recipe, run, progress=False), cost.flop, cost.memory.total)


def compare_step(name: str, seconds: float) -> None:
    """Its last stage, untrimmed, on noise."""
    recipe = load_recipe(find_recipe(name))
    stage, data = list(recipe.stages.values())[-1], plan_data(recipe)
    shape = data.shapes[-1]
    each_s = shape.frames * recipe.frame_shift_ms / 1000
    shape = replace(shape, examples=math.ceil(seconds / each_s))
    cost = cost_of_step(recipe, stage, data.sizes, shape)
    batch = synthetic_batch(recipe, shape, data.sizes, "cpu")

    def two_steps() -> None:  # Adam's state is there from the second on
        system = System(recipe.system_of(stage), data.sizes.input_size, data.sizes.vocab_sizes)
        objective = Objective(system, stage.losses)
        optimiser = torch.optim.Adam(objective.parameters(), fused=True)
        for _ in range(2):
            optimiser.zero_grad(set_to_none=True)
            objective(batch, 0)["loss"].backward()
            optimiser.step()

    with torch.device("meta"):
        system = System(recipe.system_of(stage), data.sizes.input_size, data.sizes.vocab_sizes)
    weights = FLOAT_BYTES * (2 + ADAM_STATES) * count_parameters(system)
    print(f"{name}, two steps of {shape.examples} utterances of {each_s:.1f} s; {cost.flop / 1e12:.2f} TFLOP")
    compare(two_steps, 2 * cost.flop, weights + cost.activation_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=50, help="of each stage of handwriting/brctc")
    parser.add_argument("--step", metavar="RECIPE", help="two steps of this one instead")
    parser.add_argument("--seconds", type=float, default=50.0, help="of audio in that step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.step:
        compare_step(options.step, options.seconds)
    else:
        compare_training(options.steps)


if __name__ == "__main__":
    main()
