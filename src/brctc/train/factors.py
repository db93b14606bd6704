"""Numbers that change over the steps of a stage: risk factors and loss weights."""

from typing import Annotated

from pydantic import BeforeValidator

from brctc.schedule import Points, check_points, value_at

Factor = Annotated[Points, BeforeValidator(check_points)]
"""A number, or [step, value] points with straight lines between them; steps of the stage."""


def factor_at(factor: Factor, step: int) -> float:
    """The factor at a step."""
    return value_at(factor, step)


def is_zero(factor: Factor) -> bool:
    """Whether it is 0 at every step."""
    return all(value == 0 for _, value in factor) if isinstance(factor, tuple) else factor == 0
