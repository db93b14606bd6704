"""Conformer layers (Gulati et al., 2020) that see neither padding nor the rest of the batch."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from brctc.models.layer_stack import LayerStack, StackLayer
from brctc.models.layers import Depthwise, Dropout, FeedForward, residual_linear
from brctc.models.self_attention import Context, SelfAttention


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


class ConformerLayer(StackLayer):
    """Half a feed-forward, self-attention, convolution, half a feed-forward, each behind a norm."""

    def __init__(
        self,
        dim: int,
        heads: int,
        feed_forward_dim: int,
        kernel_size: int,
        dropout: float,
        attention_dropout: float,
        relative: bool,
    ) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(dim)
        self.first = FeedForward(dim, feed_forward_dim, dropout, nn.SiLU())
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, heads, relative, attention_dropout)
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


class Conformer(LayerStack):
    """A stack of Conformer layers."""

    def __init__(
        self,
        layers: int,
        dim: int,
        heads: int,
        feed_forward_dim: int,
        kernel_size: int,
        dropout: float,
        attention_dropout: float,
        relative: bool,
    ) -> None:
        sizes = (dim, heads, feed_forward_dim, kernel_size, dropout, attention_dropout, relative)
        super().__init__([ConformerLayer(*sizes) for _ in range(layers)], relative)
