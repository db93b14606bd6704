"""CR-CTC (Yao et al., 2025, arXiv 2410.05101): two masked copies of an utterance learn from each other."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from brctc.data.batch import Padded
from brctc.models.layers import frame_mask
from brctc.train.losses.base import LOSSES, Forward, HeadLossConfig, Loss


@LOSSES.register
class ConsistencyConfig(HeadLossConfig):
    """Consistency of a CTC output on two copies of each utterance, which `augment.copies: 2` makes. The paper
    of CR-CTC has weight 0.2, and time masks that cover 2.5 times as much as usual."""

    kind: Literal["consistency"] = "consistency"

    @property
    def copies(self) -> int:
        return 2

    def build(self) -> "Consistency":
        return Consistency(self)


class Consistency(Loss):
    """The loss of a head on a tap."""

    def __init__(self, config: ConsistencyConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, forward: Forward, step: int) -> Tensor:
        logits, batch = forward.encoded.logits(self.config.on, self.config.text), forward.batch
        if batch.copies == 1:  # a development set has no copies
            return logits.values.new_zeros(())
        return consistency_loss(logits, batch.targets[self.config.text].lengths)


def consistency_loss(logits: Padded, target_lengths: Tensor) -> Tensor:
    """1/2 sum_t KL(p_t || q_t) + KL(q_t || p_t) of two copies, in nats per label, averaged over utterances.

    p and q are the softmax of the first and of the second N of (2 N, T, C) logits. The left one of each
    divergence is a teacher without a gradient, so that the gradients are (p - q) / 2 and (q - p) / 2 at the
    logits of each. Of copies that trimming has left at different lengths, the frames that both have count.
    """
    scores, lengths = logits
    both = lengths.to(scores.device).unflatten(0, (2, -1)).amin(0)
    exists = frame_mask(both, scores.shape[1], scores.device)
    known = scores.unflatten(0, (2, -1)).masked_fill(~exists[:, :, None], 0)  # padding may hold anything
    log_probs = known.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1)
    teacher = log_probs.detach().flip(0)
    divergence = F.kl_div(log_probs, teacher, reduction="none", log_target=True).sum(-1)
    losses = torch.where(exists, divergence, 0)
    per_label = target_lengths.to(scores.device).unflatten(0, (2, -1))[0].clamp(min=1)
    return (losses.sum((0, 2)) / per_label).mean() / 2
