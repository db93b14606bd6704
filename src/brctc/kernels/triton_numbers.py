"""Numbers of the GPU lattice: a mantissa with an integer exponent, m * 2^e, as on the CPU (native/numbers.h).

float32 mantissas go with int32 exponents, float64 with int64; each function reads the format off its
operands.
"""

import os

import triton
import triton.language as tl

# For functions that kernels call. To the interpreter a Python function will do, where the call of a jit
# function costs a millisecond.
device = (lambda function: function) if os.environ.get("TRITON_INTERPRET") == "1" else triton.jit

# Sizes that change from batch to batch: a kernel is not compiled anew when one of them is 1, or
# divisible by 16.
kernel = triton.jit(do_not_specialize=["N", "T_max", "W", "blank", "stride"])

# The exponent that stands for probability zero.
ZERO_32 = tl.constexpr(-(1 << 29))
ZERO_64 = tl.constexpr(-(1 << 61))
SMALLEST_LOG = tl.constexpr(-1e13)  # kernels/tensors.py has the same
LN2 = tl.constexpr(0.6931471805599453)


@device
def zero_like(e):
    """Exponents of probability zero."""
    if e.dtype == tl.int64:
        return tl.full(e.shape, ZERO_64, tl.int64)
    else:
        return tl.full(e.shape, ZERO_32, tl.int32)


@device
def is_zero(e):
    if e.dtype == tl.int64:
        return e < ZERO_64 // 2
    else:
        return e < ZERO_32 // 2


@device
def power(d):
    """2^d, zero where that would be subnormal."""
    if d.dtype == tl.int64:
        return (tl.maximum(d + 1023, 0) << 52).to(tl.float64, bitcast=True)
    else:
        return (tl.maximum(d + 127, 0) << 23).to(tl.float32, bitcast=True)


@device
def normalise(m, e):
    """The same number with its mantissa in [1, 2); what is less than zero's exponent becomes zero."""
    if m.dtype == tl.float64:
        bits = m.to(tl.int64, bitcast=True)
        e += (bits >> 52) - 1023
        m = ((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000).to(tl.float64, bitcast=True)
    else:
        bits = m.to(tl.int32, bitcast=True)
        e += (bits >> 23) - 127
        m = ((bits & 0x007FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    return m, tl.maximum(e, zero_like(e))


@device
def add(a_m, a_e, b_m, b_e):
    """The two terms at the exponent of the larger, and that exponent."""
    top = tl.maximum(a_e, b_e)
    return a_m * power(a_e - top), b_m * power(b_e - top), top


@device
def divide(a, b):
    """Rounded to nearest. The plain division of float32 on a GPU is off by up to two units in the last
    place, which over thousands of frames would add up."""
    if a.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, b)


@device
def exponential(x, REAL: tl.constexpr):
    """exp(x) of float64 x, with m in [0.70, 1.42]. Reduced in double, so that a log-probability of
    -20000 keeps all its digits also in float32."""
    n = tl.floor(x * 1.4426950408889634 + 0.5)
    r = (x - n * 0.6931467056274414) - n * 4.7493250390316726e-07
    if REAL == tl.float64:
        m = tl.exp(r)
        e = n.to(tl.int64)
    else:
        # a polynomial of degree 6, relative error 2.6e-9: the hardware's exp2 has only 22 bits
        r = r.to(tl.float32)
        m = 0.0013941118895837 * r + 0.0083751347746243
        m = m * r + 0.0416663527711122
        m = m * r + 0.1666641541404118
        m = m * r + 0.5000000047146057
        m = m * r + 1.0000000377388713
        m = m * r + 1.0
        # the clamp keeps the integer defined; what it changes is refused as out of range
        e = tl.minimum(tl.maximum(n, -(2.0**28)), 2.0**28).to(tl.int32)
    return m, e


@device
def emission(log_prob, REAL: tl.constexpr):
    """exp(log_prob), and zero of what counts as probability zero."""
    possible = log_prob > SMALLEST_LOG
    m, e = exponential(tl.where(possible, log_prob, 0.0), REAL)
    return m, tl.where(possible, e, zero_like(e))


@device
def logarithm(m, e):
    """Of m * 2^e, in double."""
    return tl.log(m.to(tl.float64)) + e.to(tl.float64) * LN2


@device
def shift_up(m, e, lane):
    """Lane u gets what lane u - 1 has; lane 0 gets zero."""
    before = tl.maximum(lane - 1, 0)
    m = tl.gather(m, before, 0)
    e = tl.gather(e, before, 0)
    return m, tl.where(lane == 0, zero_like(e), e)


@device
def load_state(states_m, states_e, at, mask):
    """Mantissas and exponents; probability zero where the mask is off."""
    m = tl.load(states_m + at, mask=mask, other=1.0)
    e = tl.load(states_e + at, mask=mask, other=0)
    return m, tl.where(mask, e, zero_like(e))
