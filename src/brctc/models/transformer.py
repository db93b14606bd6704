"""Transformer layers (Vaswani et al., 2017), each part behind its norm."""

from torch import Tensor, nn

from brctc.models.layer_stack import LayerStack, StackLayer
from brctc.models.layers import Dropout, FeedForward
from brctc.models.self_attention import Context, SelfAttention


class TransformerLayer(StackLayer):
    """Self-attention and a feed-forward, each behind a norm."""

    def __init__(
        self,
        dim: int,
        heads: int,
        feed_forward_dim: int,
        dropout: float,
        attention_dropout: float,
        relative: bool,
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, heads, relative, attention_dropout)
        self.feed_forward_norm = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, feed_forward_dim, dropout, nn.ReLU())
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), context))
        return x + self.feed_forward(self.feed_forward_norm(x))

    def attention_weights(self, x: Tensor, context: Context) -> Tensor:
        return self.attention.weights(self.attention_norm(x), context)


class Transformer(LayerStack):
    """A stack of Transformer layers with a norm behind the last one."""

    def __init__(
        self,
        layers: int,
        dim: int,
        heads: int,
        feed_forward_dim: int,
        dropout: float,
        attention_dropout: float,
        relative: bool,
    ) -> None:
        sizes = (dim, heads, feed_forward_dim, dropout, attention_dropout, relative)
        super().__init__([TransformerLayer(*sizes) for _ in range(layers)], relative)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.norm(super().forward(x, lengths))

    def attention_weights(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
        hidden, weights = super().attention_weights(x, lengths)
        return self.norm(hidden), weights
