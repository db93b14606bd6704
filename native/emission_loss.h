// The loss of Eq. 11-12, every token early: a weighed sum of path groups, token by token.
#pragma once
#include "groups.h"

namespace brctc {
inline namespace BRCTC_ISA {

// Two groups whose posteriors differ by less count as equal when the peak tau' is looked for, so
// that rounding never decides between tied frames: the earliest wins.
constexpr double peak_tolerance = 1e-4;

// r_u(tau) = exp(-lambda (tau - tau'_u) / T), tau and tau' from 1, tau' the frame of the token's largest group:
//   loss = -log P - 1/U sum_u log sum_tau share_u(tau) r_u(tau)
// and the sources of its gradient are G(u, tau) = 1/U share_u(tau) r_u(tau) / (the sum over tau).
template <class Real, class In>
struct EmissionLoss : Grouped<Real, In> {
  using Base = Grouped<Real, In>;
  using Base::Base, Base::before, Base::group_e, Base::group_m, Base::K, Base::T, Base::team, Base::U;
  using Base::total_e, Base::total_m;
  using Int = IntOf<Real>;
  using typename Base::Tokens;
  static constexpr Real tied = static_cast<Real>(1 - peak_tolerance);
  double factor, slope;
  Real *sum, *peak, *peak_frame;  // per token: of the weighed shares; of the shares

  // A group's share of all paths, times exp(lambda/2 - lambda tau / T), is a plain number: what is
  // too small for it is nothing beside the token's sum, which is at least exp(-|lambda|/2).
  static constexpr double largest_factor = sizeof(Real) == 4 ? 120 : 1300;

  double log_weight(int64_t k) const {
    return factor / 2 - slope * static_cast<double>(before.frame(k) + 1);
  }

  bool solve(double lambda, int64_t& bad_frame) {
    factor = lambda, slope = lambda / static_cast<double>(T);
    const bool carved = carve(team, [&](Arena& arena) {
      Base::take(arena);
      sum = arena.take<Real>(K);
      peak = arena.take<Real>(K);
      peak_frame = arena.take<Real>(K);
    });
    if (!carved) bad_frame = no_memory;
    const bool representable = __builtin_fabs(lambda) <= largest_factor;
    if (!carved) return false;
    if (!Base::fill(0, bad_frame) || !representable) return false;
    if (team.rank == 0)
      for (int64_t u = 0; u < K; ++u) sum[u] = peak[u] = peak_frame[u] = 0;
    Base::run([&](int64_t k, Tokens tokens, const Real* __restrict rest_m, const Int* __restrict rest_e) {
      Real* __restrict m = group_m + k * K;
      const Int* __restrict e = group_e + k * K;
      Real* __restrict total = sum;
      Real* __restrict highest = peak;
      Real* __restrict found = peak_frame;
      const double log_w = log_weight(k);
      Real weight_m;
      Int weight_e;
      split_exp<Real>(log_w, weight_m, weight_e);
      weight_m /= total_m;
      const Real unweigh = static_cast<Real>(__builtin_exp(-log_w));
      const Int offset = weight_e - total_e;
      const Real tau = static_cast<Real>(k + 1);
      const int64_t last = U;
#pragma omp simd
      for (int64_t u = tokens.first; u < tokens.end; ++u) {
        const Real weighed = m[u] * rest_m[last + 1 - u] * weight_m *
                             pow2<Real>(e[u] + rest_e[last + 1 - u] + offset);
        m[u] = weighed;
        total[u] += weighed;
        // frames come last to first: who ties with the highest so far is earlier than it
        const Real share = weighed * unweigh, most = larger(highest[u], share);
        highest[u] = most;
        found[u] = share >= most * tied ? tau : found[u];
      }
      if (team.rank != 0) return;
      m[0] = 0;
      for (int64_t u = last + 1; u < K; ++u) m[u] = 0;
    });
    return true;
  }

  double loss() const {
    double log_objective = 0;
    for (int64_t u = 1; u <= U; ++u)
      log_objective += __builtin_log(static_cast<double>(sum[u])) - factor / 2 +
                       slope * static_cast<double>(peak_frame[u]);
    return Base::normaliser() - Base::log_total - log_objective / static_cast<double>(U);
  }

  // The sources do not depend on tau': it scales a token's objective by a constant.
  void gradient() {
    if (team.rank == 0)
      for (int64_t u = 0; u < K; ++u) sum[u] = u >= 1 && u <= U ? 1 / (static_cast<Real>(U) * sum[u]) : 0;
    team.barrier();
    Base::adjoint([&](int64_t k, Real* __restrict row) {
      const Real* __restrict m = group_m + k * K;
      const Real* __restrict scale = sum;
      const int64_t count = K;
#pragma omp simd
      for (int64_t u = 0; u < count; ++u) row[u] = m[u] * scale[u];
    });
  }
};

}  // namespace BRCTC_ISA
}  // namespace brctc
