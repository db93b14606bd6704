"""Path groups on the GPU, and what a loss is made of: weighed sums, sources, totals."""

# pyright: reportUndefinedVariable=false
# "fp64" is the type of a kernel's argument, to Triton

import triton.language as tl

from brctc.kernels.triton_labels import OUT_OF_RANGE
from brctc.kernels.triton_numbers import (
    LN2,
    add,
    device,
    exponential,
    is_zero,
    kernel,
    load_state,
    logarithm,
    normalise,
    power,
    zero_like,
)

PEAK_TOLERANCE = tl.constexpr(1e-4)  # groups.py has the same


@device
def group_tile(labels, states_m, states_e, n, t, u, T, U, N, T_max, W, START: tl.constexpr):
    """P_u(tau) of frames t (rows) and labels u (columns): what reaches the event, times what follows."""
    size = tl.cast(N, tl.int64) * T_max * W
    valid = (t < T) & (u >= 1) & (u <= U)
    here = (n * T_max + t) * W + u
    if START:
        first_m, first_e = load_state(states_m, states_e, 3 * size + here, valid)
        there, other, beyond = here - W - 1, u - 1, (t >= 1) & valid
        from_blank, from_label, alone = 0, size, (t == 0) & (u == 1)
    else:
        first_m, first_e = load_state(states_m, states_e, size + here, valid)
        there, other, beyond = here + W, u + 1, (t + 1 < T) & valid
        from_blank, from_label, alone = 2 * size, 3 * size + 1, (t == T - 1) & (u == U)
    b_m, b_e = load_state(states_m, states_e, from_blank + there, beyond)
    b_e = tl.where(alone & valid, 0, b_e)  # the path begins, or ends, with the event
    neighbour = (other >= 1) & (other <= U)
    label = tl.load(labels + n * W + u, mask=neighbour & valid, other=0)
    differs = label != tl.load(labels + n * W + other, mask=neighbour & valid, other=0)
    l_m, l_e = load_state(states_m, states_e, from_label + there, beyond & differs)
    by_blank, by_label, e = add(b_m, b_e, l_m, l_e)
    m, e = normalise(first_m * (by_blank + by_label), first_e + e)
    return m, tl.where(valid, e, zero_like(e))


@device
def share_of(m, e, total_m, total_e):
    """A part of all paths as a plain number. Rounding can put it a hair above 1."""
    return 2 * m / total_m * power(e - total_e - 1)


