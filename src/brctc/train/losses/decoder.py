"""The loss of a decoder behind the encoder: label-smoothed attention, or the transducer."""

from typing import Literal

from torch import Tensor

from brctc.config import KeyedError, Probability
from brctc.models.base import Decoder
from brctc.models.system import SystemConfig
from brctc.train.losses.base import LOSSES, Forward, Loss, LossConfig


@LOSSES.register
class DecoderLossConfig(LossConfig):
    """What a decoder learns."""

    kind: Literal["decoder"] = "decoder"
    of: str
    """The decoder, by its name in model.decoders."""
    skip_blanks: Probability | None = None
    """It sees no frame whose CTC blank is more likely than this; decode.skip_blanks is for decoding."""

    @property
    def decoder(self) -> str | None:
        return self.of

    def check(self, model: SystemConfig) -> None:
        if self.of not in model.decoders:
            known = ", ".join(model.decoders) or "none"
            raise KeyedError(
                "of", f"trains an undefined decoder: model.decoders has {known}, not {self.of!r}"
            )
        decoder = model.decoders[self.of]
        head = model.heads.get(decoder.text)
        if self.skip_blanks is not None and (head is None or head.on != decoder.on):
            raise KeyedError("skip_blanks", f"needs a CTC head of {decoder.text} on {decoder.on}")

    def build(self) -> "DecoderLoss":
        return DecoderLoss(self)


class DecoderLoss(Loss):
    """The decoder's own loss on the tap that it attends to."""

    def __init__(self, config: DecoderLossConfig) -> None:
        super().__init__()
        self.name, self.skip_blanks = config.of, config.skip_blanks

    def forward(self, forward: Forward, step: int) -> Tensor:
        system = forward.system
        decoder, config = system.decoders[self.name], system.config.decoders[self.name]
        assert isinstance(decoder, Decoder)
        memory = forward.encoded.seen_by(self.name, self.skip_blanks).hidden
        return decoder.loss(memory, forward.batch.targets[config.text])
