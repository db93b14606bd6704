"""Fewer frames at the encoder's entrance: convolutions of stride 2 over time and frequency."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from brctc.data.subsampling import WINDOW, frames_to_enter, subsampled_lengths

__all__ = ["WINDOW", "Subsampling", "check_long_enough", "frames_to_enter", "subsampled_lengths"]


def check_long_enough(lengths: Tensor, subsampled: Tensor, factor: int) -> None:
    """Names an utterance of which the subsampling leaves nothing."""
    if subsampled.is_cpu and not torch.compiler.is_compiling() and (subsampled < 1).any():
        n = int((subsampled < 1).nonzero()[0])
        least = 1 if factor == 1 else WINDOW
        raise ValueError(f"utterance {n} has {int(lengths[n])} frames, expected {least} or more")


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