@kernel
def weigh_kernel(
    labels, frames, tokens, states_m, states_e, totals_m, totals_e, sources, objectives,
    factor: "fp64", N, T_max, W, REAL: tl.constexpr, INT: tl.constexpr, BT: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """Eq. 12 for some tokens of an utterance: sources G (N, T, W), and (N, W) the logarithm of each
    token's weighed sum over all paths, its constant in tau' included."""
    n = tl.program_id(0).to(tl.int64)
    T = tl.load(frames + n)
    U = tl.load(tokens + n)
    u = tl.program_id(1) * BU + tl.arange(0, BU)
    total_m = tl.load(totals_m + n)
    total_e = tl.load(totals_e + n)
    slope = factor / tl.maximum(T, 1).to(tl.float64)
    sum_m = tl.full([BU], 1.0, REAL)
    sum_e = zero_like(tl.zeros([BU], INT))
    peak = tl.zeros([BU], REAL)
    for begin in range(0, T, BT):
        t = begin + tl.arange(0, BT)
        m, e = group_tile(labels, states_m, states_e, n, t[:, None], u[None], T, U, N, T_max, W, False)
        peak = tl.maximum(peak, tl.max(share_of(m, e, total_m, total_e), 0))
        weight_m, weight_e = exponential(-slope * (t + 1).to(tl.float64), REAL)
        m *= weight_m[:, None]
        e += weight_e[:, None]
        top = tl.maximum(sum_e, tl.max(e, 0))
        some = tl.sum(m * power(e - top[None]), 0)
        sum_m, sum_e = normalise(sum_m * power(sum_e - top) + some, top)
    scale = 1 / (sum_m * tl.maximum(U, 1).to(REAL))
    peak_frame = tl.zeros([BU], tl.int32) + T
    for begin in range(0, T, BT):
        t = begin + tl.arange(0, BT)
        m, e = group_tile(labels, states_m, states_e, n, t[:, None], u[None], T, U, N, T_max, W, False)
        share = share_of(m, e, total_m, total_e)
        tied = (t < T)[:, None] & (share >= (peak * (1 - PEAK_TOLERANCE))[None])
        peak_frame = tl.minimum(peak_frame, tl.min(tl.where(tied, t[:, None] + 1, T), 0))
        weight_m, weight_e = exponential(-slope * (t + 1).to(tl.float64), REAL)
        weighed = m * weight_m[:, None] * power(e + weight_e[:, None] - sum_e[None])
        at = sources + (n * T_max + t[:, None]) * W + u[None]
        tl.store(at, weighed * scale[None], mask=(t < T)[:, None] & (u <= U)[None])
    objective = logarithm(sum_m, sum_e) - logarithm(total_m, total_e)
    tl.store(objectives + n * W + u, objective + slope * peak_frame.to(tl.float64), mask=u <= U)


@device
def own_tile(tokens, totals_m, totals_e, BT: tl.constexpr, BU: tl.constexpr):
    """A program's utterance, frames (rows) and labels (columns), with the utterance's labels and paths."""
    n = tl.program_id(0).to(tl.int64)
    t = (tl.program_id(1) * BT + tl.arange(0, BT))[:, None]
    u = (tl.program_id(2) * BU + tl.arange(0, BU))[None]
    return n, t, u, tl.load(tokens + n), tl.load(totals_m + n), tl.load(totals_e + n)


@kernel
def groups_kernel(
    labels, frames, tokens, states_m, states_e, totals_m, totals_e, log_share,
    N, T_max, W, START: tl.constexpr, BT: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """log_share (N, U, T) of a tile: -inf where there is no path."""
    n, t, u, U, total_m, total_e = own_tile(tokens, totals_m, totals_e, BT, BU)
    m, e = group_tile(labels, states_m, states_e, n, t, u, tl.load(frames + n), U, N, T_max, W, START)
    there = ~is_zero(e) & ~is_zero(total_e)
    share = tl.log(m.to(tl.float64)) - tl.log(total_m.to(tl.float64)) + (e - total_e).to(tl.float64) * LN2
    share = tl.where(there, share, float("-inf"))
    tl.store(log_share + (n * (W - 1) + u - 1) * T_max + t, share, mask=(t < T_max) & (u >= 1) & (u < W))


@kernel
def sources_kernel(
    labels, frames, tokens, states_m, states_e, totals_m, totals_e, grad_share, sources, last_share,
    N, T_max, W, START: tl.constexpr, BT: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """Turns grad_share (N, U, T) into sources (N, T, W), without what is given to groups that hold no
    path; last_share (N, T) has the groups of the last token."""
    n, t, u, U, total_m, total_e = own_tile(tokens, totals_m, totals_e, BT, BU)
    m, e = group_tile(labels, states_m, states_e, n, t, u, tl.load(frames + n), U, N, T_max, W, START)
    there = ~is_zero(e) & ~is_zero(total_e)
    given = tl.load(grad_share + (n * (W - 1) + u - 1) * T_max + t, mask=there, other=0.0)
    tl.store(sources + (n * T_max + t) * W + u, given, mask=(t < T_max) & (u < W))
    share = tl.where(there, share_of(m, e, total_m, total_e), 0.0)
    tl.store(last_share + n * T_max + t + u * 0, share, mask=(t < T_max) & (u == U))


@kernel
def finish_kernel(
    frames, tokens, totals_m, totals_e, sums, largest, objectives, status, losses, possible,
    factor: "fp64", T_max, W, budget: "fp64", EACH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The loss of one utterance, infinite if it has no path, NaN if there is something wrong with it; and
    whether it is neither."""
    n = tl.program_id(0).to(tl.int64)
    T = tl.load(frames + n)
    U = tl.load(tokens + n)
    lane = tl.arange(0, BLOCK)
    range_used = tl.abs(factor) + tl.zeros([], tl.float64)
    log_sums = tl.zeros([], tl.float64)
    bad_frame = T
    for begin in range(0, T, BLOCK):
        t = begin + lane
        size = tl.load(largest + n * T_max + t, mask=t < T, other=0.0)
        bad_frame = tl.minimum(bad_frame, tl.min(tl.where(size < float("inf"), T, t), 0))
        range_used += tl.sum(size, 0)
        log_sums += tl.sum(tl.log(tl.load(sums + n * T_max + t, mask=t < T, other=1.0).to(tl.float64)), 0)
    total_m = tl.load(totals_m + n)
    total_e = tl.load(totals_e + n)
    loss = log_sums - logarithm(total_m, total_e)
    if EACH:
        objective = tl.zeros([], tl.float64)
        for begin in range(1, U + 1, BLOCK):
            u = begin + lane
            objective += tl.sum(tl.load(objectives + n * W + u, mask=u <= U, other=0.0), 0)
        loss -= objective / tl.maximum(U, 1).to(tl.float64)
    else:
        loss += factor * (U > 0).to(tl.float64)
    has_path = ~is_zero(total_e)
    loss = tl.where(has_path, loss, float("inf"))
    code = tl.load(status + n)
    found = tl.where(bad_frame < T, bad_frame + 1, tl.where(range_used < budget, 0, OUT_OF_RANGE))
    code = tl.where(code == 0, found, code)
    tl.store(status + n, code)
    tl.store(losses + n, tl.where(code == 0, loss, float("nan")))
    tl.store(possible + n, tl.where(has_path & (code == 0), 1.0, 0.0))
