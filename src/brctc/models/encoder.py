"""The encoder: two halves with a CTC output behind each, and trimming between them."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from brctc.kernels.inputs import Lengths
from brctc.models.config import EncoderConfig, TrimConfig
from brctc.models.conformer import Conformer
from brctc.models.layers import Dropout
from brctc.models.positions import frame_positions
from brctc.models.subsampling import WINDOW, Subsampling
from brctc.trim import trim as trim_frames
from brctc.trim import trimmed_lengths


class Encoded(NamedTuple):
    """What an encoder makes of a batch. T1 frames come out of its first half, T2 are left for the second.

    An online encoder has no halves: there T1 = T2, and both CTC outputs are the same one.
    """

    hidden: Tensor
    """(N, T2, D): what decoders attend to; behind `lengths`, anything."""
    lengths: Tensor
    """(N)"""
    logits: Tensor
    """(N, T2, C): the final CTC output."""
    inter_logits: Tensor
    """(N, T1, C): the CTC output of the first half."""
    inter_lengths: Tensor
    """(N)"""

    def kept_lengths(self, rule: TrimConfig) -> Tensor:
        """(N): how many of T1 trimming by the rule keeps, or would keep."""
        return trimmed_lengths(
            self.inter_logits,
            self.inter_lengths,
            threshold=rule.threshold,
            margin=rule.margin,
            from_logits=True,
        )


def ctc_output(dim: int, vocab_size: int) -> nn.Linear:
    """The classifier of frames."""
    ctc = nn.Linear(dim, vocab_size)
    # logits that differ from the first step on: the smaller they start, the longer CTC says blank only
    nn.init.normal_(ctc.weight, std=2 * dim**-0.5)
    nn.init.zeros_(ctc.bias)
    return ctc


def check_long_enough(lengths: Tensor, subsampled: Tensor, factor: int) -> None:
    """Names an utterance of which the subsampling leaves nothing."""
    if subsampled.is_cpu and not torch.compiler.is_compiling() and (subsampled < 1).any():
        n = int((subsampled < 1).nonzero()[0])
        least = 1 if factor == 1 else WINDOW
        raise ValueError(f"utterance {n} has {int(lengths[n])} frames, expected {least} or more")


class Encoder(nn.Module):
    """(N, T, F) normalised features to hidden frames and the logits of both CTC outputs.

    One classifier serves both outputs, as in the paper; the second half does not see what the first
    one predicts. Between the halves the frames behind the last spike can be cut off. What is left is
    a beginning, so both kinds of position stay right: sinusoidal ones were added at the entrance,
    relative ones are distances.
    """

    def __init__(self, config: EncoderConfig, feature_dim: int, vocab_size: int) -> None:
        super().__init__()
        dim = config.dim
        self.relative = config.positions == "relative"
        self.subsampling = Subsampling(
            config.subsampling, feature_dim, config.subsampling_channels or dim, dim
        )
        self.dropout = Dropout(config.dropout)

        def half(layers: int) -> Conformer:
            return Conformer(
                layers,
                dim,
                config.heads,
                config.feed_forward_dim,
                config.kernel_size,
                config.dropout,
                self.relative,
            )

        self.first = half(config.first_layers)
        self.second = half(config.second_layers)
        self.ctc = ctc_output(dim, vocab_size)

    def forward(
        self, features: Tensor, lengths: Tensor, trim: TrimConfig | None = None, at_least: Lengths = 1
    ) -> Encoded:
        """Trims if told how; `at_least` as in `brctc.trimmed_lengths`."""
        hidden, inter_lengths = self.enter(features, lengths)
        hidden = self.first(hidden, inter_lengths)
        inter_logits = self.ctc(hidden)
        hidden, kept = self.trim(hidden, inter_lengths, inter_logits, trim, at_least)
        hidden = self.second(hidden, kept)
        return Encoded(hidden, kept, self.ctc(hidden), inter_logits, inter_lengths)

    def enter(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Subsampled frames, with positions if these are absolute: what the first half takes."""
        hidden, shorter = self.subsampling(features, lengths)
        check_long_enough(lengths, shorter, self.subsampling.factor)
        if not self.relative:
            hidden = hidden + frame_positions(hidden.shape[1], hidden)
        return self.dropout(hidden), shorter

    def trim(
        self, hidden: Tensor, lengths: Tensor, logits: Tensor, trim: TrimConfig | None, at_least: Lengths = 1
    ) -> tuple[Tensor, Tensor]:
        """What the second half takes."""
        if trim is None:
            return hidden, lengths
        return trim_frames(
            hidden,
            lengths,
            logits,
            threshold=trim.threshold,
            margin=trim.margin,
            from_logits=True,
            at_least=at_least,
        )

    def attention_weights(self, features: Tensor, lengths: Tensor, trim: TrimConfig | None) -> list[Tensor]:
        """Each layer's (N, H, T, T) self-attention; in the second half T may be shorter."""
        hidden, lengths = self.enter(features, lengths)
        hidden, first = self.first.attention_weights(hidden, lengths)
        hidden, lengths = self.trim(hidden, lengths, self.ctc(hidden), trim)
        return first + self.second.attention_weights(hidden, lengths)[1]
