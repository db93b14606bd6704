"""Fewer frames at the encoder's entrance: convolutions of stride 2 over time and frequency."""

import torch.nn.functional as F
from torch import Tensor, nn

WINDOW = 7  # input frames that an output frame sees


def subsampled_lengths(lengths: Tensor, factor: int) -> Tensor:
    """How many frames come out of `lengths` frames: (length - 7) // factor + 1, or all for factor 1.

    Windows lie inside the utterance (no padding), so nothing beyond its end can be seen. Fewer than
    7 frames give 0 (or less): too short.
    """
    return lengths if factor == 1 else (lengths - WINDOW).div(factor, rounding_mode="floor") + 1


def frames_to_enter(lengths: Tensor, factor: int) -> Tensor:
    """The fewest frames of which `lengths` frames come out, 1 or more."""
    return lengths if factor == 1 else factor * (lengths - 1) + WINDOW


class Subsampling(nn.Module):
    """(N, T, F) features to (N, T', dim), with T' and the lengths of `subsampled_lengths`.

    Factor 4: two 3x3 convolutions of stride 2; output frame j sees input frames 4 j to 4 j + 6.
    Factor 2: the second one has stride 1 over time; output frame j sees frames 2 j to 2 j + 6.
    Factor 1: a linear layer, every frame by itself.
    """

    def __init__(self, factor: int, feature_dim: int, channels: int, dim: int) -> None:
        super().__init__()
        self.factor = factor
        self.convolutions = nn.ModuleList()
        if factor > 1:
            if feature_dim < WINDOW:
                raise ValueError(f"feature_dim is {feature_dim}, expected {WINDOW} or more for {factor}x")
            self.convolutions.append(nn.Conv2d(1, channels, 3, 2))
            self.convolutions.append(nn.Conv2d(channels, channels, 3, (factor // 2, 2)))
            feature_dim = channels * ((feature_dim - WINDOW) // 4 + 1)
        self.linear = nn.Linear(feature_dim, dim)
        # frames come out as large as normalised features go in: beside positions they must be seen
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                behind = "relu" if name.startswith("convolutions") else "linear"
                nn.init.kaiming_normal_(parameter, nonlinearity=behind)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        shorter = subsampled_lengths(lengths, self.factor)
        if self.factor == 1:
            return self.linear(features), shorter
        # channels last in memory: faster on the CPU, and frames come out contiguous
        x = features[..., None].permute(0, 3, 1, 2)
        for convolution in self.convolutions:
            x = F.relu(convolution(x), inplace=True)
        return self.linear(x.permute(0, 2, 3, 1).flatten(2)), shorter
