"""Forced alignment as torchaudio has it, of whole batches; and words with their times."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from brctc.align import WILDCARD, BestPath, best_path
from brctc.kernels.tensors import FULL, Lengths, check_floating, integer_lengths, integers


def forced_align(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths | None = None,
    target_lengths: Lengths | None = None,
    blank: int = 0,
    *,
    from_logits: bool = False,
    wildcards: bool = False,
    wildcard_price: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """torchaudio.functional.forced_align: the best path (N, T), and each frame's log probability on it.

    Unlike torchaudio's it takes batches of any size, any float dtype and any device. The search runs on the
    CPU; the results are on the device of `log_probs`. Behind its frames an utterance has blanks with score 0.

    Args:
        log_probs: (N, T, C), batch first.
        targets: (N, U) padded, any integer dtype, which the path has too.
        input_lengths: (N), frames of each utterance; None if all have T.
        target_lengths: (N), labels of each utterance; None if all have U.
        blank: index of the blank class.
        from_logits: `log_probs` are logits.
        wildcards: -1 in the targets stands for what was not transcribed, and in the path for a frame of it:
            see `best_path`.
        wildcard_price: what such a frame costs, in nats below its best class.

    Raises ValueError for an utterance that no path fits into; `check_feasible` names them all.
    """
    check_floating("log_probs", log_probs)
    if log_probs.dim() != 3:
        raise ValueError(f"log_probs must be (N, T, C), got {tuple(log_probs.shape)}")
    batch, frames, _ = log_probs.shape
    labels = integers("targets", targets)
    if labels.dim() != 2 or labels.shape[0] != batch:
        raise ValueError(f"targets must be (N, U) with N = {batch}, got {tuple(labels.shape)}")
    input_lengths = torch.full((batch,), frames) if input_lengths is None else input_lengths
    target_lengths = torch.full((batch,), labels.shape[1]) if target_lengths is None else target_lengths
    found = best_path(
        log_probs.detach().transpose(0, 1),
        labels,
        input_lengths,
        target_lengths,
        blank,
        from_logits,
        wildcards=wildcards,
        wildcard_price=wildcard_price,
    )
    _refuse_without_path(found)
    in_time = _exists(integer_lengths("input_lengths", input_lengths), frames, log_probs.device)
    scores = _frame_scores(log_probs.detach(), found.path, in_time, from_logits, wildcard_price)
    dtype = targets.dtype if isinstance(targets, Tensor) else torch.int64
    return torch.where(in_time, found.path, blank).to(dtype), scores


def _exists(lengths: Tensor, size: int, device: torch.device) -> Tensor:
    return torch.arange(size, device=device) < lengths.to(device)[:, None]


def _refuse_without_path(found: BestPath) -> None:
    for n, score in enumerate(found.score.tolist()):
        if score == -math.inf:
            raise ValueError(f"utterance {n} has no path: too few frames for its targets, or scores of -inf")


def _frame_scores(
    scores: Tensor, path: Tensor, in_time: Tensor, from_logits: bool, wildcard_price: float
) -> Tensor:
    """(N, T): the log probability of each frame's class; of a wildcard, what it is worth."""
    scores = scores if scores.dtype in FULL else scores.float()
    chosen = scores.gather(2, path.clamp(min=0)[:, :, None]).squeeze(2)
    if (is_wild := in_time & (path == WILDCARD)).any():
        chosen = torch.where(is_wild, scores.amax(2) - wildcard_price, chosen)
    if from_logits:
        chosen = chosen - scores.logsumexp(2)
    return torch.where(in_time, chosen, 0.0)


class Word(NamedTuple):
    """A word and when it was said."""

    text: str
    start_s: float
    end_s: float
    confidence: float
    """The mean probability of its tokens' frames: 1 if the model is sure of all of them."""


def align_words(
    log_probs: Tensor,
    words: Sequence[tuple[str, Sequence[int] | None]],
    frame_s: float,
    *,
    start_s: float = 0.0,
    blank: int = 0,
    from_logits: bool = False,
    wildcard_price: float = 1.0,
) -> list[Word]:
    """The words of one utterance with their times, by forced alignment.

    Args:
        log_probs: (T, C), the utterance's own frames.
        words: each word's text and its tokens. None instead of tokens is for what was not transcribed: it
            gets the time of what was said there, and is left out if nothing was.
        frame_s: seconds from one frame to the next; with subsampling, of the encoder's output.
        start_s: when the first frame begins.
        blank: index of the blank class.
        from_logits: `log_probs` are logits.
        wildcard_price: see `best_path`.
    """
    check_floating("log_probs", log_probs)
    if log_probs.dim() != 2:
        raise ValueError(f"log_probs must be (T, C), got {tuple(log_probs.shape)}")
    if not 0 < frame_s < math.inf:
        raise ValueError(f"frame_s is {frame_s!r}, expected a number of seconds above 0")
    places, targets = _places(words)
    frames, labels = log_probs.shape[0], torch.tensor(targets, dtype=torch.int64)
    options = {"wildcards": WILDCARD in targets, "wildcard_price": wildcard_price}
    found = best_path(
        log_probs.detach()[:, None], labels[None], frames, len(targets), blank, from_logits, **options
    )
    _refuse_without_path(found)
    in_time = torch.ones(1, frames, dtype=torch.bool, device=log_probs.device)
    scores = _frame_scores(log_probs.detach()[None], found.path, in_time, from_logits, wildcard_price)
    probability = scores[0].double().exp().cpu()
    start, end = found.start[0].tolist(), found.end[0].tolist()
    aligned = []
    for (text, _), (first, last) in zip(words, places, strict=True):
        spans = [(start[u], end[u]) for u in range(first, last) if start[u] >= 0]
        if not spans:
            continue
        own = torch.cat([probability[a:b] for a, b in spans])
        times = start_s + spans[0][0] * frame_s, start_s + spans[-1][1] * frame_s
        aligned.append(Word(text, *times, float(own.mean())))
    return aligned


def _places(words: Sequence[tuple[str, Sequence[int] | None]]) -> tuple[list[tuple[int, int]], list[int]]:
    """Where each word's tokens are among all of them, and all of them."""
    places, targets = [], []
    for i, (text, tokens) in enumerate(words):
        if tokens is not None and not len(tokens):
            raise ValueError(f"word {i}, {text!r}, has no tokens: None stands for what was not transcribed")
        if tokens is not None and min(tokens) < 0:
            raise ValueError(f"word {i}, {text!r}, has the token {min(tokens)}, expected 0 or more")
        own = [WILDCARD] if tokens is None else [int(token) for token in tokens]
        places.append((len(targets), len(targets) + len(own)))
        targets += own
    return places, targets
