"""Cut an encoder's output behind the last spike of its CTC posterior (section 3.3)."""

import math

import torch
from torch import Tensor

from brctc.kernels.tensors import Lengths, check_has_values, check_strided


def trim(
    hidden: Tensor,
    lengths: Lengths,
    log_probs: Tensor,
    *,
    blank: int = 0,
    threshold: float = 0.99,
    margin: int = 5,
    from_logits: bool = False,
    at_least: Lengths = 1,
) -> tuple[Tensor, Tensor]:
    """The frames of `hidden` (N, T, D) that hold anything, and how many: (N, T', D) and (N).

    `trimmed_lengths` says which; T' is the longest of them. Frames keep their places: what is left
    is the beginning of each utterance, followed by its old frames as padding.
    """
    kept = trimmed_lengths(
        log_probs,
        lengths,
        blank=blank,
        threshold=threshold,
        margin=margin,
        from_logits=from_logits,
        at_least=at_least,
    )
    check_hidden(hidden, log_probs)
    longest = kept.max()
    if torch.compiler.is_compiling():
        # A program must hold for every length, and torch treats 1 apart: such a cut leaves 2 frames,
        # one of them padding, which there must be even if there was one frame to begin with.
        hidden = torch.nn.functional.pad(hidden, (0, 0, 0, 1))
        longest = longest.clamp(min=2).item()
        torch._check(longest >= 2)
        torch._check(longest <= hidden.shape[1])
        return hidden[:, :longest], kept
    return hidden[:, : int(longest)], kept


def trimmed_lengths(
    log_probs: Tensor,
    lengths: Lengths,
    *,
    blank: int = 0,
    threshold: float = 0.99,
    margin: int = 5,
    from_logits: bool = False,
    at_least: Lengths = 1,
) -> Tensor:
    """How many frames of each utterance to keep: m + margin, (N) int64.

    m is the last frame, counted from 1, whose blank is not above the threshold: behind it there are
    certain blanks only. An utterance of nothing but these has m = 0. A frame whose posterior is NaN
    counts as not certain. Nothing here waits for the device.

    Args:
        log_probs: (N, T, C), batch first; logits with `from_logits`. No gradient passes through.
        lengths: (N), frames of each utterance, 1 to T.
        blank: index of the blank class.
        threshold: probability above which a blank is certain.
        margin: frames kept behind the last one that is not a certain blank (the paper's D).
        from_logits: `log_probs` are logits.
        at_least: frames that are kept in any case, one number or (N): in training, those that an
            alignment of the target needs. No utterance gets more frames than it has.
    """
    if isinstance(margin, bool) or not isinstance(margin, int) or margin < 0:
        raise ValueError(f"margin is {margin!r}, expected a number of frames, 0 or more")
    uncertain, given, _ = uncertain_frames(log_probs, lengths, blank, threshold, from_logits)
    least = per_utterance("at_least", at_least, log_probs.shape[0]).to(given.device)
    frame = torch.arange(1, log_probs.shape[1] + 1, device=given.device)
    last = (uncertain * frame).amax(1)
    return torch.minimum(torch.maximum(last + margin, least.clamp(min=1)), given)


def check_hidden(hidden: Tensor, log_probs: Tensor) -> None:
    """Refuses an encoder's output that is not the one of these scores."""
    check_has_values("log_probs", log_probs)
    if hidden.shape[:2] != log_probs.shape[:2]:
        given, expected = tuple(hidden.shape), tuple(log_probs.shape[:2])
        raise ValueError(f"hidden has shape {given}, but log_probs are of (N, T) = {expected}")


def uncertain_frames(
    log_probs: Tensor, lengths: Lengths, blank: int, threshold: float, from_logits: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(N, T): where the blank is not above the threshold; with the lengths (N) on the scores' device, and
    (N, T) log-probabilities of the blank."""
    if not isinstance(log_probs, Tensor) or not log_probs.is_floating_point() or log_probs.dim() != 3:
        found = tuple(log_probs.shape) if isinstance(log_probs, Tensor) else type(log_probs).__name__
        raise ValueError(f"log_probs must be a floating-point tensor (N, T, C), got {found}")
    check_strided("log_probs", log_probs)
    batch, frames, classes = log_probs.shape
    if not 0 <= blank < classes:
        raise ValueError(f"blank is {blank}, expected 0 to {classes - 1}: log_probs have {classes} classes")
    if not 0 < threshold < 1:
        raise ValueError(f"threshold is {threshold!r}, expected a probability between 0 and 1")
    given = per_utterance("lengths", lengths, batch)
    if given.is_cpu and not torch.compiler.is_compiling():
        wrong = ((given < 1) | (given > frames)).nonzero().flatten().tolist()
        if wrong:
            n = wrong[0]
            raise ValueError(f"lengths[{n}] is {int(given[n])}, expected 1 to {frames}")
    given = given.to(log_probs.device)
    scores = log_probs.detach()
    log_blank = (scores.log_softmax(-1, torch.float) if from_logits else scores)[..., blank]
    exists = torch.arange(frames, device=given.device) < given[:, None]
    return ~(log_blank > math.log(threshold)) & exists, given, log_blank


def per_utterance(name: str, value: Lengths, batch: int) -> Tensor:
    """(N) int64 of a number, or of one for each utterance."""
    lengths = torch.as_tensor(value)
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, got {lengths.dtype}")
    if lengths.dim() > 1 or (lengths.dim() == 1 and lengths.shape[0] != batch):
        raise ValueError(f"{name} has shape {tuple(lengths.shape)} for {batch} utterances")
    return lengths.to(torch.int64).expand(batch)
