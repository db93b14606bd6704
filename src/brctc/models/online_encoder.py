"""The encoder of online systems: an Emformer between the subsampling and one CTC output."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from brctc.kernels.inputs import Lengths
from brctc.models.config import EmformerConfig, TrimConfig
from brctc.models.emformer import Emformer, State
from brctc.models.encoder import Encoded, check_long_enough, ctc_output
from brctc.models.layers import Dropout
from brctc.models.positions import sinusoids
from brctc.models.subsampling import WINDOW, Subsampling


class EncodedChunk(NamedTuple):
    """What an encoder makes of one chunk of N streams. T is the chunk's length."""

    hidden: Tensor
    """(N, T, D); behind `lengths`, anything."""
    lengths: Tensor
    """(N): T but at a stream's end."""
    logits: Tensor
    """(N, T, C)"""


class OnlineEncoder(nn.Module):
    """(N, T, F) normalised features to hidden frames and CTC logits, of whole utterances or of streams.

    A stream's chunk is computed from `window_frames` feature frames, which include its right context;
    the next chunk's begin `hop_frames` later. What else a chunk needs to know of the past is in its state.

        state = encoder.start(streams)
        chunk, state = encoder.step(features, state)

    The chunks' outputs are those of whole utterances. Each frame is told how far it may look ahead. That is
    no parameter, so that weights fit any size of chunk: a model can be fine-tuned to another one.
    """

    def __init__(self, config: EmformerConfig, feature_dim: int, vocab_size: int) -> None:
        super().__init__()
        dim = config.dim
        self.chunk_frames = config.chunk_frames
        self.block_frames = config.chunk_frames + config.right_context_frames
        self.subsampling = Subsampling(
            config.subsampling, feature_dim, config.subsampling_channels or dim, dim
        )
        self.dropout = Dropout(config.dropout)
        self.emformer = Emformer(config)
        self.ctc = ctc_output(dim, vocab_size)

    @property
    def hop_frames(self) -> int:
        """Feature frames from one chunk to the next."""
        return self.subsampling.factor * self.chunk_frames

    @property
    def window_frames(self) -> int:
        """Feature frames that a chunk and its right context are made of."""
        factor = self.subsampling.factor
        return factor * (self.block_frames - 1) + (1 if factor == 1 else WINDOW)

    def forward(
        self, features: Tensor, lengths: Tensor, trim: TrimConfig | None = None, at_least: Lengths = 1
    ) -> Encoded:
        """Whole utterances. Their one CTC output is the intermediate one, too; trimming is refused."""
        if trim is not None:
            raise ValueError("an online encoder has no second half to trim for: trim must be None")
        frames, shorter = self.subsampling(features, lengths)
        check_long_enough(lengths, shorter, self.subsampling.factor)
        missing = -frames.shape[1] % self.chunk_frames + self.block_frames - self.chunk_frames
        blocks = F.pad(frames, (0, 0, 0, missing)).unfold(1, self.block_frames, self.chunk_frames)
        hidden, _ = self._encode(blocks.transpose(2, 3), shorter, self.start(len(features)))
        hidden = hidden[:, : frames.shape[1]]
        logits = self.ctc(hidden)
        return Encoded(hidden, shorter, logits, logits, shorter)

    def start(self, streams: int) -> State:
        """The state of so many streams before their first chunk."""
        return self.emformer.start(streams)

    def step(
        self, features: Tensor, state: State, lengths: Tensor | None = None
    ) -> tuple[EncodedChunk, State]:
        """The next chunk of N streams, and the state behind it.

        Args:
            features: (N, window_frames, F), normalised.
            state: what the step before has left; streams may be at different chunks.
            lengths: (N), how many of the frames there are; None for all. A stream that has fewer ends:
                it may have more chunks, but no more frames.
        """
        if features.dim() != 3 or features.shape[1] != self.window_frames:
            expected = f"(N, {self.window_frames}, F)"
            raise ValueError(f"features have shape {tuple(features.shape)}, expected {expected}")
        if len(features) != len(state.chunks):
            raise ValueError(f"features are of {len(features)} streams, the state of {len(state.chunks)}")
        if lengths is None:
            lengths = torch.full((len(features),), self.window_frames)
        frames, left = self.subsampling(features, lengths)
        hidden, state = self._encode(frames[:, None], left, state)
        return EncodedChunk(hidden, left.clamp(0, self.chunk_frames), self.ctc(hidden)), state

    def _encode(self, blocks: Tensor, lengths: Tensor, state: State) -> tuple[Tensor, State]:
        look_ahead = torch.arange(self.block_frames - 1, -1, -1, device=blocks.device)
        positions = sinusoids(look_ahead, blocks.shape[-1]).to(blocks.dtype)
        return self.emformer(self.dropout(blocks + positions), lengths, state)
