"""Peak-first regularisation (Tian et al., 2022, arXiv 2211.03284): each frame learns from the next one."""

import torch
import torch.nn.functional as F
from torch import Tensor


def peak_first_loss(logits: Tensor, lengths: Tensor, target_lengths: Tensor) -> Tensor:
    """sum_t KL(p_{t+1} || p_t) over each utterance's frames, in nats per label, averaged over the batch.

    p is the softmax of (N, T, C) logits, at temperature 1; `lengths` and `target_lengths` are (N). The next
    frame is a teacher without a gradient, as in distillation, so that a peak is copied to the left and
    not smeared to the right: the gradient at frame t is p_t - p_{t+1}. The last frame has no teacher.
    """
    lengths, target_lengths = lengths.to(logits.device), target_lengths.to(logits.device)
    exists = torch.arange(logits.shape[1], device=logits.device) < lengths[:, None]
    scores = logits.masked_fill(~exists[:, :, None], 0)  # padding may hold anything, NaN too
    log_probs = scores.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    teacher, student = log_probs[:, 1:].detach(), log_probs[:, :-1]
    divergence = F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)
    losses = torch.where(exists[:, 1:], divergence, 0).sum(1)
    return (losses / target_lengths.clamp(min=1)).mean()
