"""Emformer layers (Shi et al., 2021): chunk after chunk, with a past of bounded size.

Axes: N streams, K chunks, D features, and B frames of a block: a chunk and a copy of the frames to its
right, which every layer computes anew for every chunk. So no layer looks further ahead than the first.

The last chunks are remembered, too, each as one vector, of which each layer makes a key and a value:

- `mean`: the mean of the chunk's frames, as they come to the layer's attention.
- `summary`, as published: this mean is one more query of its chunk. It sees what the frames see, without the
  memory; what comes out of the attention's last projection is carried up, and is what the layer above
  remembers. (In AM-TRF, Wu et al., 2020, a layer remembers what it has made itself: one chunk has to wait
  for the other.) The lowest layer remembers the mean of the frames that enter it, and there is no norm
  between, as in torchaudio's Emformer, which also limits the vectors to -10 ... 10; here nothing does.

Whole utterances are K chunks in one go, streams one chunk at a time. Both are the same computation: what
came before a chunk is read from one line, the state that earlier calls left and then the chunks of this one.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from brctc.models.layers import (
    Depthwise,
    DotProductAttention,
    Dropout,
    FeedForward,
    join_heads,
    residual_linear,
    split_heads,
)

MemoryKind = Literal["mean", "summary"]


class Sizes(Protocol):
    """What the layers need to know (`EmformerConfig`)."""

    dim: int
    heads: int
    feed_forward_dim: int
    layers: int
    kernel_size: int | None
    chunk_frames: int
    left_context_frames: int
    right_context_frames: int
    memory_size: int
    memory: MemoryKind
    dropout: float
    attention_dropout: float


class Past(NamedTuple):
    """What a layer keeps of the chunks before, and what a call leaves for the next one."""

    left: Tensor
    """(N, left context, 2 D): keys and values of the last frames."""
    memory: Tensor
    """(N, memory size, 2 D): key and value of what is remembered of the last chunks."""
    convolution: Tensor
    """(N, kernel size // 2, D): what the convolution sees of the last frames."""


class State(NamedTuple):
    """What N streams have left behind: of the same size at any time, with N in front."""

    chunks: Tensor
    """(N): how many each has had. What `left` and `memory` hold from before the first one is not seen."""
    left: Tensor
    """(N, layers, left context, 2 D), as the others of `Past`."""
    memory: Tensor
    convolution: Tensor

    def select(self, streams: Sequence[int] | Tensor) -> "State":
        """The state of some of the streams, in the order of their numbers."""
        return State(*(part[streams] for part in self))

    @staticmethod
    def cat(states: "Sequence[State]") -> "State":
        """All streams of the states, as one batch."""
        return State(*(torch.cat(parts) for parts in zip(*states, strict=True)))


class Context(NamedTuple):
    """What all layers need to know of a call, made once."""

    exists: Tensor
    """(N, K, B, 1): 1 for the frames of an utterance, 0 behind its end."""
    mask: Tensor
    """(N K, 1, 1, keys), to be added to attention scores: 0 for what exists, -inf for what does not. With
    summaries (N K, 1, B + 1, keys): the last query is theirs."""


def before_chunks(past: Tensor, new: Tensor, chunk_frames: int) -> tuple[Tensor, Tensor]:
    """(N, P, D) past and (N, K C, D) new frames: (N, K, P, D), the P frames before every chunk, and the
    last P of all, which are the next call's past."""
    line = torch.cat([past.to(new.dtype), new], dim=1)
    chunks = new.shape[1] // chunk_frames
    before = line.unfold(1, past.shape[1], chunk_frames)[:, :chunks].transpose(2, 3)
    return before, line[:, new.shape[1] :]


class ChunkAttention(nn.Module):
    """Each frame of a block attends to the memory, the left context and its block.

    Projections are linear: query, key and value of the mean of a chunk's frames are the means of theirs.
    """

    def __init__(self, config: Sizes) -> None:
        super().__init__()
        self.heads = config.heads
        self.chunk_frames = config.chunk_frames
        self.project = nn.Linear(config.dim, 3 * config.dim)
        self.attend = DotProductAttention(config.attention_dropout)
        self.out = residual_linear(config.dim, config.dim)

    def forward(
        self, x: Tensor, carried: Tensor | None, mask: Tensor, past: Past
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """`carried`: (N, K, D), the summaries of the layer below, and behind the output those for the layer
        above; None if there are none."""
        frames, dim = x.shape[2:]
        query, key_value = self.project(x).tensor_split([dim], dim=-1)
        chunks = key_value[:, :, : self.chunk_frames]
        left, new_left = before_chunks(past.left, chunks.flatten(1, 2), self.chunk_frames)
        if carried is None:
            remembered = chunks.mean(2)
        else:
            remembered = F.linear(carried, self.project.weight[dim:], self.project.bias[dim:])
            query = torch.cat([query, query[:, :, : self.chunk_frames].mean(2, keepdim=True)], dim=2)
        memory, new_memory = before_chunks(past.memory, remembered, 1)
        key, value = torch.cat([memory, left, key_value], dim=2).flatten(0, 1).chunk(2, dim=-1)
        query, key, value = (split_heads(part, self.heads) for part in (query.flatten(0, 1), key, value))
        attended = self.attend(query, key, value, mask)
        found = self.out(join_heads(attended)).view(*x.shape[:2], -1, dim)
        above = None if carried is None else found[:, :, frames]
        return found[:, :, :frames], above, new_left, new_memory


class ChunkConvolution(nn.Module):
    """The Conformer's convolution module, which sees as far to the right as the block goes, and no further.

    To the left it sees the frames of the chunks before. Its norm is a frame's own, as the Conformer's.
    """

    def __init__(self, dim: int, kernel_size: int, chunk_frames: int, dropout: float) -> None:
        super().__init__()
        self.chunk_frames = chunk_frames
        self.gate = nn.Linear(dim, 2 * dim)
        self.depthwise = Depthwise(dim, kernel_size)
        self.norm = nn.LayerNorm(dim)
        self.out = residual_linear(dim, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, exists: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        gated = F.glu(self.gate(x)) * exists
        chunks = gated[:, :, : self.chunk_frames].flatten(1, 2)
        before, new_past = before_chunks(past, chunks, self.chunk_frames)
        line = F.pad(torch.cat([before, gated], dim=2), (0, 0, 0, past.shape[1])).flatten(0, 1)
        convolved = self.norm(self.depthwise(line).reshape(x.shape))
        return self.dropout(self.out(F.silu(convolved))), new_past


class EmformerLayer(nn.Module):
    """Attention, a convolution if there is one, and a feed-forward, each behind a norm."""

    def __init__(self, config: Sizes) -> None:
        super().__init__()
        dim, dropout = config.dim, config.dropout
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = ChunkAttention(config)
        self.convolution = None
        if config.kernel_size is not None:
            self.convolution_norm = nn.LayerNorm(dim)
            self.convolution = ChunkConvolution(dim, config.kernel_size, config.chunk_frames, dropout)
        self.feed_forward_norm = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, config.feed_forward_dim, dropout, nn.SiLU())
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Tensor, carried: Tensor | None, context: Context, past: Past
    ) -> tuple[Tensor, Tensor | None, Past]:
        normed = self.attention_norm(x)
        attended, carried, left, memory = self.attention(normed, carried, context.mask, past)
        x = x + self.dropout(attended)
        convolution = past.convolution
        if self.convolution is not None:
            convolved, convolution = self.convolution(self.convolution_norm(x), context.exists, convolution)
            x = x + convolved
        return x + self.feed_forward(self.feed_forward_norm(x)), carried, Past(left, memory, convolution)


class Emformer(nn.Module):
    """A stack of layers on (N, K, B, D) blocks, behind it a norm.

    Nothing but `lengths` and the state says where an utterance begins and ends. What comes out behind
    its end is arbitrary, and so is the state that a chunk leaves that is not whole: no other may follow.
    """

    def __init__(self, config: Sizes) -> None:
        super().__init__()
        self.config = config
        self.summarises = config.memory == "summary" and config.memory_size > 0
        layers = [EmformerLayer(config) for _ in range(config.layers)]
        self.layers: Sequence[EmformerLayer] = nn.ModuleList(layers)  # pyright: ignore[reportAttributeAccessIssue]
        self.norm = nn.LayerNorm(config.dim)

    def start(self, streams: int) -> State:
        """The state before the first chunk."""
        config, like = self.config, self.norm.weight
        kernel_size = config.kernel_size or 1

        def nothing(frames: int, dim: int) -> Tensor:
            return like.new_zeros(streams, config.layers, frames, dim)

        return State(
            torch.zeros(streams, dtype=torch.long, device=like.device),
            nothing(config.left_context_frames, 2 * config.dim),
            nothing(config.memory_size, 2 * config.dim),
            nothing(kernel_size // 2, config.dim),
        )

    def forward(self, blocks: Tensor, lengths: Tensor, state: State) -> tuple[Tensor, State]:
        """(N, K C, D) frames of K chunks, and the state behind them.

        Args:
            blocks: (N, K, B, D), the next K chunks and their right contexts.
            lengths: (N), frames until the end of the utterance, counted from the first one of `blocks`.
            state: what the chunks before have left.
        """
        context = self.context(blocks, lengths, state)
        x, left_behind = blocks, []
        carried = blocks[:, :, : self.config.chunk_frames].mean(2) if self.summarises else None
        for i, layer in enumerate(self.layers):
            x, carried, past = layer(x, carried, context, Past(*(part[:, i] for part in state[1:])))
            left_behind.append(past)
        parts = (torch.stack(part, dim=1) for part in zip(*left_behind, strict=True))
        hidden = self.norm(x[:, :, : self.config.chunk_frames].flatten(1, 2))
        return hidden, State(state.chunks + blocks.shape[1], *parts)

    def context(self, blocks: Tensor, lengths: Tensor, state: State) -> Context:
        """Before the first chunk there is nothing, and nothing behind the last frame.

        A block's first frame is never masked: every real chunk has it, and a chunk of padding must
        attend to something, or it would be up to the attention's kernel whether NaN comes out.
        """
        config, device = self.config, blocks.device
        first = torch.arange(blocks.shape[1], device=device)[:, None]  # chunk of the call
        place = first * config.chunk_frames + torch.arange(blocks.shape[2], device=device)
        exists = place < lengths.to(device)[:, None, None]
        index = state.chunks[:, None, None] + first  # chunk of the stream
        memory = index >= torch.arange(config.memory_size, 0, -1, device=device)
        left = index * config.chunk_frames >= torch.arange(config.left_context_frames, 0, -1, device=device)
        near = torch.cat([left, torch.ones_like(exists[:, :, :1]), exists[:, :, 1:]], dim=2)
        seen = torch.cat([memory, near], dim=2)[:, :, None]
        if self.summarises:
            by_summary = torch.cat([torch.zeros_like(memory), near], dim=2)[:, :, None]
            seen = torch.cat([seen.expand(-1, -1, blocks.shape[2], -1), by_summary], dim=2)
        mask = torch.zeros(seen.shape, dtype=blocks.dtype, device=device).masked_fill(~seen, -torch.inf)
        return Context(exists[..., None].to(blocks.dtype), mask.flatten(0, 1)[:, None])
