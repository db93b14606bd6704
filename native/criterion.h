// The criterion of one utterance. Vanilla CTC and Eq. 10 meet in the middle; Eq. 12 and risks of
// the user's own take group posteriors and two adjoint passes. docs/math.md derives all of it.
#pragma once
#include "emissions.h"

namespace brctc {
inline namespace BRCTC_ISA {

constexpr double ln2 = 0.6931471805599453;
constexpr double infinite = __builtin_inf();

// Two groups whose posteriors differ by less count as equal when the peak tau' is looked for, so
// that rounding never decides between tied frames: the earliest wins.
constexpr double peak_tolerance = 1e-4;

// A chain with its side of the emissions and the occupancies that flow back through it.
template <class Real>
struct Direction {
  using Int = IntOf<Real>;
  Chain<Real> chain;
  const Emissions<Real>* emit;
  bool reversed;
  int64_t T, U, K;
  Int* skip;
  Real* row_m;  // an emission row in the order of the reversed labels
  Int* row_e;
  Real *blank[2], *label[2], *injected;
  int now = 0;

  void take(Arena& arena, int64_t frames, int64_t labels, bool gradient) {
    T = frames, U = labels, K = padded(U);
    chain.take(arena, U, T + 1, gradient);
    skip = arena.take<Int>(K);
    row_m = arena.take<Real>(K);
    row_e = arena.take<Int>(K);
    for (int i = 0; i < 2; ++i) {
      blank[i] = arena.take<Real>(K + lanes);
      label[i] = arena.take<Real>(K + lanes);
    }
    injected = arena.take<Real>(K + lanes);
  }

  void begin(const int64_t* labels, const Emissions<Real>& emissions, bool backwards) {
    emit = &emissions, reversed = backwards;
    for (int64_t u = 0; u < K; ++u) {
      const bool follows = u >= 2 && u <= U;
      const int64_t a = reversed ? U - u : u - 1, b = reversed ? a + 1 : a - 1;
      skip[u] = follows && labels[a] != labels[b] ? 0 : Format<Real>::zero;
    }
    chain.skip = skip;
    chain.begin();
    for (int i = 0; i < 2; ++i)
      for (int64_t u = 0; u < K + lanes; ++u) blank[i][u] = label[i][u] = 0;
    for (int64_t u = 0; u < K + lanes; ++u) injected[u] = 0;
  }

  int64_t frame(int64_t k) const { return reversed ? T - 1 - k : k; }
  int64_t token(int64_t u) const { return reversed ? U + 1 - u : u; }

  // Frame number k as this direction counts.
  void advance(int64_t k) {
    const Real* m = emit->m + frame(k) * K;
    const Int* e = emit->e + frame(k) * K;
    if (reversed) {
      row_m[0] = m[0], row_e[0] = e[0];
      for (int64_t u = 1; u <= U; ++u) row_m[u] = m[U + 1 - u], row_e[u] = e[U + 1 - u];
      for (int64_t u = U + 1; u < K; ++u) row_m[u] = 1, row_e[u] = Format<Real>::zero;
      m = row_m, e = row_e;
    }
    chain.step(m, e, k);
  }

  void retreat(int64_t k) {
    chain.retreat(blank[now], label[now], injected, k, blank[now ^ 1], label[now ^ 1]);
    now ^= 1;
  }

  // The occupancy of this frame: the blanks' sum, then the labels in their own order.
  template <class Out>
  void write(Out* __restrict out) const {
    const Real *b = blank[now], *l = label[now];
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t u = 0; u < K; ++u) sum += b[u];
    out[0] = static_cast<Out>(sum);
    if (reversed)
      for (int64_t u = 1; u <= U; ++u) out[u] = static_cast<Out>(l[U + 1 - u]);
    else
      for (int64_t u = 1; u <= U; ++u) out[u] = static_cast<Out>(l[u]);
  }
};

// Scratch and steps that all forms of the criterion share.
template <class Real, class In>
struct Solver {
  using Int = IntOf<Real>;
  const Utterance<In>& utt;
  const Team& team;
  int64_t T, U, K;
  Emissions<Real> emit;
  Direction<Real> ahead, back;
  int64_t* bad;    // per rank
  double* result;  // what rank 0 tells the others

