"""Numbers that change over the steps of a training, and risks that follow them."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

from brctc.risk import BayesRisk

Points = float | tuple[tuple[int, float], ...]
"""A number, or (step, value) points with straight lines between them."""


def check_points(value: Any) -> Points:
    """A number, or points in the order of their steps; raises for anything else."""
    if not isinstance(value, list | tuple):
        return _check_number(value)
    points = []
    for point in value:
        if not isinstance(point, list | tuple) or len(point) != 2:
            raise ValueError(f"expected a number or a list of [step, value] points, got the point {point!r}")
        step, number = point
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"the step of the point {list(point)} must be a whole number from 0")
        if points and step <= points[-1][0]:
            raise ValueError(f"the points' steps must rise, but {step} follows {points[-1][0]}")
        points.append((step, _check_number(number)))
    if not points:
        raise ValueError("expected a number or a list of [step, value] points, got an empty list")
    return tuple(points)


def _check_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"expected a finite number from 0 or a list of [step, value] points, got {value!r}")
    return float(value)


def value_at(points: Points, step: int) -> float:
    """The value at a step: constant, or on straight lines between points, level outside them."""
    if isinstance(points, int | float):
        return points
    if step <= points[0][0]:
        return points[0][1]
    for (start, low), (end, high) in pairwise(points):
        if step < end:
            return low + (high - low) * (step - start) / (end - start)
    return points[-1][1]


class HasRisk(Protocol):
    """What a schedule sets the risk of: `BayesRiskCTCLoss`, or anything with the attribute."""

    risk: BayesRisk | None


class RiskSchedule:
    """A risk whose factor follows the steps of a training, as a learning rate does.

    >>> criterion = BayesRiskCTCLoss()
    >>> schedule = RiskSchedule(criterion, EarlyEmission, [(0, 0), (500, 20), (2000, 8)])

    The first factor is set at once; `step()`, behind `optimizer.step()`, sets the next one. Between points
    the factor goes along straight lines, outside of them it stays. A factor of 0 is plain CTC. What
    `state_dict` gives belongs into the checkpoint: a reloaded run goes on with the right factor.

    Args:
        criterion: whose `risk` is set.
        risk: makes a risk of a factor: `EarlyFinish`, or `lambda factor: EarlyEmission(factor) + window`.
        factor: a number, or (step, factor) points in the order of their steps.
    """

    def __init__(
        self,
        criterion: HasRisk,
        risk: Callable[[float], BayesRisk],
        factor: float | Sequence[tuple[int, float]],
    ) -> None:
        if not hasattr(criterion, "risk"):
            raise TypeError(f"criterion must have a risk, as BayesRiskCTCLoss has, got {criterion!r}")
        if not callable(risk):
            raise TypeError(f"risk must make a risk of a factor, as the class EarlyFinish does, got {risk!r}")
        self.criterion, self.risk = criterion, risk
        self.points = check_points(factor)
        self.last_step = 0
        self._set()

    @property
    def factor(self) -> float:
        """What is in force."""
        return value_at(self.points, self.last_step)

    def step(self, step: int | None = None) -> None:
        """Goes on by one step, or to a given one, counted from 0."""
        if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
            raise ValueError(f"step is {step!r}, expected a whole number from 0")
        self.last_step = self.last_step + 1 if step is None else step
        self._set()

    def state_dict(self) -> dict[str, Any]:
        """Step and points, as plain numbers."""
        return {"last_step": self.last_step, "points": self.points}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the state was taken, with its points."""
        if missing := {"last_step", "points"} - set(state):
            raise ValueError(f"the state of a RiskSchedule lacks {sorted(missing)}")
        self.points = check_points(state["points"])
        self.step(state["last_step"])

    def _set(self) -> None:
        self.criterion.risk = None if self.factor == 0 else self.risk(self.factor)

    def __repr__(self) -> str:
        name = getattr(self.risk, "__name__", repr(self.risk))
        return f"RiskSchedule({name}, {self.points}, last_step={self.last_step})"
