"""What changes over the steps of a stage: the learning rate and the risk. Pure functions."""

import math
from itertools import pairwise

from brctc.risk import BayesRisk, DelayPenalty, EarlyEmission, EarlyFinish
from brctc.train.config import Factor, OptimiserConfig, RiskConfig

_RISKS = {"early-finish": EarlyFinish, "early-emission": EarlyEmission, "delay-penalty": DelayPenalty}


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


def risk_factor(factor: Factor, step: int) -> float:
    """The factor at a step: constant, or on straight lines between points, level outside them."""
    if isinstance(factor, int | float):
        return factor
    if step <= factor[0][0]:
        return factor[0][1]
    for (start, low), (end, high) in pairwise(factor):
        if step < end:
            return low + (high - low) * (step - start) / (end - start)
    return factor[-1][1]


def risk_at(risk: RiskConfig, step: int) -> BayesRisk | None:
    """The risk of a step; None where it is plain CTC."""
    factor = risk_factor(risk.factor, step)
    if risk.kind == "none" or factor == 0:
        return None
    return _RISKS[risk.kind](factor)