  Solver(const Utterance<In>& utterance, const Team& members)
      : utt(utterance), team(members), T(utt.T), U(utt.U), K(padded(utt.U)) {}

  void take(Arena& arena, bool gradient) {
    emit.take(arena, T, U);
    ahead.take(arena, T, U, gradient);
    back.take(arena, T, U, gradient);
    bad = arena.take<int64_t>(2);
    result = arena.take<double>(2);
  }

  // False if the scores cannot be read (then `bad_frame` says where) or this format cannot hold
  // them (then it is all_read and the caller takes a wider one).
  bool fill(double extra_range, int64_t& bad_frame) {
    bad[team.rank] = emit.fill(utt, team);
    team.sync();
    bad_frame = bad[0] != all_read || team.size == 1 ? bad[0] : bad[1];
    return bad_frame == all_read && emit.in_range(T, extra_range);
  }

  void begin() {
    if (team.mine(0)) ahead.begin(utt.labels, emit, false);
    if (team.mine(1)) back.begin(utt.labels, emit, true);
  }

  double normaliser() const {
    double sum = 0;
    for (int64_t t = 0; t < T; ++t) sum += emit.log_normaliser[t];
    return sum;
  }

  // An utterance without a path has no gradient.
  void clear(In* occupancy) const {
    if (team.rank == 0) __builtin_memset(occupancy, 0, static_cast<size_t>(T * (U + 1)) * sizeof(In));
  }
};

// All ranks carve the same pieces from the team's scratch. False if there is no memory.
template <class Take>
bool carve(const Team& team, Take take) {
  Arena measure{nullptr};
  take(measure);
  if (team.rank == 0) reserve(*team.scratch, measure.used);
  team.sync();
  Arena arena{team.scratch->data};
  if (arena.base) take(arena);
  return arena.base != nullptr;
}

// ---- vanilla CTC and Eq. 10 ---------------------------------------------------------------

template <class Real, class In>
struct Total : Solver<Real, In> {
  using Base = Solver<Real, In>;
  using Base::ahead, Base::back, Base::emit, Base::team, Base::T, Base::U, Base::K, Base::utt;
  using Int = IntOf<Real>;
  using Base::Base;

  // log of the summed path weight, -inf if there is none. Leaves the occupancies at the meeting
  // frame in both directions.
  double meet() {
    const auto &fb = ahead.chain.blanks(), &fl = ahead.chain.labels();
    const auto &rb = back.chain.blanks(), &rl = back.chain.labels();
    Int top = Format<Real>::zero;
    for (int64_t u = 0; u <= U; ++u) {
      top = larger(top, fb.e[u] + rb.e[U - u]);
      if (u) top = larger(top, fl.e[u] + rl.e[U + 1 - u]);
    }
    if (top < Format<Real>::zero / 2) return -infinite;
    double sum = 0;
    for (int64_t u = 0; u <= U; ++u) {
      const Real b = fb.m[u] * rb.m[U - u] * pow2<Real>(fb.e[u] + rb.e[U - u] - top);
      ahead.blank[0][u] = b;
      sum += b;
      if (!u) continue;
      const Real l = fl.m[u] * rl.m[U + 1 - u] * pow2<Real>(fl.e[u] + rl.e[U + 1 - u] - top);
      ahead.label[0][u] = l;
      sum += l;
    }
    const Real scale = static_cast<Real>(1 / sum);
    for (int64_t u = 0; u <= U; ++u) {
      ahead.blank[0][u] *= scale;
      ahead.label[0][u] *= scale;
      back.blank[0][U - u] = ahead.blank[0][u];
      if (u) back.label[0][U + 1 - u] = ahead.label[0][u];
    }
    return __builtin_log(sum) + static_cast<double>(top) * ln2;
  }

