"""The encoder of an online system: subsampling and an Emformer, whole utterances or streams alike."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveInt, model_validator
from torch import Tensor

from brctc.data.batch import Padded
from brctc.models.base import (
    ENCODERS,
    FINAL,
    AttentionDropout,
    Dim,
    Dropout,
    EncoderConfig,
    Frames,
    FramesOrNone,
    Heads,
    Layers,
    StreamingEncoder,
    Trim,
    check_heads,
    check_kernel_size,
)
from brctc.models.emformer import Emformer, MemoryKind, State
from brctc.models.layers import Dropout as DropoutLayer
from brctc.models.positions import sinusoids
from brctc.models.subsampling import WINDOW, Subsampling, check_long_enough


@ENCODERS.register
class EmformerConfig(EncoderConfig):
    """An Emformer, which hears an utterance chunk by chunk.

    Frames are the encoder's own: 40 ms where features come every 10 ms and the subsampling is 4. The
    defaults are those of table 4 with chunks of 320 ms, twice as long as their right context, but for the
    kind of memory.
    """

    streaming: ClassVar[bool] = True

    kind: Literal["emformer"] = "emformer"
    subsampling: Literal[1, 2, 4] = 4
    subsampling_channels: PositiveInt | None = None
    """As a Conformer's."""
    dim: Dim = 512
    heads: Heads = 4
    feed_forward_dim: Dim = 2048
    layers: Layers = 12
    kernel_size: PositiveInt | None = None
    """Of each layer's convolution. None: it has none, as in table 4."""
    chunk_frames: Frames = 8
    left_context_frames: FramesOrNone = 8
    right_context_frames: FramesOrNone = 4
    memory_size: FramesOrNone = 4
    """Chunks before the present one that are remembered, each as one vector."""
    memory: MemoryKind = "mean"
    """What this vector is. `mean`: the mean of the chunk's frames. `summary`: what this mean, as a query, has
    found in the layer below, as published (Shi et al., 2021). The parameters are the same."""
    dropout: float = Dropout
    attention_dropout: float = AttentionDropout
    """As a Conformer's."""

    @model_validator(mode="after")
    def _check(self) -> "EmformerConfig":
        check_heads(self.dim, self.heads)
        check_kernel_size(self.kernel_size)
        return self

    @property
    def window_frames(self) -> int:
        block = self.chunk_frames + self.right_context_frames
        return self.subsampling * (block - 1) + (1 if self.subsampling == 1 else WINDOW)

    @property
    def hop_frames(self) -> int:
        return self.subsampling * self.chunk_frames

    def build(self, input_size: int) -> "EmformerEncoder":
        return EmformerEncoder(self, input_size)


class EmformerEncoder(StreamingEncoder):
    """(N, T, F) normalised features to the tap `final`, of whole utterances or of streams.

    The chunks' outputs are those of whole utterances. Each frame is told how far it may look ahead. That is
    no parameter, so that weights fit any size of chunk: a model can be fine-tuned to another one.
    """

    def __init__(self, config: EmformerConfig, input_size: int) -> None:
        super().__init__()
        dim = config.dim
        self.chunk_frames = config.chunk_frames
        self.right_context_frames = config.right_context_frames
        self.block_frames = config.chunk_frames + config.right_context_frames
        self.subsampling = Subsampling(
            config.subsampling, input_size, config.subsampling_channels or dim, dim
        )
        self.dropout = DropoutLayer(config.dropout)
        self.emformer = Emformer(config)
        self.hop_frames, self.window_frames = config.hop_frames, config.window_frames

    def forward(self, source: Padded, trim: Trim | None = None) -> dict[str, Padded]:
        """Whole utterances. There is no tap to trim at."""
        frames, shorter = self.subsampling(*source)
        check_long_enough(source.lengths, shorter, self.subsampling.factor)
        missing = -frames.shape[1] % self.chunk_frames + self.block_frames - self.chunk_frames
        blocks = F.pad(frames, (0, 0, 0, missing)).unfold(1, self.block_frames, self.chunk_frames)
        hidden, _ = self._encode(blocks.transpose(2, 3), shorter, self.initial_state(len(frames)))
        return {FINAL: Padded(hidden[:, : frames.shape[1]], shorter)}

    def initial_state(self, streams: int) -> State:
        return self.emformer.start(streams)

    def join_states(self, states: Sequence[State]) -> State:
        return State.cat(states)

    def step(self, features: Tensor, lengths: Tensor, state: State) -> tuple[Padded, State]:
        if features.dim() != 3 or features.shape[1] != self.window_frames:
            expected = f"(N, {self.window_frames}, F)"
            raise ValueError(f"features have shape {tuple(features.shape)}, expected {expected}")
        streams, known = features.shape[0], state.chunks.shape[0]  # len() of them would fix N in an export
        if streams != known:
            raise ValueError(f"features are of {streams} streams, the state of {known}")
        frames, left = self.subsampling(features, lengths)
        hidden, state = self._encode(frames[:, None], left, state)
        return Padded(hidden, left.clamp(0, self.chunk_frames)), state

    def _encode(self, blocks: Tensor, lengths: Tensor, state: State) -> tuple[Tensor, State]:
        look_ahead = torch.arange(self.block_frames - 1, -1, -1, device=blocks.device)
        positions = sinusoids(look_ahead, blocks.shape[-1]).to(blocks.dtype)
        return self.emformer(self.dropout(blocks + positions), lengths, state)
