// The elementwise part of a joint network: tanh(encoder + prediction) for every cell, and its
// gradient summed over cells. The products with the output weights are torch's.
#pragma once
#include "numbers.h"

namespace brctc {
inline namespace BRCTC_ISA {

// exp(y) - 1 = 2^n (exp(r) - 1) + (2^n - 1) keeps the digits of a small y, so tanh = q / (q + 2) with
// y = 2|x| does as well: relative error 3e-7 at most. NaN stays NaN.
static inline float tanh_of(float x) {
  const float size = x < 0 ? -x : x;
  const float y = 2 * (9.1f < size ? 9.1f : size);  // tanh is 1 beyond
  const float shifted = y * 1.44269504f + round_to_exponent;
  const float n = shifted - round_to_exponent;
  const float r = (y - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 0.00139464969f;  // (exp(r) - 1 - r) / r^2, relative error of exp(r) - 1: 1.6e-8
  p = p * r + 0.00836661061f;
  p = p * r + 0.04166628140f;
  p = p * r + 0.16666542794f;
  p = p * r + 0.50000000621f;
  const float power = exponent_of(shifted);
  const float q = power * (p * r * r + r) + (power - 1);
  const float result = q / (q + 2);
  return x < 0 ? -result : result;
}

static inline double tanh_of(double x) { return __builtin_tanh(x); }

template <class Real>
void join(const void* encoder, const void* prediction, int64_t rows, int64_t D, void* hidden) {
  const Real* __restrict e = static_cast<const Real*>(encoder);
  for (int64_t u = 0; u < rows; ++u) {
    const Real* __restrict p = static_cast<const Real*>(prediction) + u * D;
    Real* __restrict out = static_cast<Real*>(hidden) + u * D;
#pragma omp simd
    for (int64_t i = 0; i < D; ++i) out[i] = tanh_of(e[i] + p[i]);
  }
}

template <class Real>
void join_backward(const void* hidden_at, const void* grad_at, int64_t T, int64_t rows, int64_t D,
                   int64_t first, int64_t last, void* grad_encoder, void* grad_prediction) {
  for (int64_t t = 0; t < T; ++t) {
    Real* __restrict of_encoder = static_cast<Real*>(grad_encoder) + t * D;
    for (int64_t i = first; i < last; ++i) of_encoder[i] = 0;
    for (int64_t u = 0; u < rows; ++u) {
      const int64_t row = (t * rows + u) * D;
      const Real* __restrict h = static_cast<const Real*>(hidden_at) + row;
      const Real* __restrict g = static_cast<const Real*>(grad_at) + row;
      Real* __restrict of_prediction = static_cast<Real*>(grad_prediction) + u * D;
#pragma omp simd
      for (int64_t i = first; i < last; ++i) {
        const Real slope = g[i] * (1 - h[i] * h[i]);
        of_encoder[i] += slope;
        of_prediction[i] += slope;
      }
    }
  }
}

}  // namespace BRCTC_ISA
}  // namespace brctc