  // Returns false if a wider format is needed.
  bool solve(double risk_factor, double& loss, In* occupancy, int64_t& bad_frame) {
    if (!carve(team, [&](Arena& arena) { Base::take(arena, occupancy != nullptr); }))
      return bad_frame = no_memory, true;
    if (!Base::fill(__builtin_fabs(risk_factor), bad_frame)) return bad_frame != all_read;
    Base::begin();
    // exp(-lambda tau / T) = exp(-lambda) exp(lambda / T)^(T - tau), and T - tau frames are final
    // blanks: multiply their emissions, add lambda to the loss.
    const bool risky = risk_factor != 0 && U > 0;
    if (risky) {
      Real m;
      Int e;
      split_exp<Real>(risk_factor / static_cast<double>(T), m, e);
      if (team.mine(0)) ahead.chain.boosted = U, ahead.chain.boost_m = m, ahead.chain.boost_e = e;
      if (team.mine(1)) back.chain.boosted = 0, back.chain.boost_m = m, back.chain.boost_e = e;
    }
    const int64_t middle = (T + 1) / 2;
    if (team.mine(0))
      for (int64_t k = 0; k < middle; ++k) ahead.advance(k);
    if (team.mine(1)) {
      for (int64_t k = 0; k < T - middle; ++k) back.advance(k);
      back.chain.step_unit(T - middle);
    }
    team.sync();
    if (team.rank == 0) {
      const double log_total = meet();
      Base::result[0] = log_total;
      loss = Base::normaliser() - log_total + (risky ? risk_factor : 0);
    }
    team.sync();
    if (!occupancy) return true;
    if (Base::result[0] == -infinite) {
      Base::clear(occupancy);
      return true;
    }
    if (team.mine(0))
      for (int64_t k = middle - 1; k >= 0; --k) {
        ahead.write(occupancy + k * (U + 1));
        if (k) ahead.retreat(k);
      }
    if (team.mine(1))
      for (int64_t k = T - middle; k > 0; --k) {
        back.retreat(k);
        back.write(occupancy + back.frame(k - 1) * (U + 1));
      }
    return true;
  }
};

// ---- path groups, Eq. 12 and risks of the user's own --------------------------------------

// Groups are kept in the order of `before`, the direction that runs up to and including the
// event; `after` runs over what follows it. For "end" that is ahead and back; "start" is "end"
// on the reversed utterance.
template <class Real, class In>
struct Grouped : Solver<Real, In> {
  using Base = Solver<Real, In>;
  using Base::ahead, Base::back, Base::emit, Base::team, Base::T, Base::U, Base::K, Base::utt;
  using Int = IntOf<Real>;
  Direction<Real>&before, &after;
  Real *group_m, *rest_m;  // T rows of K: P_u(tau), and what follows it
  Int *group_e, *rest_e;
  Real* second;            // the occupancies of `after`, T rows of U + 1
  double log_total = -infinite;
  Int total_e;
  Real total_m;

  Grouped(const Utterance<In>& utterance, const Team& members, Event event)
      : Base(utterance, members),
        before(event == Event::end ? ahead : back),
        after(event == Event::end ? back : ahead) {}

  bool start(bool gradient, double extra_range, int64_t& bad_frame) {
    const bool carved = carve(team, [&](Arena& arena) {
      Base::take(arena, gradient);
      group_m = arena.take<Real>(T * K);
      group_e = arena.take<Int>(T * K);
      rest_m = arena.take<Real>(T * K);
      rest_e = arena.take<Int>(T * K);
      second = arena.take<Real>(gradient ? T * (U + 1) : 0);
    });
    if (!carved) bad_frame = no_memory;
    if (!carved || !Base::fill(extra_range, bad_frame)) return false;
    Base::begin();
    team.sync();
    if (team.mine(0)) run(before, before.chain.label, group_m, group_e, true);
    if (team.mine(1)) run(after, &after.chain.entering, rest_m, rest_e, false);
    team.sync();
    combine();
    team.sync();
    return true;
  }

  // Runs a direction over all frames and keeps one of its rows at each.
  void run(Direction<Real>& d, const Row<Real>* rows, Real* m, Int* e, bool current) {
    for (int64_t k = 0; k < T; ++k) {
      d.advance(k);
      const Row<Real>& row = rows[current ? d.chain.now : 0];
      for (int64_t u = 0; u < K; ++u) m[k * K + u] = row.m[u], e[k * K + u] = row.e[u];
    }
  }

