"""Small parts that encoders and decoders share. Axes: N utterances, T frames, D features, H heads."""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """nn.Dropout, which on a CPU spends more time on a random number per element than the linear
    layer beside it takes. Here one draw serves four elements; p is exact to 1/65536."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if not x.is_cpu:
            return F.dropout(x, self.p)
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        level = draws.view(torch.int16)[: x.numel()].to(x.dtype if x.dtype == torch.double else torch.float)
        dropped = round(self.p * 65536)
        # levels are integers from -32768: 0 for the lowest `dropped` of them, 1 for the others
        keep = level.add_(32769 - dropped).clamp_(0, 1).mul_(65536 / (65536 - dropped))
        return x * keep.view(x.shape).to(x.dtype)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class DotProductAttention(nn.Module):
    """softmax(q k / sqrt(D / H) + mask) v for all heads at once; in training some of the weights are dropped.

    Queries, keys and values are (N, H, T, D / H); a mask is added to the scores (N, H, queries, keys).
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """With `causal`, and then without a mask, no query sees a later key."""
        p = self.dropout.p if self.training else 0.0
        if p and query.is_cpu:
            # there torch has no fused kernel with dropout, and draws a number for each weight
            return self.dropout(self.weights(query, key, mask, causal)) @ value
        return F.scaled_dot_product_attention(query, key, value, mask, p, causal)

    @staticmethod
    def weights(query: Tensor, key: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """(N, H, queries, keys): how much each query takes from each key, none dropped."""
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        if mask is not None:
            scores = scores + mask
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        return scores.softmax(-1)


def residual_linear(in_features: int, out_features: int) -> nn.Linear:
    """The last layer of a residual branch, a tenth of torch's usual size at first.

    A stack that starts close to the identity lets input and gradients through, and learns without a
    long warm-up: small models leave CTC's all-blank plateau several times sooner.
    """
    linear = nn.Linear(in_features, out_features)
    with torch.no_grad():
        linear.weight.mul_(0.1)
        linear.bias.zero_()
    return linear


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Computes in the dtypes that are given; the meta device has no autocast to begin with."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


class FeedForward(nn.Module):
    """Two linear layers, dropout behind each."""

    def __init__(self, dim: int, hidden_dim: int, dropout: float, activation: nn.Module) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, hidden_dim)
        self.activation = activation
        self.contract = residual_linear(hidden_dim, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.contract(self.dropout(self.activation(self.expand(x)))))


class Depthwise(nn.Conv2d):
    """A convolution over the frames of (N, T, D), each feature by itself."""

    def __init__(self, dim: int, kernel_size: int, padding: int = 0) -> None:
        # two dimensions, one of size 1: for channels last there is a fast kernel, in one there is none
        super().__init__(dim, dim, (1, kernel_size), padding=(0, padding), groups=dim)

    def forward(self, input: Tensor) -> Tensor:
        kernel, padding = self.kernel_size[1], int(self.padding[1])
        few = input.is_cpu and not torch.compiler.is_compiling() and input.numel() * kernel <= 2**18
        if few and not torch.is_grad_enabled():
            # the kernel takes as long to set up as for some 200 frames: fewer are sooner done by hand
            windows = F.pad(input, (0, 0, padding, padding)).unfold(1, kernel, 1).transpose(2, 3)
            found = (windows * self.weight[:, 0, 0].t().contiguous()).sum(2)
            return found if self.bias is None else found + self.bias
        return super().forward(input[:, None].permute(0, 3, 1, 2)).permute(0, 2, 3, 1).squeeze(1)


def frame_mask(lengths: Tensor, frames: int, device: torch.device) -> Tensor:
    """(N, T): True for the frames of an utterance, False for its padding."""
    return torch.arange(frames, device=device) < lengths.to(device)[:, None]


def attention_mask(lengths: Tensor, frames: int, like: Tensor) -> Tensor:
    """(N, 1, 1, T), to be added to attention scores: 0 for frames that exist, -inf for padding."""
    exists = frame_mask(lengths, frames, like.device)
    nothing = torch.zeros(exists.shape, dtype=like.dtype, device=like.device)
    return nothing.masked_fill(~exists, -torch.inf)[:, None, None]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(N, T, D) to (N, H, T, D / H)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def split_parts(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """(N, T, P D) to P times (N, H, T, D / H)."""
    return x.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind()


def join_heads(x: Tensor) -> Tensor:
    """(N, H, T, D / H) to (N, T, D)."""
    return x.transpose(1, 2).flatten(2)
