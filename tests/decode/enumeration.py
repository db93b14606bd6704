"""What a search should find, by writing down every path. Knows no beams, prefixes or recursions."""

import itertools
import math
from collections import defaultdict

import torch


def collapse(path, blank=0):
    return tuple(label for label, _ in itertools.groupby(path) if label != blank)


def ctc_sequences(log_probs, blank=0):
    """Log probability of every token sequence that (T, C) allows, most probable first."""
    frames, classes = log_probs.shape
    totals = defaultdict(float)
    rows = log_probs.exp().tolist()
    for path in itertools.product(range(classes), repeat=frames):
        totals[collapse(path, blank)] += math.prod(row[c] for row, c in zip(rows, path, strict=True))
    return ranked({tokens: math.log(p) for tokens, p in totals.items() if p > 0})


def prefix_log_prob(sequences, prefix):
    """Log probability that the output begins with `prefix`."""
    inside = [p for tokens, p in sequences.items() if tokens[: len(prefix)] == tuple(prefix)]
    return torch.tensor(inside, dtype=torch.double).logsumexp(0).item()


def ranked(scores):
    return dict(sorted(scores.items(), key=lambda item: -item[1]))
