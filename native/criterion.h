// The criterion of one utterance, as kernels.h declares it; docs/math.md derives all of it. Each form
// is tried in the format of the scores, and in double where float's exponents would not hold the
// paths.
#pragma once
#include "emission_loss.h"
#include "groups.h"
#include "path_sum.h"

namespace brctc {
inline namespace BRCTC_ISA {

// The loss of a closed form, and weight * d loss / d scores.
template <class In>
void run_loss(const Batch& batch, int64_t n, Risk risk, double factor, double* losses,
              const Gradient& gradient, BadFrame bad, const Team& team) {
  const Utterance<In> utt(batch, n, &gradient);
  double loss = infinite;
  if (utt.T == 0) {  // one path, without frames, and only if there are no labels
    if (team.rank != 0) return;
    utt.clear(0);
    losses[n] = utt.U ? infinite : 0;
    return;
  }
  int64_t bad_frame = all_read;
  const bool each = risk == Risk::early_emission && utt.U > 0;
  auto attempt = [&](auto width) {
    using Real = decltype(width);
    if (!each) {
      PathSum<Real, In> sum(utt, team);
      return sum.solve(risk, factor, loss, bad_frame);
    }
    EmissionLoss<Real, In> emission(utt, team, Event::end);
    if (!emission.solve(factor, bad_frame)) return bad_frame != all_read;
    if (!emission.feasible()) {
      emission.clear();
      return true;
    }
    if (team.rank == 0) loss = emission.loss();
    if (utt.gradient) emission.gradient();
    return true;
  };
  if (!attempt(In{})) {
    team.barrier();
    if (!attempt(double{})) bad_frame = out_of_range;
  }
  team.barrier();
  if (team.rank != 0) return;
  utt.clear(utt.T);
  losses[n] = loss;
  bad[n] = bad_frame;
}

// log m for m in [1, 2), by the series of atanh around the middle of the interval.
template <class Real>
static inline Real log_mantissa(Real m) {
  constexpr Real half = static_cast<Real>(1.4142135623730951);
  const Real s = (m - half) / (m + half), z = s * s;
  Real p = 0;
  constexpr int terms = sizeof(Real) == 4 ? 5 : 11;
  for (int i = terms; i >= 0; --i) p = p * z + Real{1} / static_cast<Real>(2 * i + 1);
  return 2 * s * p + static_cast<Real>(0.34657359027997264);
}

// Visits (frames x tokens) tile by tile, for arrays that are transposed to each other.
template <class Visit>
static void for_each_tile(int64_t T, int64_t U, Visit visit) {
  constexpr int64_t tile = 16;
  for (int64_t first = 0; first < T; first += tile)
    for (int64_t u = 1; u <= U; ++u) visit(first, first + tile < T ? first + tile : T, u);
}

// Starts the groups in the first format that holds them and hands them to `use`.
template <class In, class Use>
void with_groups(const Utterance<In>& utt, Event event, int64_t& bad_frame, const Team& team,
                 Use use) {
  auto attempt = [&](auto width) {
    Posteriors<decltype(width), In> groups(utt, team, event);
    if (!groups.solve(bad_frame)) return bad_frame != all_read;
    use(groups);
    return true;
  };
  if (attempt(In{})) return;
  team.barrier();
  if (!attempt(double{})) bad_frame = out_of_range;
}

// log_share(u, tau) = log P_u(tau) - log P, from mantissas and exponents, and log_likelihood = log P.
template <class In>
void run_groups(const Batch& batch, int64_t n, const Groups& out, BadFrame bad, const Team& team) {
  const Utterance<In> utt(batch, n, nullptr);
  int64_t bad_frame = all_read;
  In* shares = static_cast<In*>(out.log_share) + n * out.U_max * batch.T;
  constexpr In impossible = static_cast<In>(-infinite);
  if (team.rank == 0)
    for (int64_t u = 0; u < out.U_max; ++u)
      for (int64_t t = u < utt.U ? utt.T : 0; t < batch.T; ++t) shares[u * batch.T + t] = impossible;
  if (utt.T == 0) {
    if (team.rank == 0) out.log_likelihood[n] = utt.U ? -infinite : 0;
    return;
  }
  with_groups(utt, out.event, bad_frame, team, [&]<class Real>(Posteriors<Real, In>& groups) {
    if (team.rank != 0) return;
    out.log_likelihood[n] = groups.log_total - groups.normaliser();
    const double log_total_m = __builtin_log(static_cast<double>(groups.total_m));
    constexpr IntOf<Real> limit = Format<Real>::zero / 2;
    for_each_tile(utt.T, utt.U, [&](int64_t first, int64_t end, int64_t u) {
      In* row = shares + (groups.before.token(u) - 1) * batch.T;
      for (int64_t k = first; k < end; ++k) {
        const int64_t at = k * groups.K + u;
        const double value = static_cast<double>(log_mantissa(groups.group_m[at])) - log_total_m +
                             static_cast<double>(groups.group_e[at] - groups.total_e) * ln2;
        const bool there = groups.feasible() && groups.group_e[at] > limit;
        row[groups.before.frame(k)] = there ? static_cast<In>(value) : impossible;
      }
    });
  });
  team.barrier();
  if (team.rank == 0) bad[n] = bad_frame;
}

// From the gradients of log_share, in the groups' place, to sources:
//   d log_share(u, tau) = (paths of the group) - (all paths),   d log_likelihood = all paths.
// What is left for "all paths" is spread over the groups of the last token, which hold every path once.
template <class Real, class In>
void write_sources(Posteriors<Real, In>& groups, const In* grad_share, int64_t stride, double mass) {
  const int64_t T = groups.T, U = groups.U, K = groups.K;
  Real* share = groups.rest_m;
  for (int64_t k = 0; k < T; ++k) {
    // rounding can leave a group a hair above the total, hence the factor of two
    const int64_t at = k * K + U;
    share[k] = 2 * groups.group_m[at] / groups.total_m * pow2<Real>(groups.group_e[at] - groups.total_e - 1);
  }
  double rest = mass;
  for_each_tile(T, U, [&](int64_t first, int64_t end, int64_t u) {
    const In* row = grad_share + (groups.before.token(u) - 1) * stride;
    double sum = 0;  // of its own: one chain of additions over all tiles would set the pace
    for (int64_t k = first; k < end; ++k) {
      const In given = row[groups.before.frame(k)];
      const bool there = groups.group_e[k * K + u] > Format<Real>::zero / 2;
      groups.group_m[k * K + u] = there ? static_cast<Real>(given) : 0;
      sum += there ? static_cast<double>(given) : 0.0;
    }
    rest -= sum;
  });
  for (int64_t k = 0; k < T; ++k) {
    groups.group_m[k * K + U] += static_cast<Real>(rest) * share[k];
    groups.group_m[k * K] = 0;
    for (int64_t u = U + 1; u < K; ++u) groups.group_m[k * K + u] = 0;
  }
}

// weight * d (sum over groups of grad * log_share, + grad * log_likelihood) / d scores.
template <class In>
void run_groups_backward(const Batch& batch, int64_t n, const Groups& grad, const Gradient& out,
                         BadFrame bad, const Team& team) {
  Utterance<In> utt(batch, n, &out);
  int64_t bad_frame = all_read;
  const In* grad_share = static_cast<const In*>(grad.log_share) + n * grad.U_max * batch.T;
  const double mass = grad.log_likelihood[n];
  utt.mass = static_cast<In>(mass);
  if (utt.T == 0) {
    if (team.rank == 0) utt.clear(0);
    return;
  }
  with_groups(utt, grad.event, bad_frame, team, [&]<class Real>(Posteriors<Real, In>& groups) {
    const int64_t K = groups.K;
    if (!groups.feasible()) return groups.clear();
    if (utt.U == 0) {  // no groups: every frame is blank
      for (int64_t t = team.rank; t < utt.T; t += team.size) {
        In all = utt.mass;
        groups.emit.finish_gradient(utt, t, &all);
      }
      return;
    }
    if (team.rank == 0) write_sources(groups, grad_share, batch.T, mass);
    team.barrier();
    groups.adjoint([&](int64_t k, Real* __restrict row) {
      const Real* __restrict source = groups.group_m + k * K;
      for (int64_t u = 0; u < K; ++u) row[u] = source[u];
    });
  });
  team.barrier();
  if (team.rank != 0) return;
  utt.clear(utt.T);
  bad[n] = bad_frame;
}

}  // namespace BRCTC_ISA
}  // namespace brctc
