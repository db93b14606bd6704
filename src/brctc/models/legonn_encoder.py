"""The paper's encoder of machine translation: a Transformer that makes its sequence longer in the middle.

CTC needs at least as many frames as labels, and a translation is about as long as its source: so each token
becomes `up_sampling` frames (LegoNN, Dalmia et al., 2022, as Yan et al., 2022, use it for CTC). Neither
paper says how frames of one token differ. Here each has a linear layer of its own, and its place is added:
the layer tells the frames of a token apart, the place tells how far each is from the beginning, which is
what an early finish is about.
"""

import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from brctc.data.batch import Padded
from brctc.models.base import (
    ENCODERS,
    FINAL,
    MIDDLE,
    TRIMMED,
    AttentionDropout,
    Dim,
    Encoder,
    Heads,
    Layers,
    Trim,
    check_heads,
)
from brctc.models.layers import Dropout
from brctc.models.phases import InPhases, PhasedEncoderConfig
from brctc.models.positions import frame_positions
from brctc.models.transformer import Transformer


@ENCODERS.register
class LegoNNConfig(PhasedEncoderConfig):
    """A Transformer on tokens, up-sampled between its halves. The defaults are those of table 6."""

    taps: ClassVar[tuple[str, ...]] = (MIDDLE, TRIMMED, FINAL)
    trims_at: ClassVar[str | None] = MIDDLE
    input: ClassVar[Literal["frames", "tokens"]] = "tokens"

    kind: Literal["legonn"] = "legonn"
    subsampling: Literal[1] = 1
    dim: Dim = 512
    heads: Heads = 4
    feed_forward_dim: Dim = 1024
    first_layers: Layers = 6
    """Before the up-sampling."""
    middle_layers: Annotated[int, Field(ge=0, le=1000)] = 0
    """Behind the up-sampling, before the tap `middle`, on all frames; the paper has none."""
    second_layers: Layers = 6
    """Behind that tap, on what trimming leaves."""
    up_sampling: Annotated[int, Field(ge=1, le=100)] = 3
    """Frames that come of a token."""
    dropout: float = Field(0.3, ge=0, lt=1)
    attention_dropout: float = AttentionDropout
    """As a Conformer's."""

    @model_validator(mode="after")
    def _check(self) -> "LegoNNConfig":
        check_heads(self.dim, self.heads)
        return self

    @property
    def up_sampling_factor(self) -> int:
        return self.up_sampling

    def build(self, input_size: int) -> "LegoNNEncoder":
        return LegoNNEncoder(self, input_size)


class LegoNNEncoder(Encoder):
    """(N, T) tokens to the taps `middle`, `trimmed` and `final`, of `up_sampling` times as many frames."""

    def __init__(self, config: LegoNNConfig, vocab_size: int) -> None:
        super().__init__()
        dim, self.up_sampling, self.phases = config.dim, config.up_sampling, config.phases
        self.embedding = nn.Embedding(vocab_size, dim)
        nn.init.normal_(self.embedding.weight, std=dim**-0.5)
        self.dropout = Dropout(config.dropout)
        sizes = (dim, config.heads, config.feed_forward_dim, config.dropout, config.attention_dropout)
        self.first = Transformer(config.first_layers, *sizes, relative=False)
        self.spread = nn.Linear(dim, config.up_sampling * dim)
        self.middle = Transformer(config.middle_layers, *sizes, relative=False)
        self.second = Transformer(config.second_layers, *sizes, relative=False)

    def forward(self, source: Padded, trim: Trim | None = None) -> dict[str, Padded]:
        entered = self._enter(source)
        frames = self._up_sample(self.first(*entered), entered.lengths)
        phases = InPhases(frames, self.phases)
        middle = phases.apart(Padded(self.middle(*frames), frames.lengths))
        trimmed = phases.joined(middle if trim is None else trim(MIDDLE, middle))
        final = Padded(self.second(*trimmed), trimmed.lengths)
        return {MIDDLE: middle, TRIMMED: trimmed, FINAL: final}

    def _enter(self, source: Padded) -> Padded:
        x = self.embedding(source.values) * math.sqrt(self.embedding.embedding_dim)
        return Padded(self.dropout(x + frame_positions(x.shape[1], x)), source.lengths)

    def _up_sample(self, x: Tensor, lengths: Tensor) -> Padded:
        """(N, T, D) to (N, R T, D): frame R t + r is of token t."""
        frames = self.spread(x).unflatten(-1, (self.up_sampling, -1)).flatten(1, 2)
        return Padded(frames + frame_positions(frames.shape[1], frames), self.up_sampling * lengths)

    @torch.no_grad()
    def attention_weights(self, source: Padded, trim: Trim | None = None) -> list[Tensor]:
        """Each layer's (N, H, T, T) self-attention; T is that of the tokens, of the frames, of those kept."""
        entered = self._enter(source)
        hidden, first = self.first.attention_weights(*entered)
        frames = self._up_sample(hidden, entered.lengths)
        phases = InPhases(frames, self.phases)
        hidden, middle = self.middle.attention_weights(*frames)
        kept = phases.apart(Padded(hidden, frames.lengths))
        trimmed = phases.joined(kept if trim is None else trim(MIDDLE, kept))
        return first + middle + self.second.attention_weights(*trimmed)[1]
