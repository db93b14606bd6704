// Groups weighed by a custom risk r, and the loss of an utterance that they add up to:
//   loss = -sum_u w_u (log P + log sum_tau share_u(tau) r_u(tau)),   share_u(tau) = P_u(tau) / P,   w_u = 1/U or given
#pragma once
#include "kernels.h"
#include "numbers.h"

namespace brctc {
inline namespace BRCTC_ISA {

// log sum exp(share + risk) over T groups; -inf if no group holds a path, NaN if the risk of one that
// does is NaN or +inf. Leaves `weight` times each group's part of the sum in `out`. `risk_stride` is 0 or 1.
template <class In>
static double weigh_row(const In* __restrict share, const In* __restrict risk, int64_t risk_stride,
                        int64_t T, double weight, In* __restrict out) {
  constexpr In infinite = static_cast<In>(__builtin_inf());
  // what is smaller is nothing beside the largest, and numbers that underflow further on are slow
  constexpr In negligible = sizeof(In) == 4 ? -50 : -300;
  In highest = -infinite;
  int wrong = 0;
  const bool constant = risk_stride == 0;
  const In first = risk[0];
#pragma omp simd reduction(max : highest) reduction(| : wrong)
  for (int64_t t = 0; t < T; ++t) {
    const In r = constant ? first : risk[t];
    const bool there = share[t] > -infinite;
    const In weighed = there ? share[t] + r : -infinite;
    wrong |= there & !(r < infinite);
    out[t] = weighed;
    highest = weighed > highest ? weighed : highest;
  }
  if (wrong) return __builtin_nan("");
  if (highest == -infinite) return -static_cast<double>(infinite);
  const Clamp<In> clamp;
  double sum = 0;
  constexpr int64_t block = 256;  // few enough for a plain float to add up
  for (int64_t begin = 0; begin < T; begin += block) {
    const int64_t end = begin + block < T ? begin + block : T;
    In some = 0;
#pragma omp simd reduction(+ : some)
    for (int64_t t = begin; t < end; ++t) {
      const In d = out[t] - highest;
      const In e = exp_dense(d, clamp);
      some += out[t] = d > negligible ? e : 0;
    }
    sum += static_cast<double>(some);
  }
  const In scale = static_cast<In>(weight / sum);
#pragma omp simd
  for (int64_t t = 0; t < T; ++t) out[t] *= scale;
  return static_cast<double>(highest) + __builtin_log(sum);
}

// Which of T groups is the largest, counted from 1; the first of those that differ by less than `tolerance`.
template <class In>
static int64_t peak_of(const In* __restrict share, int64_t T, double tolerance) {
  In highest = static_cast<In>(-__builtin_inf());
#pragma omp simd reduction(max : highest)
  for (int64_t t = 0; t < T; ++t) highest = share[t] > highest ? share[t] : highest;
  const In least = highest - static_cast<In>(tolerance);
  for (int64_t t = 0; t < T; ++t)
    if (share[t] >= least) return t + 1;
  return 1;
}

template <class In>
void run_peaks(const void* log_share, int64_t rows, int64_t T, double tolerance, int64_t* out) {
  for (int64_t i = 0; i < rows; ++i) out[i] = peak_of(static_cast<const In*>(log_share) + i * T, T, tolerance);
}

// The sum is over the tokens that there are, or it is the last one's value; without any it is plain CTC.
// An utterance that is impossible, or that the risk forbids, has an infinite loss and no gradient. One whose
// likelihood is NaN could not be read: its gradient, for whoever makes it, is that of its likelihood.
template <class In>
void run_weigh(const Weighing& w, int64_t n) {
  const int64_t end = w.tokens[n], first = w.last_only && end ? end - 1 : 0;
  const double count = static_cast<double>(end - first);
  const In* share = static_cast<const In*>(w.log_share) + n * w.U * w.T;
  const In* risk = static_cast<const In*>(w.log_risk) + n * w.stride_n;
  In* grad = static_cast<In*>(w.grad_share) + n * w.U * w.T;
  const double likelihood = static_cast<double>(static_cast<const In*>(w.log_likelihood)[n]);
  const double* given = w.token_weight && !w.last_only ? w.token_weight + n * w.U : nullptr;
  const auto clear = [&](int64_t from, int64_t to) {
    __builtin_memset(grad + from * w.T, 0, static_cast<size_t>((to - from) * w.T) * sizeof(In));
  };
  double sum = 0, all = 0;
  for (int64_t u = first; u < end; ++u) {
    const double own = given ? given[u] : 1;
    all += own;
    if (own == 0) {  // even if nothing is possible for this one
      clear(u, u + 1);
      continue;
    }
    sum += own * weigh_row(share + u * w.T, risk + u * w.stride_u, w.stride_t, w.T,
                           -w.weight[n] * own / (given ? 1 : count), grad + u * w.T);
  }
  if (!given || !end) sum /= end ? count : 1, all = 1;
  const double loss = likelihood == -__builtin_inf() ? __builtin_inf() : -(all * likelihood + sum);
  const bool learns = loss < __builtin_inf();  // not with NaN either
  clear(0, learns ? first : w.U);
  if (learns) clear(end, w.U);
  w.grad_likelihood[n] = learns || likelihood != likelihood ? -w.weight[n] * all : 0;
  w.loss[n] = loss;
}

}  // namespace BRCTC_ISA
}  // namespace brctc
