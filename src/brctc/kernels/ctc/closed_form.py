"""The weightings of paths whose loss is computed as one, without path groups."""

import math
from enum import IntEnum
from typing import NamedTuple


class RiskKind(IntEnum):
    """What weighs the paths, numbered as `enum class Risk` in native/kernels.h."""

    NONE = 0
    EARLY_FINISH = 1
    EARLY_EMISSION = 2
    DELAY_PENALTY = 3


class ClosedForm(NamedTuple):
    """A risk as the kernels know it."""

    kind: RiskKind
    factor: float  # 0 without a risk


PLAIN_CTC = ClosedForm(RiskKind.NONE, 0.0)


def checked_form(risk: int, factor: float) -> ClosedForm:
    """What an operator is called with, by anyone."""
    if risk not in list(RiskKind) or not math.isfinite(factor):
        raise ValueError(f"risk {risk} with factor {factor} is not a closed form")
    return ClosedForm(RiskKind(risk), factor)