  bool feasible() const { return log_total != -infinite; }
  bool possible(int64_t k, int64_t u) const {
    return group_e[k * K + u] > Format<Real>::zero / 2;
  }

  // P_u(tau): the mass that reaches label u at tau, times what leaves it there.
  void combine() {
    const auto &b = before.chain.blanks(), &l = before.chain.labels();
    total_e = larger(b.e[U], l.e[U]);
    total_m = b.m[U] * pow2<Real>(b.e[U] - total_e) + (U ? l.m[U] * pow2<Real>(l.e[U] - total_e) : 0);
    normalise(total_m, total_e);
    if (total_e >= Format<Real>::zero / 2)
      log_total = __builtin_log(static_cast<double>(total_m)) + static_cast<double>(total_e) * ln2;
    for (int64_t k = team.rank; k < T; k += team.size) {
      Real* __restrict m = group_m + k * K;
      Int* __restrict e = group_e + k * K;
      const Real* __restrict rm = rest_m + (T - 1 - k) * K;
      const Int* __restrict re = rest_e + (T - 1 - k) * K;
      for (int64_t u = 1; u <= U; ++u) {
        Real mm = m[u] * rm[U + 1 - u];
        Int ee = e[u] + re[U + 1 - u];
        normalise(mm, ee);
        m[u] = mm;
        e[u] = ee;
      }
      m[0] = 1, e[0] = 2 * Format<Real>::zero;
      for (int64_t u = U + 1; u < K; ++u) m[u] = 1, e[u] = 2 * Format<Real>::zero;
    }
  }

  // From sources G(u, tau), standing in group_m, to occupancies: mass at label u and the states
  // before it at tau, and at the states after it from the next frame on.
  void adjoint(In* occupancy) {
    if (team.mine(0))
      for (int64_t k = T - 1; k >= 0; --k) {
        Real* __restrict label = before.label[before.now];
        const Real* __restrict source = group_m + k * K;
        for (int64_t u = 0; u < K; ++u) label[u] += source[u];
        before.write(occupancy + before.frame(k) * (U + 1));
        if (k) before.retreat(k);
      }
    if (team.mine(1))
      for (int64_t k = T - 1; k >= 0; --k) {
        after.write(second + after.frame(k) * (U + 1));
        const Real* source = group_m + (T - 1 - k) * K;
        for (int64_t u = 1; u <= U; ++u) after.injected[u] = source[U + 1 - u];
        if (k) after.retreat(k);
      }
    team.sync();
    const int64_t size = T * (U + 1);
    const int64_t part = (size + team.size - 1) / team.size, from = team.rank * part;
    const int64_t to = from + part < size ? from + part : size;
    for (int64_t i = from; i < to; ++i)
      occupancy[i] = static_cast<In>(static_cast<Real>(occupancy[i]) + second[i]);
  }

