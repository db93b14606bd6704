"""Random batches for tests: shapes, lengths, layouts and kinds of posterior."""

from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

import brctc


class Batch(NamedTuple):
    scores: Tensor
    targets: Tensor
    input_lengths: Tensor
    target_lengths: Tensor
    blank: int

    def loss(self, risk=None, **options) -> Tensor:
        options = {"reduction": "none", "blank": self.blank, **options}
        return brctc.bayes_risk_ctc_loss(*self[:4], risk, **options)


def random_batch(N, T, U, C, *, blank=0, spread=2.0, dtype=torch.double, seed=0, repeats=True) -> Batch:
    """Lengths vary, the first utterance is full; padding holds values that must not be read."""
    generator = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(T, N, C, dtype=dtype, generator=generator)
    input_lengths = torch.randint(max(1, T // 2), T + 1, (N,), generator=generator)
    target_lengths = torch.randint(0, U + 1, (N,), generator=generator)
    input_lengths[0], target_lengths[0] = T, U
    labels = torch.randint(0, C - 1, (N, U), generator=generator)
    if repeats and U > 1:
        same = torch.rand(N, U, generator=generator) < 0.3
        same[:, 0] = False
        labels = torch.where(same, labels.roll(1, 1), labels)
    labels += labels >= blank
    for n in range(N):
        labels[n, target_lengths[n] :] = -7
        scores[input_lengths[n] :, n] = float("nan")
    return Batch(scores, labels, input_lengths, target_lengths, blank)


@st.composite
def batches(draw, most_frames=40, most_labels=12) -> Batch:
    C = draw(st.integers(2, 12))
    batch = random_batch(
        N=draw(st.integers(1, 5)),
        T=draw(st.integers(1, most_frames)),
        U=draw(st.integers(0, most_labels)),
        C=C,
        blank=draw(st.integers(0, C - 1)),
        spread=draw(st.sampled_from([0.0, 1.0, 5.0, 30.0, 300.0])),
        dtype=draw(st.sampled_from([torch.float32, torch.float64])),
        seed=draw(st.integers(0, 2**31)),
        repeats=draw(st.booleans()),
    )
    layout = draw(st.sampled_from(["padded", "concatenated", "int32"]))
    targets = batch.targets
    if layout == "concatenated":
        targets = torch.cat([row[:u] for row, u in zip(targets, batch.target_lengths, strict=True)])
    elif layout == "int32":
        targets = targets.int()
    scores = batch.scores
    memory = draw(st.sampled_from(["time-major", "batch-major", "strided", "class-major"]))
    if memory == "batch-major":
        scores = scores.transpose(0, 1).contiguous().transpose(0, 1)
    elif memory == "strided":
        scores = torch.cat([scores, scores], -1)[..., : scores.shape[-1]]
    elif memory == "class-major":
        scores = scores.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    return batch._replace(targets=targets, scores=scores)
