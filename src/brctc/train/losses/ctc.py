"""Bayes-risk CTC on a tap of the encoder."""

from typing import Literal

from torch import Tensor

from brctc.data.batch import Padded
from brctc.data.checks import TooLong
from brctc.loss import bayes_risk_ctc_loss
from brctc.risk import BayesRisk
from brctc.train.factors import factor_at
from brctc.train.losses.base import LOSSES, Forward, HeadLossConfig, Loss
from brctc.train.risks import AnyRisk, NoRiskConfig


@LOSSES.register
class CTCConfig(HeadLossConfig):
    """CTC, plain or with a risk."""

    kind: Literal["ctc"] = "ctc"
    risk: AnyRisk = NoRiskConfig()
    """Which alignments are preferred."""
    infeasible: Literal["refuse", "skip"] = "refuse"
    """What to do with a text that has more labels than frames: refuse the corpus, with its id; or skip this
    loss for it, and let the others train it. How many there are is in the log."""

    @property
    def too_long(self) -> TooLong:
        return "counted" if self.infeasible == "skip" else "refused"

    def factors(self, step: int) -> dict[str, float]:
        return {"risk": factor_at(self.risk.factor, step)}

    def build(self) -> "CTC":
        return CTC(self)


class CTC(Loss):
    """The loss of a head on a tap."""

    def __init__(self, config: CTCConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, forward: Forward, step: int) -> Tensor:
        config = self.config
        logits = forward.encoded.logits(config.on, config.text)
        targets, skip = forward.batch.targets[config.text], config.infeasible == "skip"
        return ctc_loss(logits, targets, config.risk.at(step), skip_infeasible=skip)


def ctc_loss(
    logits: Padded, targets: Padded, risk: BayesRisk | None, *, skip_infeasible: bool = False
) -> Tensor:
    """Bayes-risk CTC of (N, T, C) logits, in nats per label."""
    return bayes_risk_ctc_loss(
        logits.values.transpose(0, 1),
        targets.values,
        logits.lengths,
        targets.lengths,
        risk,
        from_logits=True,
        zero_infinity=skip_infeasible,
    )
