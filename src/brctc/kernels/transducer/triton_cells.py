"""The transducer loss on the GPU: one cell of the lattice per row of logits, (N, T, W), W = U + 1.

Scratch layouts: emissions (2, N, T, W), by the blank and by the next label; masses (2, N, T, W), of the
beginnings that come to a cell and of the endings from it. Both advance diagonal by diagonal.
"""

# pyright: reportUndefinedVariable=false, reportGeneralTypeIssues=false
# "fp64" is the type of a kernel's argument, to Triton; what tl.full gives, pyright takes for nothing

import triton.language as tl

from brctc.kernels.triton_labels import OUT_OF_RANGE, softmax_sum
from brctc.kernels.triton_numbers import (
    SMALLEST_LOG,
    add,
    emission,
    is_zero,
    kernel,
    load_state,
    logarithm,
    normalise,
    power,
    shift_up,
    zero_like,
)


@kernel
def cell_kernel(
    logits, labels, frames, tokens, em, ee, cells, largest,
    stride_n, stride_t, stride_u, C, blank, N, T_max, W, REAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Emissions of one cell, with the shift and the sum of its softmax as cells 2 and 3. `largest` is
    infinite if the row cannot be read."""
    t = tl.program_id(0) // W
    u = tl.program_id(0) % W
    n = tl.program_id(1).to(tl.int64)
    T = tl.load(frames + n)
    U = tl.load(tokens + n)
    if (t >= T) | (u > U):
        return
    row = logits + n * stride_n + t.to(tl.int64) * stride_t + u.to(tl.int64) * stride_u
    shift, total = softmax_sum(row, C, REAL, BLOCK)
    label = tl.load(labels + n * W + tl.minimum(u + 1, W - 1))
    log_total = shift.to(tl.float64) + tl.log(total.to(tl.float64))
    log_blank = tl.load(row + blank).to(tl.float64) - log_total
    log_label = tl.load(row + label).to(tl.float64) - log_total
    # in the last frame a blank ends the path, which only the last row may do
    log_blank = tl.where((t + 1 < T) | (u == U), log_blank, float("-inf"))
    log_label = tl.where(u < U, log_label, float("-inf"))
    blank_m, blank_e = emission(log_blank, REAL)
    label_m, label_e = emission(log_label, REAL)
    size = tl.cast(N, tl.int64) * T_max * W
    at = (n * T_max + t) * W + u
    tl.store(em + at, blank_m)
    tl.store(ee + at, blank_e)
    tl.store(em + size + at, label_m)
    tl.store(ee + size + at, label_e)
    tl.store(cells + 2 * size + at, shift)
    tl.store(cells + 3 * size + at, total)
    used = tl.where(log_blank > SMALLEST_LOG, -log_blank, 0.0)
    used = tl.maximum(used, tl.where(log_label > SMALLEST_LOG, -log_label, 0.0))
    readable = (total > 0) & (total < float("inf"))
    tl.store(largest + at, tl.where(readable, used * 1.4427 + 3, float("inf")))


@kernel
def diagonal_kernel(
    frames, tokens, em, ee, masses_m, masses_e, totals_m, totals_e,
    N, T_max, W, REAL: tl.constexpr, INT: tl.constexpr, KEEP: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """One utterance in one direction: program 0 the endings, from which the total comes, 1 the beginnings.
    A lane is a row of the lattice; the endings' lanes are counted from the last row."""
    n = tl.program_id(0).to(tl.int64)
    ahead = tl.program_id(1) == 1
    T = tl.load(frames + n)
    U = tl.load(tokens + n)
    lane = tl.arange(0, K)
    u = tl.where(ahead, lane, U - lane)
    size = tl.cast(N, tl.int64) * T_max * W
    keep = tl.where(ahead, 0, size) + n * T_max * W
    m = tl.full([K], 1.0, REAL)
    e = tl.where(lane == 0, tl.full([K], 0, INT), zero_like(tl.full([K], 0, INT)))
    exists = lane <= U
    start = ahead & (lane == 0)
    for k in range(T + U):
        t = tl.where(ahead, k - lane, T - 1 - k + lane)
        here = exists & (t >= 0) & (t < T)
        at = n * T_max * W + t * W + u
        # a beginning comes by the emissions of the cells before, an ending goes by those of its own
        b_m, b_e = load_state(em, ee, at - tl.where(ahead, W, 0), here & ((t > 0) | ~ahead))
        l_m, l_e = load_state(em, ee, size + at - tl.where(ahead, 1, 0), here & (lane > 0))
        b_e = tl.where(start & (k == 0), 0, b_e)
        other_m, other_e = shift_up(m, e, lane)
        by_blank, by_label, top = add(m * b_m, e + b_e, other_m * l_m, other_e + l_e)
        m, e = normalise(by_blank + by_label, top)
        if KEEP:
            tl.store(masses_m + keep + t * W + u, m, mask=here)
            tl.store(masses_e + keep + t * W + u, e, mask=here)
    # the endings' last diagonal is the first cell
    if ~ahead:
        last = lane == U
        tl.store(totals_m + n, tl.sum(tl.where(last, m, 0.0), 0))
        tl.store(totals_e + n, tl.sum(tl.where(last, e, tl.full([K], 0, INT)), 0))


@kernel
def close_kernel(
    frames, tokens, totals_m, totals_e, largest, status, losses,
    T_max, W, budget: "fp64", BLOCK: tl.constexpr,
):  # fmt: skip
    """The loss of one utterance, infinite if it has no path, NaN if there is something wrong with it."""
    n = tl.program_id(0).to(tl.int64)
    T = tl.load(frames + n)
    U = tl.load(tokens + n)
    bad_frame = T
    most = tl.zeros([], tl.float64)
    for begin in range(0, T * W, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        used = (at < T * W) & (at % W <= U)
        size = tl.load(largest + n * T_max * W + at, mask=used, other=0.0)
        bad_frame = tl.minimum(bad_frame, tl.min(tl.where(size < float("inf"), T, at // W), 0))
        most = tl.maximum(most, tl.max(size, 0))
    total_e = tl.load(totals_e + n)
    loss = -logarithm(tl.load(totals_m + n), total_e)
    loss = tl.where(is_zero(total_e), float("inf"), loss)
    code = tl.load(status + n)
    fits = most * (T + U).to(tl.float64) < budget
    found = tl.where(bad_frame < T, bad_frame + 1, tl.where(fits, 0, OUT_OF_RANGE))
    code = tl.where(code == 0, found, code)
    tl.store(status + n, code)
    tl.store(losses + n, tl.where(code == 0, loss, float("nan")))


@kernel
def visit_kernel(
    frames, tokens, em, ee, masses_m, masses_e, totals_m, totals_e, losses, cells,
    N, T_max, W, REAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """How often the blank is taken in a cell, and how often the label: cells 0 and 1."""
    n = tl.program_id(1).to(tl.int64)
    T = tl.load(frames + n)
    U = tl.load(tokens + n)
    inside = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    t = inside // W
    u = inside % W
    used = (t < T) & (u <= U)
    size = tl.cast(N, tl.int64) * T_max * W
    at = n * T_max * W + inside
    total_e = tl.load(totals_e + n)
    scale = 1 / tl.load(totals_m + n)
    a_m, a_e = load_state(masses_m, masses_e, at, used)
    b_m, b_e = load_state(em, ee, at, used)
    l_m, l_e = load_state(em, ee, size + at, used)
    after_m, after_e = load_state(masses_m, masses_e, size + at + W, used & (t + 1 < T))
    after_e = tl.where((t + 1 == T) & (u == U), 0, after_e)
    next_m, next_e = load_state(masses_m, masses_e, size + at + 1, used & (u < U))
    # in two steps: the sum of four exponents of zero would not fit
    b_m, b_e = normalise(a_m * b_m, a_e + b_e)
    l_m, l_e = normalise(a_m * l_m, a_e + l_e)
    b_m, b_e = normalise(b_m * after_m, b_e + after_e)
    l_m, l_e = normalise(l_m * next_m, l_e + next_e)
    finite = tl.abs(tl.load(losses + n)) < float("inf")
    # rounding can put one a hair above 1, hence the factor of two
    by_blank = 2 * b_m * scale * power(b_e - total_e - 1)
    by_label = 2 * l_m * scale * power(l_e - total_e - 1)
    exists = inside < T_max * W
    tl.store(cells + at, tl.where(used, tl.where(finite, by_blank, 0.0), 0.0), mask=exists)
    tl.store(cells + size + at, tl.where(used, tl.where(finite, by_label, 0.0), 0.0), mask=exists)


@kernel
def cell_gradient_kernel(
    logits, labels, weights, cells, gradient,
    stride_n, stride_t, stride_u, C, blank, N, T_max, W, REAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradient of one row: visits * softmax, less what is taken. It adds up to zero, and the one of
    the two classes that is taken more often is what the others leave."""
    n = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) // W
    u = tl.program_id(0) % W
    size = tl.cast(N, tl.int64) * T_max * W
    at = (n * T_max + t) * W + u
    out = gradient + at * C
    by_blank = tl.load(cells + at)
    by_label = tl.load(cells + size + at)
    visits = by_blank + by_label
    if visits == 0:
        for begin in range(0, C, BLOCK):
            c = begin + tl.arange(0, BLOCK)
            tl.store(out + c, tl.zeros([BLOCK], REAL).to(gradient.dtype.element_ty), mask=c < C)
        return
    row = logits + n * stride_n + t.to(tl.int64) * stride_t + u.to(tl.int64) * stride_u
    weight = tl.load(weights + n)
    shift = tl.load(cells + 2 * size + at)
    scale = 1 / tl.load(cells + 3 * size + at)
    label = tl.load(labels + n * W + tl.minimum(u + 1, W - 1))
    main = tl.where(by_blank >= by_label, blank, label)
    rest = tl.zeros([BLOCK], REAL)
    for begin in range(0, C, BLOCK):
        c = begin + tl.arange(0, BLOCK)
        x = tl.load(row + c, mask=c < C, other=float("-inf")).to(REAL)
        value = visits * tl.exp(x - shift) * scale
        value -= tl.where(c == blank, by_blank, 0.0) + tl.where(c == label, by_label, 0.0)
        rest += tl.where(c == main, 0.0, value)
        tl.store(out + c, (weight * value).to(gradient.dtype.element_ty), mask=c < C)
    tl.debug_barrier()  # the row is complete before its main class is written over
    tl.store(out + main, (-weight * tl.sum(rest, 0)).to(gradient.dtype.element_ty))
