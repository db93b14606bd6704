"""GPU kernels that both criteria start with: labels and lengths are checked, and a row of scores summed."""

import triton.language as tl

from brctc.kernels.triton_numbers import device, kernel

# What is wrong with an utterance; t + 1 says that frame t cannot be read.
BAD_LABELS = tl.constexpr(-1)
OUT_OF_RANGE = tl.constexpr(-2)


@device
def softmax_sum(row, C, REAL: tl.constexpr, BLOCK: tl.constexpr):
    """The largest score of a row, and the sum of exp(score - largest)."""
    highest = tl.full([BLOCK], float("-inf"), REAL)
    part = tl.zeros([BLOCK], REAL)
    for begin in range(0, C, BLOCK):
        c = begin + tl.arange(0, BLOCK)
        x = tl.load(row + c, mask=c < C, other=float("-inf")).to(REAL)
        new = tl.maximum(highest, x)
        base = tl.where(new == float("-inf"), 0.0, new)  # nothing yet but -inf
        part = part * tl.exp(highest - base) + tl.exp(x - base)
        highest = new
    shift = tl.max(highest, 0)
    return shift, tl.sum(part * tl.exp(highest - shift), 0)


@kernel
def prepare_kernel(
    targets, input_lengths, target_lengths, status, frames, tokens, labels, links,
    stride, least, T_max, W, C, blank, K: tl.constexpr,
):  # fmt: skip
    """Checks one utterance and writes down what the other kernels read: its lengths; its labels, column 0
    being the blank; for each label the column of its next occurrence, or 0. Links of a label that
    occurred before are negative, -1 - link. With bad values, one frame and no labels."""
    n = tl.program_id(0).to(tl.int64)
    T = tl.load(input_lengths + n)
    U = tl.load(target_lengths + n)
    lane = tl.arange(0, K)
    good = (T >= least) & (T_max >= T) & (U >= 0) & (U < W)
    U = tl.where(good, U, 0).to(tl.int32)
    is_label = (lane > 0) & (lane <= U)
    label = tl.load(targets + n * stride + lane - 1, mask=is_label, other=0)
    wrong = is_label & ((label < 0) | (label >= C) | (label == blank))
    good = good & (tl.max(wrong.to(tl.int32), 0) == 0)
    U = tl.where(good, U, 0)
    is_label = is_label & good
    tl.store(status + n, tl.where(good, 0, BAD_LABELS))
    tl.store(frames + n, tl.where(good, T, 1))
    tl.store(tokens + n, U)
    tl.store(labels + n * W + lane, tl.where(is_label, label, blank), mask=lane < W)
    link = tl.zeros([K], tl.int32)
    first = lane >= 0
    for v in range(1, U + 1):
        same = tl.load(targets + n * stride + v - 1) == label
        link = tl.where(same & (v > lane) & (link == 0), v, link)
        first = first & ~(same & (v < lane))
    link = tl.where(is_label, link, 0)
    tl.store(links + n * W + lane, tl.where(first | ~is_label, link, -1 - link), mask=lane < W)
