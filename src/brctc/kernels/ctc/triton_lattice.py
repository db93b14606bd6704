"""The lattice on the GPU: both chains of docs/math.md, occupancies, and adjoint passes.

Scratch layouts, W = U + 1 columns: emissions (N, T, W), column 0 the blank and u label u; states
(2, 2, N, T, W) by direction (0 ahead, 1 reversed) and kind (0 blanks, 1 labels), each as mantissas and
exponents, always in the utterance's own order of frames and labels.

A chain's lane u holds label u and the blank behind it, in the direction's own order: reversed, lane u
is label U + 1 - u and blank U - u.
"""

# pyright: reportUndefinedVariable=false
# "fp64" is the type of a kernel's argument, to Triton

import triton.language as tl

from brctc.kernels.triton_numbers import (
    add,
    device,
    divide,
    exponential,
    is_zero,
    kernel,
    load_state,
    normalise,
    power,
    shift_up,
    zero_like,
)


@device
def columns(lane, U, reverse):
    """Where a direction's lanes are kept: the column of each label, and of each blank."""
    label = tl.where(reverse & (lane > 0), U + 1 - lane, lane)
    blank = tl.where(reverse, U - lane, lane)
    return label, blank


@device
def skip_exponents(labels, label_column, lane, U, reverse, e):
    """Added to a label's exponent on its way to the next lane: 0, or zero's if the two are the same."""
    ahead = tl.where(reverse, label_column - 1, label_column + 1)
    follows = (lane >= 1) & (lane < U)
    here = tl.load(labels + label_column, mask=follows, other=0)
    there = tl.load(labels + ahead, mask=follows, other=0)
    return tl.where(here != there, tl.full(e.shape, 0, e.dtype), zero_like(e))


@device
def load_emissions(m, e, label_column, is_label):
    """The blank's, and each label's. Lanes that do not exist let mass pass: none of it comes back."""
    label_m = tl.load(m + label_column, mask=is_label, other=1.0)
    label_e = tl.load(e + label_column, mask=is_label, other=0)
    return tl.load(m), tl.load(e), label_m, label_e


