"""Layers of one size on top of one another, over whole sequences."""

from collections.abc import Sequence

from torch import Tensor, nn

from brctc.models.layers import attention_mask, frame_mask
from brctc.models.positions import distance_positions
from brctc.models.self_attention import Context


class StackLayer(nn.Module):
    """A layer of a stack: (N, T, D) to (N, T, D)."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        raise NotImplementedError

    def attention_weights(self, x: Tensor, context: Context) -> Tensor:
        """(N, H, T, T): the self-attention of `forward(x, context)`."""
        raise NotImplementedError


class LayerStack(nn.Module):
    """A stack of layers on (N, T, D) with lengths. What comes out behind an example's end is arbitrary."""

    def __init__(self, layers: Sequence[StackLayer], relative: bool) -> None:
        super().__init__()
        self.relative = relative
        self.layers: Sequence[StackLayer] = nn.ModuleList(layers)  # pyright: ignore[reportAttributeAccessIssue]

    def context(self, x: Tensor, lengths: Tensor) -> Context:
        """What the layers need to know of a batch."""
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
