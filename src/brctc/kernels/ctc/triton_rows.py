"""The CTC kernels that see the vocabulary axis: emissions, and rows of the gradient."""

import triton.language as tl

from brctc.kernels.triton_labels import softmax_sum
from brctc.kernels.triton_numbers import SMALLEST_LOG, device, emission, kernel


@kernel
def emit_kernel(
    scores, labels, frames, tokens, em, ee, shifts, sums, largest,
    stride_t, stride_n, C, T_max, W,
    REAL: tl.constexpr, INT: tl.constexpr, LOGITS: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Emissions of one frame. Logits are exponentials over a sum that is kept for the loss: softmax is
    exp(x - shift) / sum. `largest` is the largest exponent of the row, or infinite if the row holds what
    is no score."""
    t = tl.program_id(0)
    n = tl.program_id(1).to(tl.int64)
    if t >= tl.load(frames + n):
        return
    row = scores + t.to(tl.int64) * stride_t + n * stride_n
    at = n * T_max + t
    shift = tl.zeros([], REAL)
    total = tl.zeros([], REAL) + 1
    if LOGITS:
        shift, total = softmax_sum(row, C, REAL, BLOCK)
    tl.store(shifts + at, shift)
    tl.store(sums + at, total)
    lane = tl.arange(0, K)
    exists = lane <= tl.load(tokens + n)
    label = tl.load(labels + n * W + lane, mask=exists, other=0)
    x = tl.load(row + label, mask=exists, other=0.0).to(tl.float64)
    readable = tl.min(tl.where(exists, x < float("inf"), True).to(tl.int32), 0) == 1
    # NaN, +inf, or nothing but -inf
    readable = readable & (total > 0) & (total < float("inf"))
    x = x - shift.to(tl.float64)
    m, e = emission(x, REAL)
    size = tl.max(tl.where(exists & (x > SMALLEST_LOG), tl.abs(x), 0.0), 0) * 1.4427 + 3
    tl.store(largest + at, tl.where(readable, size, float("inf")))
    tl.store(em + at * W + lane, m, mask=exists)
    tl.store(ee + at * W + lane, e, mask=exists)


@device
def add_repeats(own, link):
    """Each lane's value and those of the later lanes that it is linked to, added up in their order."""
    total = own
    step = link
    while tl.max(step, 0) > 0:
        total += tl.where(step > 0, tl.gather(own, step, 0), 0.0)
        step = tl.where(step > 0, tl.gather(link, step, 0), 0)
    return total


@device
def fill_row(row, value, C, BLOCK: tl.constexpr):
    """Writes a block of values over and over."""
    for begin in range(0, C, BLOCK):
        c = begin + tl.arange(0, BLOCK)
        tl.store(row + c, value.to(row.dtype.element_ty), mask=c < C)


@kernel
def gradient_kernel(
    scores, labels, links, frames, tokens, possible, mass, weights, shifts, sums, occupancy, gradient,
    stride_t, stride_n, out_t, out_n, C, N, T_max, W,
    REAL: tl.constexpr, LOGITS: tl.constexpr, TWO: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of one frame: weight * (mass * softmax - occupancy). TWO: occupancies come in two
    parts. Every class is written by one lane, repeats of a label are added up in their order. Where
    `possible` is NaN the gradient is, unless nothing comes back for the loss."""
    t = tl.program_id(0)
    n = tl.program_id(1).to(tl.int64)
    out = gradient + t.to(tl.int64) * out_t + n * out_n
    state = tl.load(possible + n)
    in_time = t < tl.load(frames + n)
    spoiled = in_time & (state != 0) & (state != 1) & (tl.load(weights + n) != 0)
    if ~in_time | (state != 1):
        fill_row(out, tl.where(spoiled, float("nan"), tl.zeros([BLOCK], REAL)), C, BLOCK)
        return
    row = scores + t.to(tl.int64) * stride_t + n * stride_n
    at = n * T_max + t
    weight = tl.load(weights + n)
    all_mass = tl.load(mass + n)
    U = tl.load(tokens + n)
    lane = tl.arange(0, K)
    exists = lane <= U
    label = tl.load(labels + n * W + lane, mask=exists, other=-1)
    own = tl.load(occupancy + at * W + lane, mask=exists, other=0.0)
    if TWO:
        own += tl.load(occupancy + (tl.cast(N, tl.int64) * T_max + at) * W + lane, mask=exists, other=0.0)
        own = tl.where((U == 0) & (lane == 0), all_mass, own)  # without labels every frame is blank
    if LOGITS:
        # rounding makes occupancies drift: one that has most of the mass is better known from the others
        size = tl.abs(own)
        main = (size == tl.max(size, 0)) & (2 * size > tl.abs(all_mass))
        main = lane == tl.min(tl.where(main, lane, K), 0)
        own = tl.where(main, all_mass - tl.sum(tl.where(main, 0.0, own), 0), own)
    link = tl.load(links + n * W + lane, mask=exists, other=-1)
    first = link >= 0
    value = -add_repeats(own, tl.where(first, link, -1 - link))
    if LOGITS:
        shift = tl.load(shifts + at)
        scale = 1 / tl.load(sums + at)
        logit = tl.load(row + label, mask=exists, other=float("-inf")).to(REAL)
        prob = tl.exp(logit - shift) * scale
        main_class = tl.max(tl.where(prob > 0.5, label, -1), 0)
        rest = tl.zeros([BLOCK], REAL)
        for begin in range(0, C, BLOCK):
            c = begin + tl.arange(0, BLOCK)
            x = tl.load(row + c, mask=c < C, other=float("-inf")).to(REAL)
            p = tl.exp(x - shift) * scale
            rest += tl.where(c == main_class, 0.0, p)
            tl.store(out + c, (weight * all_mass * p).to(gradient.dtype.element_ty), mask=c < C)
        value += all_mass * prob
        # a frame's gradient adds up to zero: the main class, where rounding would show, is what the
        # others leave
        left = tl.sum(tl.where(label == main_class, 0.0, own), 0) - all_mass * tl.sum(rest, 0)
        value = tl.where(label == main_class, left, value)
    else:
        fill_row(out, tl.zeros([BLOCK], REAL), C, BLOCK)
    tl.debug_barrier()  # the row is complete before its own classes are written over
    tl.store(out + label, (weight * value).to(gradient.dtype.element_ty), mask=exists & first)
