"""Conformer layers (Gulati et al., 2020) that see neither padding nor the rest of the batch."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from brctc.models.layers import (
    Depthwise,
    Dropout,
    FeedForward,
    attention_mask,
    frame_mask,
    join_heads,
    residual_linear,
    split_heads,
    split_parts,
)
from brctc.models.positions import distance_positions, distance_scores


class Context(NamedTuple):
    """What all layers of a stack need to know of a batch, made once."""

    exists: Tensor
    """(N, T, 1): 1 for the frames of an utterance, 0 for its padding."""
    mask: Tensor
    """(N, 1, 1, T): what `exists` means to attention scores."""
    distances: Tensor | None
    """(2 T, D): `distance_positions`, for relative attention."""


class SelfAttention(nn.Module):
    """Multi-head self-attention, with Transformer-XL's relative positions where they are wanted.

    Relative scores are (q + a) k + (q + b) r, with a key k, the projected distance r and learnt
    vectors a, b; the second product goes into the attention as an additive bias. Attention weights
    themselves are not dropped: the fused kernel has no dropout on a CPU.
    """

    def __init__(self, dim: int, heads: int, relative: bool) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(dim, 3 * dim)
        self.out = residual_linear(dim, dim)
        if relative:
            self.distance = nn.Linear(dim, dim, bias=False)
            self.key_bias = nn.Parameter(torch.zeros(heads, 1, dim // heads))
            self.distance_bias = nn.Parameter(torch.zeros(heads, 1, dim // heads))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        query, key, value, bias = self._prepare(x, context)
        return self.out(join_heads(F.scaled_dot_product_attention(query, key, value, attn_mask=bias)))

    def weights(self, x: Tensor, context: Context) -> Tensor:
        """(N, H, T, T): how much every frame takes from every other."""
        query, key, _, bias = self._prepare(x, context)
        return (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5 + bias).softmax(-1)

    def _prepare(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        query, key, value = split_parts(self.project(x), 3, self.heads)
        if context.distances is None:
            return query, key, value, context.mask
        distance = split_heads(self.distance(context.distances)[None], self.heads)
        scores = (query + self.distance_bias) @ distance.transpose(-2, -1)
        bias = torch.add(context.mask, distance_scores(scores), alpha=query.shape[-1] ** -0.5)
        return query + self.key_bias, key, value, bias


class Convolution(nn.Module):
    """The Conformer's convolution module.

    Its norm is a LayerNorm over the channels of one frame. BatchNorm mixes utterances and padding
    into its statistics, GroupNorm all frames of an utterance, so that trimming would change what
    is kept; a frame's own statistics know of neither. Padding is zero when the depthwise
    convolution comes, as it is at the utterance's end when it is alone.
    """

    def __init__(self, dim: int, kernel_size: int, dropout: float) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, 2 * dim)
        self.depthwise = Depthwise(dim, kernel_size, kernel_size // 2)
        self.norm = nn.LayerNorm(dim)
        self.out = residual_linear(dim, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        x = F.glu(self.gate(x)) * context.exists
        return self.dropout(self.out(F.silu(self.norm(self.depthwise(x)))))


class ConformerLayer(nn.Module):
    """Half a feed-forward, self-attention, convolution, half a feed-forward, each behind a norm."""

    def __init__(
        self, dim: int, heads: int, feed_forward_dim: int, kernel_size: int, dropout: float, relative: bool
    ) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(dim)
        self.first = FeedForward(dim, feed_forward_dim, dropout, nn.SiLU())
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, heads, relative)
        self.convolution_norm = nn.LayerNorm(dim)
        self.convolution = Convolution(dim, kernel_size, dropout)
        self.second_norm = nn.LayerNorm(dim)
        self.second = FeedForward(dim, feed_forward_dim, dropout, nn.SiLU())
        self.final_norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        x = torch.add(x, self.first(self.first_norm(x)), alpha=0.5)
        x = x + self.dropout(self.attention(self.attention_norm(x), context))
        x = x + self.convolution(self.convolution_norm(x), context)
        x = torch.add(x, self.second(self.second_norm(x)), alpha=0.5)
        return self.final_norm(x)

    def attention_weights(self, x: Tensor, context: Context) -> Tensor:
        """(N, H, T, T): the self-attention of `forward(x, context)`."""
        x = torch.add(x, self.first(self.first_norm(x)), alpha=0.5)
        return self.attention.weights(self.attention_norm(x), context)


class Conformer(nn.Module):
    """A stack of layers on (N, T, D) with lengths. What comes out behind an utterance's end is arbitrary."""

    def __init__(
        self,
        layers: int,
        dim: int,
        heads: int,
        feed_forward_dim: int,
        kernel_size: int,
        dropout: float,
        relative: bool,
    ) -> None:
        super().__init__()
        self.relative = relative
        stack = [
            ConformerLayer(dim, heads, feed_forward_dim, kernel_size, dropout, relative)
            for _ in range(layers)
        ]
        self.layers: Sequence[ConformerLayer] = nn.ModuleList(stack)  # pyright: ignore[reportAttributeAccessIssue]

    def context(self, x: Tensor, lengths: Tensor) -> Context:
        frames = x.shape[1]
        return Context(
            frame_mask(lengths, frames, x.device)[..., None].to(x.dtype),
            attention_mask(lengths, frames, x),
            distance_positions(frames, x) if self.relative else None,
        )

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        context = self.context(x, lengths)
        for layer in self.layers:
            x = layer(x, context)
        return x

    def attention_weights(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
        """What `forward` gives, and each layer's (N, H, T, T) attention."""
        context = self.context(x, lengths)
        weights = []
        for layer in self.layers:
            weights.append(layer.attention_weights(x, context))
            x = layer(x, context)
        return x, weights
