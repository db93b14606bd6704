"""Self-attention over whole sequences that does not see padding, and what all layers of a stack share."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from brctc.models.layers import (
    DotProductAttention,
    join_heads,
    residual_linear,
    split_heads,
    split_parts,
)
from brctc.models.positions import distance_scores


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
    vectors a, b; the second product goes into the attention as an additive bias.
    """

    def __init__(self, dim: int, heads: int, relative: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(dim, 3 * dim)
        self.attend = DotProductAttention(dropout)
        self.out = residual_linear(dim, dim)
        if relative:
            self.distance = nn.Linear(dim, dim, bias=False)
            self.key_bias = nn.Parameter(torch.zeros(heads, 1, dim // heads))
            self.distance_bias = nn.Parameter(torch.zeros(heads, 1, dim // heads))

    def forward(self, x: Tensor, context: Context) -> Tensor:
        query, key, value, bias = self._prepare(x, context)
        return self.out(join_heads(self.attend(query, key, value, bias)))

    def weights(self, x: Tensor, context: Context) -> Tensor:
        """(N, H, T, T): how much every frame takes from every other."""
        query, key, _, bias = self._prepare(x, context)
        return self.attend.weights(query, key, bias)

    def _prepare(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        query, key, value = split_parts(self.project(x), 3, self.heads)
        if context.distances is None:
            return query, key, value, context.mask
        distance = split_heads(self.distance(context.distances)[None], self.heads)
        scores = (query + self.distance_bias) @ distance.transpose(-2, -1)
        bias = torch.add(context.mask, distance_scores(scores), alpha=query.shape[-1] ** -0.5)
        return query + self.key_bias, key, value, bias
