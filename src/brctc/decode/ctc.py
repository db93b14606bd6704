"""Searches that need the CTC output alone."""

import math

import numpy as np
import torch
from torch import Tensor

from brctc.align import best_path
from brctc.decode.hypothesis import Hypothesis, PrefixTree


def ctc_greedy(logits: Tensor, lengths: Tensor, blank: int = 0) -> list[Hypothesis]:
    """The best class of each frame, repeats and blanks removed; one hypothesis per utterance.

    logits: (N, T, C). The score is the log probability of that one path; a token's frames are the
    first and the last of its run.
    """
    check_logits(logits, lengths, blank)
    if logits.shape[1] == 0:
        return [Hypothesis([], 0.0, [], []) for _ in range(len(logits))]
    scores, path = best_classes(logits)
    inside = torch.arange(path.shape[1], device=path.device) < lengths.to(path.device)[:, None]
    starts = inside & (path != blank)
    ends = starts.clone()
    changes = path[:, 1:] != path[:, :-1]
    starts[:, 1:] &= changes
    ends[:, :-1] &= changes | ~inside[:, 1:]
    totals = torch.where(inside, scores, 0).double().sum(1).tolist()
    tokens: list[list[int]] = [[] for _ in totals]
    first: list[list[int]] = [[] for _ in totals]
    last: list[list[int]] = [[] for _ in totals]
    runs = starts.nonzero().tolist(), ends.nonzero().tolist(), path[starts].tolist()
    for (n, start), (_, end), token in zip(*runs, strict=True):
        tokens[n].append(token)
        first[n].append(start)
        last[n].append(end)
    return [Hypothesis(*found) for found in zip(tokens, totals, first, last, strict=True)]


def best_classes(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The log probability of each frame's best class, and the class: logits (..., C) to (...)."""
    scores, path = logits.detach().float().log_softmax(-1).max(-1)
    return scores, path


def ctc_prefix_beam(
    logits: Tensor, lengths: Tensor, beam: int = 10, blank: int = 0
) -> list[list[Hypothesis]]:
    """Prefix beam search: the most probable token sequences, each summed over its paths.

    Returns up to `beam` hypotheses for each utterance, the best first.
    """
    check_logits(logits, lengths, blank)
    check_counts(beam=beam)
    log_probs = logits.detach().double().log_softmax(-1).cpu()
    return [
        _prefix_beam(row[:length], beam, blank)
        for row, length in zip(log_probs, lengths.tolist(), strict=True)
    ]


def _prefix_beam(log_probs: Tensor, beam: int, blank: int) -> list[Hypothesis]:
    # Extending a prefix by c scores log P(prefix) + log p(c), or less if c repeats its last token: what
    # `beam` + 1 other labels beat in a frame cannot get into the beam, whatever the prefix.
    width = min(beam + 1, log_probs.shape[1] - 1)
    labels = log_probs.clone()
    labels[:, blank] = -torch.inf
    best = labels.topk(width).indices.numpy()
    rows = log_probs.numpy()
    tree = PrefixTree()
    prefixes, last = [0], np.array([-1])
    # of each prefix in the beam: log probability of its paths that end in blank, and in its last token
    in_blank, in_token = np.zeros(1), np.full(1, -np.inf)
    for row, extensions in zip(rows, best, strict=True):
        total = np.logaddexp(in_blank, in_token)
        stay_blank, stay_token = total + row[blank], in_token + row[last]
        repeats = extensions == last[:, None]
        extended = np.where(repeats, in_blank[:, None], total[:, None]) + row[extensions]
        # a prefix and the extension that makes it of another one in the beam are one hypothesis
        index = {prefix: i for i, prefix in enumerate(prefixes)}
        pairs = [(index[tree.parent[p]], i) for p, i in index.items() if tree.parent[p] in index]
        if pairs:
            source, target = np.array(pairs).T
            token = last[target]
            entering = np.where(token == last[source], in_blank[source], total[source]) + row[token]
            stay_token[target] = np.logaddexp(stay_token[target], entering)
            pair, column = (extensions == token[:, None]).nonzero()
            extended[source[pair], column] = -np.inf
        scores = np.concatenate([np.logaddexp(stay_blank, stay_token), extended.ravel()])
        chosen = np.argpartition(-scores, beam)[:beam] if len(scores) > beam else np.arange(len(scores))
        chosen = chosen[scores[chosen] > -np.inf]
        kept, new = chosen[chosen < len(prefixes)], chosen[chosen >= len(prefixes)]
        source, column = np.divmod(new - len(prefixes), width)
        tokens = extensions[column]
        in_blank = np.concatenate([stay_blank[kept], np.full(len(new), -np.inf)])
        in_token = np.concatenate([stay_token[kept], scores[new]])
        last = np.concatenate([last[kept], tokens])
        prefixes = [prefixes[i] for i in kept] + [
            tree.child(prefixes[i], token) for i, token in zip(source.tolist(), tokens.tolist(), strict=True)
        ]
    scores = np.logaddexp(in_blank, in_token)
    return [Hypothesis(tree.tokens(prefixes[i]), float(scores[i])) for i in np.argsort(-scores)]


def ctc_frames(
    logits: Tensor, lengths: Tensor, tokens: list[list[int]], blank: int = 0
) -> list[tuple[list[int], list[int]] | None]:
    """The first and the last frame of each token on the most probable path that says the tokens; None if
    there is none."""
    check_logits(logits, lengths, blank)
    counts = [len(labels) for labels in tokens]
    padded = torch.full((len(tokens), max(counts, default=0)), int(blank == 0))
    for row, labels in zip(padded, tokens, strict=True):
        row[: len(labels)] = torch.tensor(labels, dtype=torch.long)
    # without frames there is no path, but that of no tokens
    found = best_path(logits.transpose(0, 1), padded, lengths.clamp(min=1), counts, blank, from_logits=True)
    possible = (found.score > -math.inf) & ((lengths > 0) | (torch.tensor(counts) == 0))
    return [
        (start[:count], end[:count]) if fits else None
        for start, end, count, fits in zip(
            found.start.tolist(), (found.end - 1).tolist(), counts, possible.tolist(), strict=True
        )
    ]


def check_logits(logits: Tensor, lengths: Tensor, blank: int) -> None:
    """Refuses what is not the CTC output of a batch, and says why."""
    if logits.ndim != 3 or logits.shape[2] < 2:
        raise ValueError(f"logits have shape {tuple(logits.shape)}, expected (N, T, C) with C at least 2")
    if lengths.shape != logits.shape[:1]:
        raise ValueError(f"lengths have shape {tuple(lengths.shape)}, expected ({logits.shape[0]},)")
    for n, length in enumerate(lengths.tolist()):
        if not 0 <= length <= logits.shape[1]:
            raise ValueError(f"utterance {n} has length {length}, expected 0 to {logits.shape[1]}")
    if not 0 <= blank < logits.shape[2]:
        raise ValueError(f"blank is {blank}, expected 0 to {logits.shape[2] - 1}")


def check_counts(**counts: int) -> None:
    """Refuses a beam, and whatever else must hold something, that holds nothing."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}, expected at least 1")
