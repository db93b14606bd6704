"""A term of the objective: a config, a small module, and a weight that may change over the steps."""

from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import BeforeValidator, SerializeAsAny
from torch import Tensor, nn

from brctc.config import KeyedError, Kind, Registry
from brctc.data.batch import Batch
from brctc.data.checks import TooLong
from brctc.models.base import FINAL
from brctc.models.system import Encoded, System, SystemConfig
from brctc.train.factors import Factor

LOSSES: Registry["LossConfig"] = Registry("loss")
"""Every loss registers itself: a new one is a file with a `LossConfig` and a `Loss`."""


class LossConfig(Kind):
    """A term of the objective as data."""

    registry: ClassVar[Registry[Any]] = LOSSES

    kind: str
    weight: Factor = 1.0
    """A number, or [step, value] points with straight lines between them; steps of the stage."""

    @property
    def tap(self) -> str | None:
        """The tap that it is computed on; None if a decoder's own."""
        return None

    @property
    def ctc_text(self) -> str | None:
        """The text that it aligns with frames; None if it aligns none."""
        return None

    @property
    def too_long(self) -> TooLong:
        """What becomes of a text that has more labels than frames."""
        return "refused"

    @property
    def copies(self) -> int:
        """How often it needs each utterance in a batch."""
        return 1

    @property
    def decoder(self) -> str | None:
        """The decoder that it trains."""
        return None

    def check(self, model: SystemConfig) -> None:
        """Refuses a model that lacks what the loss needs: a KeyedError names the key."""

    def factors(self, step: int) -> dict[str, float]:
        """What else changes over the steps, for the log."""
        return {}

    def build(self) -> "Loss":
        """The module that computes it."""
        raise NotImplementedError


class HeadLossConfig(LossConfig):
    """A term on the output of a CTC head."""

    on: str = FINAL
    """The tap that it is computed on."""
    text: str = "transcript"
    """The text that the head predicts."""

    @property
    def tap(self) -> str | None:
        return self.on

    @property
    def ctc_text(self) -> str | None:
        return self.text

    def check(self, model: SystemConfig) -> None:
        check_head(model, self.on, self.text)


class Forward(NamedTuple):
    """What a loss is computed from."""

    system: System
    encoded: Encoded
    batch: Batch


class Loss(nn.Module):
    """Computes a term; parameters and buffers of its own are trained and stored with the system's."""

    def forward(self, forward: Forward, step: int) -> Tensor:
        """Nats per label, averaged over the batch."""
        raise NotImplementedError


AnyLoss = Annotated[SerializeAsAny[LossConfig], BeforeValidator(LOSSES.parse)]


def check_head(model: SystemConfig, on: str, text: str) -> None:
    """Refuses a CTC head that there is not."""
    model.check_tap("on", on)
    own = model.heads[text].on if text in model.heads else on
    if model.tap_dim(on) != model.tap_dim(own):
        sizes = f"{model.tap_dim(on)} features, that of {own!r} takes {model.tap_dim(own)}"
        raise KeyedError("on", f"the tap {on!r} has {sizes}")
    if text not in model.heads:
        raise KeyedError(
            "text", f"there is no CTC head for {text!r}: model.heads has {', '.join(model.heads)}"
        )