@kernel
def chain_kernel(
    em, ee, labels, frames, tokens,
    states_m, states_e, totals_m, totals_e,
    factor: "fp64", N, T_max, W,
    REAL: tl.constexpr, INT: tl.constexpr, BOOST: tl.constexpr, KEEP: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """One utterance in one direction. BOOST: the final blanks' emissions carry the risk of Eq. 10."""
    n = tl.program_id(0).to(tl.int64)
    direction = tl.program_id(1).to(tl.int64)
    reverse = direction == 1
    T = tl.load(frames + n)
    U = tl.load(tokens + n)
    lane = tl.arange(0, K)
    label_column, blank_column = columns(lane, U, reverse)
    exists = lane <= U
    is_label = exists & (lane > 0)
    zero = zero_like(tl.zeros([K], INT))
    skip = skip_exponents(labels + n * W, label_column, lane, U, reverse, zero)
    b_m = tl.full([K], 1.0, REAL)
    l_m = b_m
    b_e = tl.where(lane == 0, tl.full([K], 0, INT), zero)  # before the first frame: blank 0
    l_e = zero
    boost_m = b_m
    boost_e = tl.zeros([K], INT)
    if BOOST:
        m, e = exponential(factor / tl.maximum(T, 1).to(tl.float64), REAL)
        # without labels there are no final blanks
        final = (blank_column == U) & (U > 0)
        boost_m, boost_e = tl.where(final, m, boost_m), tl.where(final, e, boost_e)
    t = tl.where(reverse, tl.maximum(T, 1) - 1, 0)
    step = tl.where(reverse, -1, 1)
    row = n * T_max * W + t.to(tl.int64) * W
    keep = direction * 2 * N * T_max * W + row
    labels_ahead = tl.cast(N, tl.int64) * T_max * W  # from a frame's blanks to its labels
    yb_m, yb_e, yl_m, yl_e = load_emissions(em + row, ee + row, label_column, is_label)
    for k in range(T):
        now_bm, now_be, now_lm, now_le = yb_m, yb_e, yl_m, yl_e
        # the next frame's emissions are on their way while this one is worked on
        row += tl.where(k + 1 < T, step * W, 0)
        yb_m, yb_e, yl_m, yl_e = load_emissions(em + row, ee + row, label_column, is_label)
        by_blank, by_label, enter_e = add(b_m, b_e, l_m, l_e + skip)
        enter_m, enter_e = shift_up(by_blank + by_label, enter_e, lane)
        stays, comes, new_be = add(b_m, b_e, l_m, l_e)
        b_m, b_e = normalise((stays + comes) * now_bm * boost_m, new_be + now_be + boost_e)
        stays, comes, new_le = add(l_m, l_e, enter_m, enter_e)
        l_m, l_e = normalise((stays + comes) * now_lm, new_le + now_le)
        if KEEP:
            tl.store(states_m + keep + blank_column, b_m, mask=exists)
            tl.store(states_e + keep + blank_column, b_e, mask=exists)
            tl.store(states_m + keep + labels_ahead + label_column, l_m, mask=is_label)
            tl.store(states_e + keep + labels_ahead + label_column, l_e, mask=is_label)
        keep += step * W
    # what ends: the last blank and the last label
    stays, comes, e = add(b_m, b_e, l_m, l_e)
    m, e = normalise(stays + comes, e)
    last = lane == U
    tl.store(totals_m + direction * N + n, tl.sum(tl.where(last, m, 0.0)))
    tl.store(totals_e + direction * N + n, tl.sum(tl.where(last, e, tl.full(e.shape, 0, e.dtype))))


@kernel
def occupy_kernel(
    labels, frames, tokens, states_m, states_e, occupancy,
    N, T_max, W, REAL: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Occupancies of one frame: beginnings that stand in a state, times endings that go on from it."""
    t = tl.program_id(0)
    n = tl.program_id(1).to(tl.int64)
    T = tl.load(frames + n)
    U = tl.load(tokens + n)
    if t >= T:
        return
    lane = tl.arange(0, K)
    exists = lane <= U
    is_label = exists & (lane > 0)
    size = tl.cast(N, tl.int64) * T_max * W
    here = n * T_max * W + t.to(tl.int64) * W + lane
    ab_m, ab_e = load_state(states_m, states_e, here, exists)
    al_m, al_e = load_state(states_m, states_e, size + here, is_label)
    after = 2 * size + here + W
    goes_on = t + 1 < T
    b_m, b_e = load_state(states_m, states_e, after, exists & goes_on)
    l_m, l_e = load_state(states_m, states_e, size + after, is_label & goes_on)
    next_m, next_e = load_state(states_m, states_e, size + after + 1, (lane < U) & goes_on)
    ends = exists & (t + 1 == T) & (lane == U)
    b_e = tl.where(ends, 0, b_e)  # the end of a path, in the last blank or the last label
    skip = skip_exponents(labels + n * W, lane, lane, U, False, b_e)
    # from a label: stay, to the blank behind, to the next label; from a blank: stay, to the next label
    leave_1, leave_2, e = add(b_m, b_e, next_m, next_e + skip)
    leave_m, leave_e = normalise(leave_1 + leave_2, e)
    stays, leaves, e = add(l_m, l_e, leave_m, leave_e)
    label_m = al_m * (stays + leaves)
    label_e = al_e + e
    stays, leaves, e = add(b_m, b_e, next_m, next_e)
    blank_m = ab_m * (stays + leaves)
    blank_e = ab_e + e
    label_e = tl.where(is_label, label_e, zero_like(e))
    blank_e = tl.where(exists, blank_e, zero_like(e))
    top = tl.max(tl.maximum(label_e, blank_e), 0)
    label = label_m * power(label_e - top)
    blank = tl.sum(blank_m * power(blank_e - top), 0)
    # divided by the frame's own sum, not by the utterance's: what rounding has done to both goes
    scale = tl.where(is_zero(top), 0.0, 1 / (tl.sum(label, 0) + blank)).to(REAL)
    tl.store(occupancy + here, tl.where(lane == 0, blank, label) * scale, mask=exists)


@kernel
def retreat_kernel(
    labels, frames, tokens, states_m, states_e, sources, extra, occupancy,
    N, T_max, W,
    REAL: tl.constexpr, INT: tl.constexpr, START: tl.constexpr, EXTRA: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """One adjoint pass of an utterance: program 0 along the chain that ends in the event, program 1 along
    the one that begins behind it. Moves sources (N, T, W) to occupancies (2, N, T, W). EXTRA (N, T) is
    added to the sources of the last token."""
    n = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    injects = part == 1  # sources are no part of the occupancy at their own frame, which the other has
    reverse = (part == 1) != START
    T = tl.load(frames + n)
    U = tl.load(tokens + n)
    lane = tl.arange(0, K)
    label_column, blank_column = columns(lane, U, reverse)
    exists = lane <= U
    is_label = exists & (lane > 0)
    size = tl.cast(N, tl.int64) * T_max * W
    t = tl.where(reverse, 0, T - 1)
    step = tl.where(reverse, 1, -1)
    row = n * T_max * W + t.to(tl.int64) * W
    direction = tl.where(reverse, 1, 0).to(tl.int64)
    blank = tl.zeros([K], REAL)
    label = tl.zeros([K], REAL)
    skip = skip_exponents(labels + n * W, label_column, lane, U, reverse, tl.zeros([K], INT))
    after = tl.minimum(lane + 1, K - 1)
    has_after = lane + 1 < K
    for k in range(T):
        source = tl.load(sources + row + label_column, mask=is_label, other=0.0)
        if EXTRA:
            source += tl.where(label_column == U, tl.load(extra + n * T_max + t), 0.0)
        label += tl.where(injects, 0.0, source)
        out = occupancy + part * size + row
        tl.store(out, tl.sum(blank, 0))
        tl.store(out + label_column, label, mask=is_label)
        t += step
        row += step * W
        more = k + 1 < T
        before = direction * 2 * size + row
        b_m, b_e = load_state(states_m, states_e, before + blank_column, exists & more)
        l_m, l_e = load_state(states_m, states_e, before + size + label_column, is_label & more)
        # the shares by which the chain came to this frame, as chain_kernel adds them up
        by_blank, by_label, enter_e = add(b_m, b_e, l_m, l_e + skip)
        entered = by_blank + by_label
        enter_m, enter_e = shift_up(entered, enter_e, lane)
        stays, comes, _ = add(l_m, l_e, enter_m, enter_e)
        share = divide(label, stays + comes)
        entering = share * comes + tl.where(injects, source, 0.0)
        label = share * stays
        entering = divide(tl.where(has_after, tl.gather(entering, after, 0), 0.0), entered)
        stays, comes, _ = add(b_m, b_e, l_m, l_e)
        share = divide(blank, stays + comes)
        blank = share * stays + entering * by_blank
        label += share * comes + entering * by_label
