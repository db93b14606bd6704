"""Batches by seconds of audio."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from brctc.data.prepared import Prepared, Utterance
from brctc.data.tokens import Tokenizer

LENGTH_JITTER = 0.05
"""Durations are sorted after a random change of this share, so that batches differ between epochs."""


@dataclass
class Batch:
    """Utterances padded to the longest; class 0 fills the targets, zeros the features."""

    ids: list[str]
    features: Tensor
    """(N, T, F) float32"""
    lengths: Tensor
    """(N), frames"""
    targets: Tensor
    """(N, U)"""
    target_lengths: Tensor
    """(N)"""
    texts: list[str]
    duration_s: float
    """Seconds of audio, without the padding."""


def plan_batches(
    utterances: Sequence[Utterance],
    batch_s: float,
    *,
    seed: int,
    epoch: int,
    max_duration_s: float | None = None,
) -> list[list[int]]:
    """Which utterances go together: each batch at most `batch_s` seconds with its padding.

    Similar lengths share a batch, batches come in random order, both decided by (seed, epoch).
    `max_duration_s` keeps to short utterances, for a curriculum; otherwise each is in one batch.
    """
    rng = np.random.default_rng([seed, epoch])
    durations = np.array([utterance.duration_s for utterance in utterances])
    keys = durations * rng.uniform(1 - LENGTH_JITTER, 1 + LENGTH_JITTER, len(durations))
    wanted = np.arange(len(durations))
    if max_duration_s is not None:
        wanted = wanted[durations <= max_duration_s]
    if not len(wanted):
        limit = "" if max_duration_s is None else f" of at most {max_duration_s:g} s"
        raise ValueError(f"there are no utterances{limit}")
    longest = wanted[durations[wanted].argmax()]
    if durations[longest] > batch_s:
        raise ValueError(
            f"{utterances[longest].id} lasts {durations[longest]:.2f} s, a batch holds {batch_s:g} s"
        )
    batches: list[list[int]] = []
    longest_s = 0.0
    for index in wanted[np.argsort(keys[wanted], kind="stable")].tolist():
        longest_s = max(longest_s, durations[index])
        if not batches or (len(batches[-1]) + 1) * longest_s > batch_s:
            batches.append([])
            longest_s = durations[index]
        batches[-1].append(index)
    return [batches[i] for i in rng.permutation(len(batches))]


def make_batch(prepared: Prepared, indices: Sequence[int], tokenizer: Tokenizer) -> Batch:
    """Reads, pads and encodes utterances."""
    chosen = [prepared.utterances[index] for index in indices]
    encoded = [tokenizer.encode(utterance.text) for utterance in chosen]
    features = np.zeros((len(chosen), max(u.num_frames for u in chosen), prepared.feature_dim), np.float32)
    targets = np.zeros((len(chosen), max(map(len, encoded))), np.int64)
    for n, index in enumerate(indices):
        features[n, : chosen[n].num_frames] = prepared.features(index)
        targets[n, : len(encoded[n])] = encoded[n]
    return Batch(
        ids=[utterance.id for utterance in chosen],
        features=torch.from_numpy(features),
        lengths=torch.tensor([utterance.num_frames for utterance in chosen]),
        targets=torch.from_numpy(targets),
        target_lengths=torch.tensor([len(ids) for ids in encoded]),
        texts=[utterance.text for utterance in chosen],
        duration_s=sum(utterance.duration_s for utterance in chosen),
    )
