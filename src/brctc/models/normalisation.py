"""Features brought to mean 0 and deviation 1, padding to 0."""

from typing import Literal

import torch
from torch import Tensor, nn

from brctc.models.layers import frame_mask

SMALLEST_DEVIATION = 1e-4  # a feature that never changes stays where it is


class Normalisation(nn.Module):
    """ "global": by the corpus's statistics, which live here and so in every checkpoint;
    "utterance": by each utterance's own; "none"."""

    mean: Tensor
    std: Tensor

    def __init__(self, kind: Literal["global", "utterance", "none"], feature_dim: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "global":
            self.register_buffer("mean", torch.zeros(feature_dim))
            self.register_buffer("std", torch.ones(feature_dim))

    def set_statistics(self, mean: Tensor, std: Tensor) -> None:
        """The corpus's mean and deviation of each feature, both (F)."""
        if self.kind != "global":
            raise ValueError(f'normalisation is "{self.kind}": only "global" has statistics')
        for name, value in (("mean", mean), ("std", std)):
            if value.shape != self.mean.shape:
                raise ValueError(f"{name} has shape {tuple(value.shape)}, expected {tuple(self.mean.shape)}")
            wrong = ~value.isfinite() if name == "mean" else ~(value.isfinite() & (value >= 0))
            if wrong.any():
                feature = int(wrong.nonzero()[0])
                raise ValueError(f"{name} is {value[feature].item()} for feature {feature}")
        self.mean.copy_(mean)
        self.std.copy_(std)

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        if not features.is_floating_point():
            return features  # tokens of a text
        exists = frame_mask(lengths, features.shape[1], features.device)[..., None]
        if self.kind == "global":
            features = (features - self.mean) / self.std.clamp(min=SMALLEST_DEVIATION)
        elif self.kind == "utterance":
            features = features.where(exists, 0)
            frames = exists.sum(1, keepdim=True)
            mean = features.sum(1, keepdim=True) / frames
            variance = (features - mean).square().where(exists, 0).sum(1, keepdim=True) / frames
            features = (features - mean) / variance.sqrt().clamp(min=SMALLEST_DEVIATION)
        return features.where(exists, 0)