  // Eq. 12: r_u(tau) = exp(-lambda (tau - tau'_u) / T), every token weighing 1/U. Replaces the
  // groups by their sources and returns the loss. One rank does it: it is a small part.
  double weigh(double risk_factor) {
    const double slope = risk_factor / static_cast<double>(T);
    Real* __restrict top_m = before.row_m;  // free by now
    Int* __restrict top_e = before.row_e;
    Int* __restrict weighted_e = after.row_e;
    Real* __restrict sum = after.row_m;
    Real* __restrict peak = after.injected;
    for (int64_t u = 0; u < K; ++u)
      top_e[u] = weighted_e[u] = 4 * (Format<Real>::zero / 2), sum[u] = top_m[u] = 0, peak[u] = 0;
    for (int64_t k = 0; k < T; ++k) {
      Real risk_m;
      Int risk_e;
      split_exp<Real>(-slope * static_cast<double>(k + 1), risk_m, risk_e);
      const Int* __restrict e = group_e + k * K;
      for (int64_t u = 0; u < K; ++u) {
        top_e[u] = larger(top_e[u], e[u]);
        weighted_e[u] = larger(weighted_e[u], e[u] + risk_e);
      }
    }
    for (int64_t k = 0; k < T; ++k) {
      Real risk_m;
      Int risk_e;
      split_exp<Real>(-slope * static_cast<double>(k + 1), risk_m, risk_e);
      Real* __restrict m = group_m + k * K;
      const Int* __restrict e = group_e + k * K;
      for (int64_t u = 0; u < K; ++u) {
        top_m[u] = larger(top_m[u], m[u] * pow2<Real>(e[u] - top_e[u]));
        sum[u] += m[u] * risk_m * pow2<Real>(e[u] + risk_e - weighted_e[u]);
      }
    }
    double log_objective = 0;
    for (int64_t u = 1; u <= U; ++u)
      log_objective += __builtin_log(static_cast<double>(sum[u])) +
                       static_cast<double>(weighted_e[u]) * ln2;
    const Real share = static_cast<Real>(1 / static_cast<double>(U));
    constexpr Real tied = static_cast<Real>(1 - peak_tolerance);
    for (int64_t u = 0; u < K; ++u) sum[u] = u >= 1 && u <= U ? share / sum[u] : 0;
    for (int64_t k = T - 1; k >= 0; --k) {
      Real risk_m;
      Int risk_e;
      split_exp<Real>(-slope * static_cast<double>(k + 1), risk_m, risk_e);
      Real* __restrict m = group_m + k * K;
      const Int* __restrict e = group_e + k * K;
      const Real tau = static_cast<Real>(k + 1);
      for (int64_t u = 0; u < K; ++u) {
        const bool highest = m[u] * pow2<Real>(e[u] - top_e[u]) >= top_m[u] * tied;
        peak[u] = highest ? tau : peak[u];
        m[u] = m[u] * risk_m * pow2<Real>(e[u] + risk_e - weighted_e[u]) * sum[u];
      }
    }
    for (int64_t u = 1; u <= U; ++u) log_objective += slope * static_cast<double>(peak[u]);
    for (int64_t u = 0; u < K + lanes; ++u) peak[u] = 0;
    return Base::normaliser() - log_objective / static_cast<double>(U);
  }
};

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

// ---- entry points: float first, double where float's exponents would not hold the paths ------

template <class In>
void run_loss(const Batch& batch, int64_t n, Risk risk, double risk_factor, const Forward& out,
              BadFrame bad, const Team& team) {
  const Utterance<In> utt(batch, n, &out);
  In* occupancy =
      out.occupancy ? static_cast<In*>(out.occupancy) + block_offset(batch, n) : nullptr;
  double loss = infinite;
  int64_t bad_frame = all_read;
  const bool each = risk == Risk::early_emission && utt.U > 0;
  auto attempt = [&](auto width) {
    using Real = decltype(width);
    if (!each) {
      Total<Real, In> total(utt, team);
      return total.solve(risk == Risk::none ? 0 : risk_factor, loss, occupancy, bad_frame);
    }
    Grouped<Real, In> grouped(utt, team, Event::end);
    if (!grouped.start(occupancy != nullptr, __builtin_fabs(risk_factor), bad_frame))
      return bad_frame != all_read;
    if (!grouped.feasible()) {
      if (occupancy) grouped.clear(occupancy);
      return true;
    }
    if (team.rank == 0) loss = grouped.weigh(risk_factor);
    team.sync();
    if (occupancy) grouped.adjoint(occupancy);
    return true;
  };
  if (!attempt(In{})) {
    team.sync();
    attempt(double{});
  }
  team.sync();
  if (team.rank != 0) return;
  out.loss[n] = loss;
  bad[n] = bad_frame;
  if (loss == infinite && out.row_scale)
    for (int64_t t = 0; t < utt.T; ++t) utt.row_scale[t] = 0;
}

// Starts the groups in the first format that holds them and hands them to `use`.
template <class In, class Use>
void with_groups(const Utterance<In>& utt, Event event, bool gradient, int64_t& bad_frame,
                 const Team& team, Use use) {
  auto attempt = [&](auto width) {
    Grouped<decltype(width), In> grouped(utt, team, event);
    if (!grouped.start(gradient, 0, bad_frame)) return bad_frame != all_read;
    use(grouped);
    return true;
  };
  if (attempt(In{})) return;
  team.sync();
  attempt(double{});
}

template <class In>
void run_groups(const Batch& batch, int64_t n, const Groups& out, BadFrame bad, const Team& team) {
  const Utterance<In> utt(batch, n, nullptr);
  int64_t bad_frame = all_read;
  In* shares = static_cast<In*>(out.log_share) + n * batch.T * out.U_max;
  constexpr In impossible = static_cast<In>(-infinite);
  for (int64_t t = team.rank; t < batch.T; t += team.size)
    for (int64_t u = t < utt.T ? utt.U : 0; u < out.U_max; ++u) shares[t * out.U_max + u] = impossible;
  with_groups(utt, out.event, false, bad_frame, team, [&]<class Real>(Grouped<Real, In>& grouped) {
    if (team.rank == 0) out.log_likelihood[n] = grouped.log_total - grouped.normaliser();
    const double log_total_m = __builtin_log(static_cast<double>(grouped.total_m));
    for (int64_t k = team.rank; k < utt.T; k += team.size) {
      const Real* m = grouped.group_m + k * grouped.K;
      const IntOf<Real>* e = grouped.group_e + k * grouped.K;
      In* row = shares + grouped.before.frame(k) * out.U_max;
      for (int64_t u = 1; u <= utt.U; ++u) {
        const double value = static_cast<double>(log_mantissa(m[u])) - log_total_m +
                             static_cast<double>(e[u] - grouped.total_e) * ln2;
        const bool there = grouped.feasible() && grouped.possible(k, u);
        row[grouped.before.token(u) - 1] = there ? static_cast<In>(value) : impossible;
      }
    }
  });
  team.sync();
  if (team.rank == 0) bad[n] = bad_frame;
}

template <class In>
void run_groups_backward(const Batch& batch, int64_t n, const Groups& grad, const Forward& out,
                         BadFrame bad, const Team& team) {
  const Utterance<In> utt(batch, n, &out);
  int64_t bad_frame = all_read;
  In* occupancy = static_cast<In*>(out.occupancy) + block_offset(batch, n);
  const In* grad_share = static_cast<const In*>(grad.log_share) + n * batch.T * grad.U_max;
  double mass = grad.log_likelihood[n];
  with_groups(utt, grad.event, true, bad_frame, team, [&]<class Real>(Grouped<Real, In>& grouped) {
    if (!grouped.feasible()) {
      mass = 0;
      grouped.clear(occupancy);
      return;
    }
    if (utt.U == 0) {  // no groups: every frame is blank
      for (int64_t t = team.rank; t < utt.T; t += team.size) occupancy[t] = static_cast<In>(mass);
      return;
    }
    // d log_share = (paths of the group) - (all paths), d log_likelihood = all paths. What is
    // left for "all paths" is spread over the groups of one token, which hold every path once.
    double rest = mass;
    auto given = [&](int64_t k, int64_t u) {
      const In* row = grad_share + grouped.before.frame(k) * grad.U_max;
      return grouped.possible(k, u) ? static_cast<Real>(row[grouped.before.token(u) - 1]) : Real{0};
    };
    for (int64_t k = 0; k < utt.T; ++k)
      for (int64_t u = 1; u <= utt.U; ++u) rest -= static_cast<double>(given(k, u));
    team.sync();
    for (int64_t k = team.rank; k < utt.T; k += team.size) {
      Real* m = grouped.group_m + k * grouped.K;
      // rounding can leave a group a hair above the total, hence the factor of two
      const Real share = 2 * m[utt.U] / grouped.total_m *
                         pow2<Real>(grouped.group_e[k * grouped.K + utt.U] - grouped.total_e - 1);
      for (int64_t u = 1; u <= utt.U; ++u) m[u] = given(k, u);
      m[utt.U] += static_cast<Real>(rest) * share;
      m[0] = 0;
      for (int64_t u = utt.U + 1; u < grouped.K; ++u) m[u] = 0;
    }
    team.sync();
    grouped.adjoint(occupancy);
  });
  team.sync();
  if (team.rank != 0) return;
  bad[n] = bad_frame;
  if (out.row_scale)
    for (int64_t t = 0; t < utt.T; ++t) utt.row_scale[t] *= static_cast<In>(mass);
}

}  // namespace BRCTC_ISA
}  // namespace brctc
