"""A step of each system at full size, on noise: how fast it is, and how much memory it takes."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from brctc.check.findings import Check, NotHereError, Outcome
from brctc.data.batch import Batch
from brctc.models import System
from brctc.train import Objective, Recipe, load_recipe, parse_recipe
from brctc.train.config import Stage
from brctc.train.cost import ADAM_STATES, FLOAT_BYTES
from brctc.train.devices import DEVICES, UTILISATION, Precision
from brctc.train.objective import TOTAL
from brctc.train.plan import assume_batch
from brctc.train.step_cost import BatchShape, Sizes, StepCost, cost_of_step, synthetic_batch

GROUP = "systems"
WARM_UP = 2
SMALL: dict[str, int] = {
    "dim": 32,
    "heads": 2,
    "feed_forward_dim": 32,
    "layers": 1,
    "first_layers": 1,
    "second_layers": 1,
    "prediction_dim": 32,
    "joint_dim": 32,
    "subsampling_channels": 4,
}
"""Widths and depths where there is no GPU."""
SMALL_BATCH, SMALL_VOCABULARY = {"seconds": 10.0, "tokens": 100}, 50


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    small: bool
    seconds: float
    """In which steps of one stage are counted, once it is warm."""


def system_checks(device: torch.device, recipes: Sequence[Path], effort: Effort) -> Iterator[Check]:
    """Each stage of each recipe in float32, and on a GPU in bfloat16."""
    precisions: tuple[Precision, ...] = ("float32",) if device.type == "cpu" else ("float32", "bf16")
    for path, precision in product(recipes, precisions):
        stages = load_recipe(path).stages
        for stage in stages:
            name = path.stem if len(stages) == 1 else f"{path.stem}, stage {stage}"
            run = partial(_measure, device, path, stage, precision, effort)
            yield Check(GROUP, f"{name}, {precision}", run)


def _measure(device: torch.device, path: Path, stage: str, precision: Precision, effort: Effort) -> Outcome:
    if precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise NotHereError("this GPU has no bf16")
    recipe = load_recipe(path, {"precision": precision})
    recipe = reduced(recipe) if effort.small else recipe
    sizes, shape = assume_batch(recipe.model_copy(update={"start": None}))
    if effort.small:
        sizes = replace(sizes, vocab_sizes=dict.fromkeys(sizes.vocab_sizes, SMALL_VOCABULARY))
        if recipe.corpus.input == "text":
            sizes = replace(sizes, input_size=SMALL_VOCABULARY)
    halved = 0
    while True:
        try:
            return _steps(recipe, recipe.stages[stage], sizes, shape, device, effort, halved)
        except torch.OutOfMemoryError:
            if shape.examples == 1:
                raise
        torch.cuda.empty_cache()  # outside of the handler, which holds on to what the step has made
        halved, shape = halved + 1, replace(shape, examples=max(1, shape.examples // 2))


def reduced(recipe: Recipe) -> Recipe:
    """The same system with narrow layers, and a small batch."""
    content = recipe.model_dump(mode="json")
    content["model"] = _narrow(content["model"])
    content["batch"] = {key: SMALL_BATCH[key] for key, value in content["batch"].items() if value is not None}
    return parse_recipe(content)


def _narrow(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        key: min(inner, SMALL[key]) if key in SMALL and isinstance(inner, int) else _narrow(inner)
        for key, inner in value.items()
    }


def _steps(
    recipe: Recipe,
    stage: Stage,
    sizes: Sizes,
    shape: BatchShape,
    device: torch.device,
    effort: Effort,
    halved: int,
) -> Outcome:
    torch.manual_seed(0)
    system = System(recipe.system_of(stage), sizes.input_size, sizes.vocab_sizes)
    objective = Objective(system, stage.losses, stage.trim).to(device)
    batch = synthetic_batch(recipe, shape, sizes, device)
    training = _Training(objective, batch, device, recipe.precision)
    with _peak_memory(device) as peak:
        losses = [training.step() for _ in range(1 if effort.small else WARM_UP)]
        count, seconds = training.count_steps(effort.seconds)
    cost = cost_of_step(recipe, stage, sizes, shape)
    weights = FLOAT_BYTES * (2 + ADAM_STATES) * sum(p.numel() for p in objective.parameters())
    figures = {
        "examples": shape.examples,
        "frames": shape.frames,
        "halved": halved,
        "loss": losses[0],
        "steps_per_second": count / seconds,
        "peak_bytes": peak.get("bytes"),
        "estimated_bytes": weights + cost.activation_bytes,
        **_reached(cost, count / seconds, device, recipe.precision),
    }
    good = all(map(math.isfinite, losses))
    return Outcome(_describe(figures) if good else f"the loss is {losses}", figures, good)


def _describe(figures: dict[str, Any]) -> str:
    said = [f"{figures['steps_per_second']:.3g} steps/s", f"{figures['tflop_per_second']:.3g} TFLOP/s"]
    if (peak := figures["peak_bytes"]) is not None:
        said.append(f"{peak / 1e9:.1f} GB (estimated {figures['estimated_bytes'] / 1e9:.1f})")
    if (share := figures.get("utilisation")) is not None:
        said.append(f"{share:.0%} of the peak (assumed {figures['assumed_utilisation']:.0%})")
    said.append(f"batch {figures['examples']} x {figures['frames']}")
    if figures["halved"]:
        said.append(f"OUT OF MEMORY at first: batch halved {figures['halved']} times")
    return ", ".join(said)


def _reached(cost: StepCost, steps_per_second: float, device: torch.device, precision: Precision) -> dict:
    """Operations in a second, and, of a device that is known, the share of its peak."""
    reached = cost.flop * steps_per_second
    figures = {"tflop_per_second": reached / 1e12}
    name = torch.cuda.get_device_name(device).lower() if device.type == "cuda" else ""
    for key, known in DEVICES.items():
        if key.replace("-", " ") in name and precision in known.peak_flops:
            figures["utilisation"] = reached / known.peak_flops[precision]
            figures["assumed_utilisation"] = UTILISATION[precision]
    return figures


class _Training:
    """Steps as the training loop makes them, on one batch."""

    def __init__(self, objective: Objective, batch: Batch, device: torch.device, precision: str) -> None:
        self._objective, self._batch, self._device, self._precision = objective, batch, device, precision
        self._optimiser = torch.optim.Adam(objective.parameters(), 1e-5, fused=True)

    def step(self) -> float:
        """Returns the loss, which waits for the device as the loop does."""
        self._optimiser.zero_grad(set_to_none=True)
        half = self._precision == "bf16"
        with torch.autocast(self._device.type, torch.bfloat16, enabled=half):
            loss = self._objective(self._batch, 0)[TOTAL]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._objective.parameters(), 5.0)
        self._optimiser.step()
        return loss.item()

    def count_steps(self, at_least_s: float) -> tuple[int, float]:
        """How many were made, in how many seconds."""
        start, count = time.perf_counter(), 0
        while count == 0 or time.perf_counter() - start < at_least_s:
            self.step()
            count += 1
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return count, time.perf_counter() - start


@contextmanager
def _peak_memory(device: torch.device) -> Iterator[dict[str, int]]:
    """The bytes that tensors took at most, in "bytes"; nothing where there is no GPU."""
    found: dict[str, int] = {}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    yield found
    if device.type == "cuda":
        found["bytes"] = torch.cuda.max_memory_allocated(device)
