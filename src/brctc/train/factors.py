"""Numbers that change over the steps of a stage: risk factors and loss weights."""

from itertools import pairwise
from typing import Annotated, Any

from pydantic import BeforeValidator


def _check_factor(value: Any) -> Any:
    """A number, or points in the order of their steps."""
    if not isinstance(value, list | tuple):
        return _factor_value(value)
    points = []
    for point in value:
        if not isinstance(point, list | tuple) or len(point) != 2:
            raise ValueError(f"expected a number or a list of [step, value] points, got the point {point!r}")
        step, factor = point
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"the step of the point {list(point)} must be a whole number from 0")
        if points and step <= points[-1][0]:
            raise ValueError(f"the points' steps must rise, but {step} follows {points[-1][0]}")
        points.append((step, _factor_value(factor)))
    if not points:
        raise ValueError("expected a number or a list of [step, value] points, got an empty list")
    return tuple(points)


def _factor_value(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"expected a finite number from 0 or a list of [step, value] points, got {value!r}")
    return float(value)


Factor = Annotated[float | tuple[tuple[int, float], ...], BeforeValidator(_check_factor)]
"""A number, or [step, value] points with straight lines between them; steps of the stage."""


def factor_at(factor: Factor, step: int) -> float:
    """The factor at a step: constant, or on straight lines between points, level outside them."""
    if isinstance(factor, int | float):
        return factor
    if step <= factor[0][0]:
        return factor[0][1]
    for (start, low), (end, high) in pairwise(factor):
        if step < end:
            return low + (high - low) * (step - start) / (end - start)
    return factor[-1][1]


def is_zero(factor: Factor) -> bool:
    """Whether it is 0 at every step."""
    return all(value == 0 for _, value in factor) if isinstance(factor, tuple) else factor == 0
