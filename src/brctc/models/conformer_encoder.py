"""A Conformer in two halves, between which frames can be dropped (the paper's offline encoder)."""

from typing import ClassVar, Literal

import torch
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn

from brctc.data.batch import Padded
from brctc.models.base import (
    ENCODERS,
    FINAL,
    MIDDLE,
    TRIMMED,
    AttentionDropout,
    Dim,
    Dropout,
    Encoder,
    Heads,
    Layers,
    Trim,
    check_heads,
    check_kernel_size,
)
from brctc.models.conformer import Conformer
from brctc.models.layers import Dropout as DropoutLayer
from brctc.models.phases import InPhases, PhasedEncoderConfig
from brctc.models.positions import frame_positions
from brctc.models.subsampling import Subsampling, check_long_enough


@ENCODERS.register
class ConformerConfig(PhasedEncoderConfig):
    """A Conformer in two halves. The defaults are those of the paper's table 3."""

    taps: ClassVar[tuple[str, ...]] = (MIDDLE, TRIMMED, FINAL)
    trims_at: ClassVar[str | None] = MIDDLE

    kind: Literal["conformer"] = "conformer"
    subsampling: Literal[1, 2, 4] = 4
    subsampling_channels: PositiveInt | None = None
    """Channels of the subsampling convolutions. None: dim, as usual; on a CPU they would then take
    most of a small model's time, and 16 or 32 do."""
    dim: Dim = 512
    heads: Heads = 4
    feed_forward_dim: Dim = 2048
    first_layers: Layers = 6
    second_layers: Layers = 6
    kernel_size: PositiveInt = 31
    dropout: float = Dropout
    attention_dropout: float = AttentionDropout
    """Of attention weights, in training. On a CPU a layer (dim 256, 4 heads) takes as long as without it for
    utterances of up to 100 frames, 5% longer for 400 frames and 14% longer for 1,000
    (`benchmarks/attention_dropout.py`)."""
    positions: Literal["relative", "sinusoidal"] = "relative"

    @model_validator(mode="after")
    def _check(self) -> "ConformerConfig":
        check_heads(self.dim, self.heads)
        check_kernel_size(self.kernel_size)
        return self

    def build(self, input_size: int) -> "ConformerEncoder":
        return ConformerEncoder(self, input_size)


class ConformerEncoder(Encoder):
    """(N, T, F) normalised features to the taps `middle`, `trimmed` and `final`.

    The second half does not see what is predicted in the middle. What trimming leaves is a beginning, so both
    kinds of position stay right: sinusoidal ones were added at the entrance, relative ones are distances.
    """

    def __init__(self, config: ConformerConfig, input_size: int) -> None:
        super().__init__()
        dim = config.dim
        self.relative = config.positions == "relative"
        self.subsampling = Subsampling(
            config.subsampling, input_size, config.subsampling_channels or dim, dim
        )
        self.dropout = DropoutLayer(config.dropout)
        sizes = (dim, config.heads, config.feed_forward_dim, config.kernel_size)
        options = (config.dropout, config.attention_dropout, self.relative)
        self.first = Conformer(config.first_layers, *sizes, *options)
        self.second = Conformer(config.second_layers, *sizes, *options)
        self.phases = config.phases
        # a frame must know its phase before it can leave a word to another
        self.phase_embedding = nn.Embedding(config.phases, dim) if config.phases > 1 else None

    def forward(self, source: Padded, trim: Trim | None = None) -> dict[str, Padded]:
        entered = self._enter(source)
        phases = InPhases(entered, self.phases)
        middle = phases.apart(Padded(self.first(*entered), entered.lengths))
        trimmed = phases.joined(middle if trim is None else trim(MIDDLE, middle))
        final = Padded(self.second(*trimmed), trimmed.lengths)
        return {MIDDLE: middle, TRIMMED: trimmed, FINAL: final}

    def _enter(self, source: Padded) -> Padded:
        """Subsampled frames, with positions if these are absolute: what the first half takes."""
        hidden, shorter = self.subsampling(*source)
        check_long_enough(source.lengths, shorter, self.subsampling.factor)
        if not self.relative:
            hidden = hidden + frame_positions(hidden.shape[1], hidden)
        if self.phase_embedding is not None:
            phase = torch.arange(hidden.shape[1], device=hidden.device) % self.phases
            hidden = hidden + self.phase_embedding(phase)
        return Padded(self.dropout(hidden), shorter)

    @torch.no_grad()
    def attention_weights(self, source: Padded, trim: Trim | None = None) -> list[Tensor]:
        """Each layer's (N, H, T, T) self-attention; in the second half T may be shorter."""
        entered = self._enter(source)
        hidden, first = self.first.attention_weights(*entered)
        phases = InPhases(entered, self.phases)
        middle = phases.apart(Padded(hidden, entered.lengths))
        trimmed = phases.joined(middle if trim is None else trim(MIDDLE, middle))
        return first + self.second.attention_weights(*trimmed)[1]
