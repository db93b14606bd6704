// Numbers as mantissa and exponent, value = m * 2^e, in loops that compilers vectorise.
// A probability never underflows, and no transition needs exp or log.
#pragma once
#include <cstdint>

#include "kernels.h"

namespace brctc {
inline namespace BRCTC_ISA {

template <class Real>
struct Format;

template <>
struct Format<float> {
  using Int = int32_t;
  static constexpr int mantissa_bits = 23;
  static constexpr Int bias = 127, one = 0x3f800000, mantissa_mask = 0x007fffff;
  // An exponent that stands for probability zero, and the most that the exponents of a whole
  // utterance may add up to so that no sum reaches it or wraps.
  static constexpr Int zero = -(Int{1} << 29), budget = Int{1} << 27;
};

template <>
struct Format<double> {
  using Int = int64_t;
  static constexpr int mantissa_bits = 52;
  static constexpr Int bias = 1023, one = 0x3ff0000000000000, mantissa_mask = 0x000fffffffffffff;
  static constexpr Int zero = -(Int{1} << 61), budget = Int{1} << 59;
};

template <class Real>
using IntOf = typename Format<Real>::Int;

template <class T>
static inline T larger(T a, T b) {
  return a > b ? a : b;
}

// 2^(d - bias), zero where it would be subnormal: d is an exponent as the format stores it.
template <class Real>
static inline Real pow2_biased(IntOf<Real> d) {
  return __builtin_bit_cast(Real, larger(d, IntOf<Real>{0}) << Format<Real>::mantissa_bits);
}

template <class Real>
static inline Real pow2(IntOf<Real> d) {
  return pow2_biased<Real>(d + Format<Real>::bias);
}

// 2^(e - of) for e <= of, as align() uses it.
template <class Real>
[[gnu::always_inline]] static inline Real relative(IntOf<Real> e, IntOf<Real> of) {
  return pow2_biased<Real>(e - (of - Format<Real>::bias));
}

// Two numbers with the larger one's exponent: they can be added.
template <class Real>
struct Aligned {
  Real first, second;
  IntOf<Real> e;
};
template <class Real>
[[gnu::always_inline]] static inline Aligned<Real> align(Real a_m, IntOf<Real> a_e, Real b_m, IntOf<Real> b_e) {
  const IntOf<Real> e = larger(a_e, b_e);
  return {a_m * relative<Real>(a_e, e), b_m * relative<Real>(b_e, e), e};
}

// Brings m back into [1, 2). m is a positive normal number.
template <class Real>
static inline void normalise(Real& m, IntOf<Real>& e) {
  using F = Format<Real>;
  const auto bits = __builtin_bit_cast(IntOf<Real>, m);
  e += (bits >> F::mantissa_bits) - F::bias;
  m = __builtin_bit_cast(Real, (bits & F::mantissa_mask) | F::one);
}

// exp on [-ln2/2, ln2/2]; relative errors 2.6e-9 and 4.3e-18 before rounding.
static inline float exp_reduced(float r) {
  float p = 0.0013941118895837f;
  p = p * r + 0.0083751347746243f;
  p = p * r + 0.0416663527711122f;
  p = p * r + 0.1666641541404118f;
  p = p * r + 0.5000000047146057f;
  p = p * r + 1.0000000377388713f;
  return p * r + 1.0f;
}

static inline double exp_reduced(double r) {
  double p = 2.5110049204818660e-8;
  p = p * r + 2.7632654722527792e-7;
  p = p * r + 2.7557240887229869e-6;
  p = p * r + 2.4801485441561313e-5;
  p = p * r + 1.9841269890076403e-4;
  p = p * r + 1.3888888952352863e-3;
  p = p * r + 8.3333333333195896e-3;
  p = p * r + 4.1666666666487953e-2;
  p = p * r + 1.6666666666666681e-1;
  p = p * r + 5.0000000000000184e-1;
  p = p * r + 1.0;
  return p * r + 1.0;
}

// exp(x) as m * 2^e with m in [0.70, 1.42]. The reduction is in double even for float results:
// a log-probability of -20000 keeps all its digits.
template <class Real>
static inline void split_exp(double x, Real& m, IntOf<Real>& e) {
  constexpr double round_magic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to integer
  const double shifted = x * 1.4426950408889634 + round_magic;
  const double n = shifted - round_magic;
  const double r = (x - n * 0.6931467056274414) - n * 4.7493250390316726e-07;
  m = exp_reduced(static_cast<Real>(r));
  e = static_cast<IntOf<Real>>(__builtin_bit_cast(int64_t, shifted) -
                               __builtin_bit_cast(int64_t, round_magic));
}

// Adding this rounds a float to an integer n, and leaves n + 127 in its lowest bits: shifted up,
// they are the float 2^n.
constexpr float round_to_exponent = 12582912.0f + 127;  // 1.5 * 2^23, and the exponent's bias

static inline float exponent_of(float shifted) {
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, shifted) << 23);
}

// exp(hi + lo) for |hi| < exp_limit, where lo is the rounding error of hi: n has 7 bits and the
// first two parts of ln2 ten each, so that their products with n are exact.
template <class Real>
constexpr double exp_limit = sizeof(Real) == 4 ? 80 : 700;

static inline float exp_exact(float hi, float lo) {
  const float shifted = hi * 1.44269504f + round_to_exponent;
  const float n = shifted - round_to_exponent;
  const float r = ((hi - n * 0.693359375f) - n * -0.00021219253540039062f) -
                  (n * -1.904654299957768e-09f - lo);
  return exp_reduced(r) * exponent_of(shifted);
}

static inline double exp_exact(double hi, double lo) {
  double m;
  int64_t e;
  split_exp(hi + lo, m, e);
  return m * __builtin_bit_cast(double, (e + 1023) << 52);
}

// Limits that the compiler must not see through: with constants it turns the two selects of a
// clamp into a chain of compares and blends, and the loop takes twice as long.
template <class Real>
struct Clamp {
  Real low, high;
  Clamp() : low(sizeof(Real) == 4 ? -88 : -709), high(-low) {
    asm("" : "+m"(low), "+m"(high));
  }
  Real operator()(Real x) const {
    const Real above = x < low ? low : x;  // NaN stays NaN
    return high < above ? high : above;
  }
};

// exp(x) for a softmax: zero below -88, huge above 88, NaN stays NaN.
static inline float exp_dense(float x, const Clamp<float>& clamp) {
  const float y = clamp(x);
  const float shifted = y * 1.44269504f + round_to_exponent;
  const float n = shifted - round_to_exponent;
  const float r = y - n * 0.693147182f;  // one constant: at most 2.4e-7 off, below a ulp for |x| < 40
  float p = 0.0083691556677f;  // relative error 1e-7: a degree less than exp_reduced
  p = p * r + 0.0419175575414f;
  p = p * r + 0.166665051958f;
  p = p * r + 0.499988689253f;
  p = p * r + 1.00000001078f;
  p = p * r + 1.0000000755f;
  return p * exponent_of(shifted);
}

static inline double exp_dense(double x, const Clamp<double>& clamp) {
  double m;
  int64_t e;
  split_exp(clamp(x), m, e);
  return x < -708.0 ? 0.0 : m * __builtin_bit_cast(double, (e + 1023) << 52);
}

}  // namespace BRCTC_ISA
}  // namespace brctc
