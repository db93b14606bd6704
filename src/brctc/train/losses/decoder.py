"""The loss of a decoder behind the encoder: label-smoothed attention, or the transducer."""

from typing import Literal

from torch import Tensor

from brctc.config import KeyedError
from brctc.models.base import Decoder
from brctc.models.system import SystemConfig
from brctc.train.losses.base import LOSSES, Forward, Loss, LossConfig


@LOSSES.register
class DecoderLossConfig(LossConfig):
    """What a decoder learns."""

    kind: Literal["decoder"] = "decoder"
    of: str
    """The decoder, by its name in model.decoders."""

    @property
    def decoder(self) -> str | None:
        return self.of

    def check(self, model: SystemConfig) -> None:
        if self.of not in model.decoders:
            known = ", ".join(model.decoders) or "none"
            raise KeyedError(
                "of", f"trains an undefined decoder: model.decoders has {known}, not {self.of!r}"
            )

    def build(self) -> "DecoderLoss":
        return DecoderLoss(self)


class DecoderLoss(Loss):
    """The decoder's own loss on the tap that it attends to."""

    def __init__(self, config: DecoderLossConfig) -> None:
        super().__init__()
        self.name = config.of

    def forward(self, forward: Forward, step: int) -> Tensor:
        system = forward.system
        decoder, config = system.decoders[self.name], system.config.decoders[self.name]
        assert isinstance(decoder, Decoder)
        return decoder.loss(forward.encoded.taps[config.on], forward.batch.targets[config.text])
