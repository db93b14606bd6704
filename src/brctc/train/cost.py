"""What a training will cost, before anything is spent: steps, floating-point operations, memory and hours."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from brctc.train.config import Recipe
from brctc.train.devices import DEVICES, Device, Precision, find_device, hours_on
from brctc.train.plan import DataPlan, Steps, plan_data
from brctc.train.step_cost import BatchShape, build_on_meta, cost_of_step, parameters_by_part

FLOAT_BYTES = 4
ADAM_STATES = 2

Show = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is done, and of how much."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one device."""

    weights: float
    gradients: float
    optimiser: float
    activations: float
    """What the largest batch leaves for its backward pass: an estimate."""

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimiser + self.activations


@dataclass(frozen=True)
class StageCost:
    """Of a stage."""

    length: Steps
    parameters: dict[str, int]
    """By part."""
    flop_per_step: float
    """On all devices together, forward and backward."""
    memory: Memory
    trimmed: bool
    """Whether frames are cut that are counted here."""

    @property
    def flop(self) -> float:
        return self.flop_per_step * self.length.steps


@dataclass(frozen=True)
class Cost:
    """Of a training."""

    data: DataPlan
    stages: dict[str, StageCost]
    precision: Precision
    devices: int
    """How many there are."""

    @property
    def flop(self) -> float:
        return sum(stage.flop for stage in self.stages.values())

    @property
    def memory(self) -> Memory:
        """Of the stage that needs most."""
        return max((stage.memory for stage in self.stages.values()), key=lambda memory: memory.total)

    def hours(self, device: Device) -> float | None:
        """None if the device cannot compute in the recipe's precision."""
        if self.precision not in device.peak_flops:
            return None
        return hours_on(device, self.precision, self.flop, self.devices)


def estimate_cost(
    recipe: Recipe,
    *,
    devices: int = 1,
    hours: float | None = None,
    pairs: int | None = None,
    show: Show = lambda what, done, total: None,
) -> Cost:
    """Checks the recipe and, as far as they are there, its data; counts, and writes nothing.

    `hours` of speech or `pairs` of texts are the size of a corpus that is not prepared.
    """
    if devices < 1:
        raise ValueError(f"--gpus {devices}: expected 1 or more")
    show("looking at the data", 0, 1)
    data = plan_data(recipe, hours, pairs)
    show("looking at the data", 1, 1)
    total = len(recipe.stages)
    stages = {}
    for done, name in enumerate(recipe.stages):
        show("counting a step", done, total)
        stages[name] = _cost_of_stage(recipe, name, data, devices)
    show("counting a step", total, total)
    return Cost(data, stages, recipe.precision, devices)


def choose_devices(name: str | None, precision: Precision) -> dict[str, Device]:
    """The named device, or all; a name that there is not is refused."""
    if name is None:
        return DEVICES
    device = find_device(name, precision)
    return {key: known for key, known in DEVICES.items() if known is device}


def _cost_of_stage(recipe: Recipe, name: str, data: DataPlan, devices: int) -> StageCost:
    stage = recipe.stages[name]
    parts = math.ceil(recipe.optimiser_of(stage).accumulate / devices) * devices
    cut = [_part(shape, parts) for shape in data.shapes]
    costs = [cost_of_step(recipe, stage, data.sizes, part) for part in cut]
    flop = [
        cost.flop * shape.examples / part.examples
        for cost, shape, part in zip(costs, data.shapes, cut, strict=True)
    ]
    usual = flop[:-1] or flop
    parameters = parameters_by_part(build_on_meta(recipe, stage, data.sizes))
    weights = FLOAT_BYTES * sum(parameters.values())
    return StageCost(
        data.stages[name],
        parameters,
        sum(usual) / len(usual),
        Memory(weights, weights, ADAM_STATES * weights, costs[-1].activation_bytes),
        trimmed=stage.trim is not None,
    )


def _part(shape: BatchShape, parts: int) -> BatchShape:
    """The largest part of a batch that is cut."""
    return replace(shape, examples=math.ceil(shape.examples / parts))
