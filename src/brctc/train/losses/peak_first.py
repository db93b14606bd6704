"""Peak-first regularisation (Tian et al., 2022, arXiv 2211.03284): each frame learns from the next one."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from brctc.data.batch import Padded
from brctc.train.losses.base import LOSSES, Forward, HeadLossConfig, Loss


@LOSSES.register
class PeakFirstConfig(HeadLossConfig):
    """Peak-first regularisation of a CTC output."""

    kind: Literal["peak-first"] = "peak-first"

    def build(self) -> "PeakFirst":
        return PeakFirst(self)


class PeakFirst(Loss):
    """The loss of a head on a tap."""

    def __init__(self, config: PeakFirstConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, forward: Forward, step: int) -> Tensor:
        logits = forward.encoded.logits(self.config.on, self.config.text)
        return peak_first_loss(logits, forward.batch.targets[self.config.text].lengths)


def peak_first_loss(logits: Padded, target_lengths: Tensor) -> Tensor:
    """sum_t KL(p_{t+1} || p_t) over each utterance's frames, in nats per label, averaged over the batch.

    p is the softmax of (N, T, C) logits, at temperature 1. The next frame is a teacher without a gradient, as
    in distillation, so that a peak is copied to the left and not smeared to the right: the gradient at frame
    t is p_t - p_{t+1}. The last frame has no teacher.
    """
    scores, lengths = logits
    lengths, target_lengths = lengths.to(scores.device), target_lengths.to(scores.device)
    exists = torch.arange(scores.shape[1], device=scores.device) < lengths[:, None]
    known = scores.masked_fill(~exists[:, :, None], 0)  # padding may hold anything, NaN too
    log_probs = known.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1)
    teacher, student = log_probs[:, 1:].detach(), log_probs[:, :-1]
    divergence = F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)
    losses = torch.where(exists[:, 1:], divergence, 0).sum(1)
    return (losses / target_lengths.clamp(min=1)).mean()
