"""The learning rate over the steps of a stage, a pure function."""

import math

from brctc.train.config import OptimiserConfig


def learning_rate(optimiser: OptimiserConfig, step: int, total_steps: int) -> float:
    """The rate of a step, counted from 0, of a stage of `total_steps`.

    Both schedules rise linearly over the warm-up and reach the peak at its last step.
    "inverse-sqrt": then peak * sqrt(warmup / step). "hold-cosine": the peak until a share `hold` of the
    stage, at least of the warm-up, then half a cosine down to floor * peak at its last step.
    """
    number, warmup = step + 1, optimiser.warmup_steps
    if number < warmup:
        return optimiser.peak_rate * number / warmup
    if optimiser.schedule == "inverse-sqrt":
        return optimiser.peak_rate * math.sqrt(max(warmup, 1) / number)
    hold, floor = optimiser.hold, optimiser.floor
    assert hold is not None, "OptimiserConfig sees to it"
    assert floor is not None
    held = max(hold * total_steps, warmup)
    way = min(max((number - held) / max(total_steps - held, 1), 0.0), 1.0)
    return optimiser.peak_rate * (floor + (1 - floor) * (1 + math.cos(math.pi * way)) / 2)
