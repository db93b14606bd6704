"""The risks that a recipe can name. A new one registers itself in RISKS."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, SerializeAsAny, model_validator

from brctc.config import KeyedError, Kind, Registry
from brctc.risk import BayesRisk, DelayPenalty, EarlyEmission, EarlyFinish
from brctc.train.factors import Factor, factor_at, is_zero

RISKS: Registry["RiskConfig"] = Registry("risk", default="none")


class RiskConfig(Kind):
    """Which alignments a CTC prefers, and how strongly."""

    registry: ClassVar[Registry[Any]] = RISKS
    moves_spikes: ClassVar[bool] = False
    """Whether spikes are no longer where the words are: then there are no times to give out."""

    kind: str
    factor: Factor = 0.0
    """A number, or [step, value] points with straight lines between them; steps of the stage."""

    @model_validator(mode="after")
    def _factor_fits(self) -> "RiskConfig":
        if self.kind == "none" and not is_zero(self.factor):
            raise KeyedError("factor", f'a risk of kind "none" has no factor, but it is {self.factor}')
        if self.kind != "none" and self.factor == 0:
            raise KeyedError("factor", f"a risk of kind {self.kind} needs a factor above 0")
        return self

    def at(self, step: int) -> BayesRisk | None:
        """The risk of a step; None where it is plain CTC."""
        factor = factor_at(self.factor, step)
        return None if factor == 0 else self.build(factor)

    def build(self, factor: float) -> BayesRisk | None:
        """The risk with a factor above 0."""
        raise NotImplementedError


@RISKS.register
class NoRiskConfig(RiskConfig):
    """Plain CTC."""

    kind: Literal["none"] = "none"

    def build(self, factor: float) -> None:
        return None


@RISKS.register
class EarlyFinishConfig(RiskConfig):
    """All tokens at the left. The factor is what the length of a whole utterance costs, in nats."""

    moves_spikes: ClassVar[bool] = True

    kind: Literal["early-finish"] = "early-finish"

    def build(self, factor: float) -> BayesRisk:
        return EarlyFinish(factor)


@RISKS.register
class EarlyEmissionConfig(RiskConfig):
    """Each token earlier where it is. The factor is what the length of a whole utterance costs, in nats."""

    kind: Literal["early-emission"] = "early-emission"

    def build(self, factor: float) -> BayesRisk:
        return EarlyEmission(factor)


@RISKS.register
class DelayPenaltyConfig(RiskConfig):
    """k2's delay penalty. The factor is what a frame costs, in nats."""

    kind: Literal["delay-penalty"] = "delay-penalty"

    def build(self, factor: float) -> BayesRisk:
        return DelayPenalty(factor)


AnyRisk = Annotated[SerializeAsAny[RiskConfig], BeforeValidator(RISKS.parse)]
