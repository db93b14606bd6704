"""CTC heads: classifiers of frames, attached to an encoder's taps."""

from torch import nn

from brctc.config import Config
from brctc.models.base import FINAL


class HeadConfig(Config):
    """A classifier of frames. One serves all taps on which its text is predicted, as in the paper."""

    on: str = FINAL
    """A tap that has the size it is made for."""


class CTCHead(nn.Linear):
    """Frames (N, T, D) to logits (N, T, C)."""

    def __init__(self, dim: int, vocab_size: int) -> None:
        super().__init__(dim, vocab_size)
        # logits that differ from the first step on: the smaller they start, the longer CTC says blank only
        nn.init.normal_(self.weight, std=2 * dim**-0.5)
        nn.init.zeros_(self.bias)
