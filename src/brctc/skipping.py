"""Leave out the frames of an encoder's output whose CTC posterior is a certain blank.

A decoder then looks at the spikes alone (arXiv 2210.16481). Unlike `trim` it needs no risk, and the frames
that are left know their places, so that times stay usable. What lies before the posterior is not spared.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from brctc.kernels.tensors import Lengths
from brctc.trimming import check_hidden, per_utterance, uncertain_frames


class Spikes(NamedTuple):
    """What is left of an encoder's output. T' is the longest of the lengths."""

    hidden: Tensor
    """(N, T', D)"""
    lengths: Tensor
    """(N) int64"""
    frames: Tensor
    """(N, T') int64: the frame that each was, counted from 0; behind the lengths it means nothing."""


def skip_blanks(
    hidden: Tensor,
    lengths: Lengths,
    log_probs: Tensor,
    *,
    blank: int = 0,
    threshold: float = 0.99,
    from_logits: bool = False,
    at_least: Lengths = 1,
) -> Spikes:
    """The frames of `hidden` (N, T, D) whose blank is not certain, in their order.

    Args:
        hidden: (N, T, D), an encoder's output. The gradient passes to the frames that are left.
        lengths: (N), frames of each utterance, 1 to T.
        log_probs: (N, T, C), batch first; logits with `from_logits`. No gradient passes through.
        blank: index of the blank class.
        threshold: probability above which a blank is certain. A frame whose posterior is NaN counts as
            not certain.
        from_logits: `log_probs` are logits.
        at_least: frames that are left in any case, one number or (N): where too few are not certain, those
            whose blank is the least likely. No utterance gets more frames than it has.
    """
    kept, given, log_blank = uncertain_frames(log_probs, lengths, blank, threshold, from_logits)
    check_hidden(hidden, log_probs)
    least = per_utterance("at_least", at_least, log_probs.shape[0]).to(given.device).clamp(min=1)
    frame = torch.arange(log_probs.shape[1], device=given.device)
    exists = frame < given[:, None]
    by_blank = log_blank.masked_fill(~exists, torch.inf).masked_fill(kept, -torch.inf)
    rank = by_blank.argsort(dim=1, stable=True).argsort(dim=1)  # ties are in the order of time
    kept = kept | ((rank < least[:, None]) & exists)
    left = kept.sum(1)
    order = (~kept).to(torch.int8).argsort(dim=1, stable=True)[:, : int(left.max())]
    taken = hidden.gather(1, order[:, :, None].expand(-1, -1, hidden.shape[2]))
    return Spikes(taken, left, order)
