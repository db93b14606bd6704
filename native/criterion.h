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

  Real* saved_m;  // the chain's state at the start of each block
  Int* saved_e;

  int64_t block;  // frames whose shares are kept at a time; 0 if there is no going back

  Direction(const Emissions<Real>& emissions, bool backwards) : emit(&emissions), reversed(backwards) {}

  // `steps` frames of the T will be run over.
  void take(Arena& arena, int64_t frames, int64_t labels, int64_t steps, bool gradient) {
    T = frames, U = labels, K = padded(U);
    const int64_t bytes = steps * 6 * (K + lanes) * static_cast<int64_t>(sizeof(Real));
    block = !gradient ? 0 : bytes <= most_share_bytes ? steps : short_block;
    chain.take(arena, U, gradient ? block + 1 : 0);
    skip = arena.take<Int>(K);
    row_m = arena.take<Real>(K);
    row_e = arena.take<Int>(K);
    for (int i = 0; i < 2; ++i) {
      blank[i] = arena.take<Real>(K + lanes);
      label[i] = arena.take<Real>(K + lanes);
    }
    injected = arena.take<Real>(K + lanes);
    const int64_t saves = replays(steps) ? (steps + block - 1) / block : 0;
    saved_m = arena.take<Real>(saves * chain.state_size(K));
    saved_e = arena.take<Int>(saves * chain.state_size(K));
  }

  int64_t unit_row() const { return block ? block : -1; }
  bool replays(int64_t steps) const { return block != 0 && block < steps; }

  void begin(const int64_t* labels) {
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
  void advance(int64_t k, int64_t share_row) {
    const Real* m = emit->mantissas(frame(k));
    const Int* e = emit->exponents(frame(k));
    if (reversed) {
      reverse(m, row_m);
      if (e) reverse(e, row_e);
      m = row_m, e = e ? row_e : nullptr;
    }
    chain.step(m, e, share_row);
  }

  template <class T>
  void reverse(const T* __restrict from, T* __restrict to) const {
    const int64_t last = U;
    to[0] = from[0];
#pragma omp simd
    for (int64_t u = 1; u <= last; ++u) to[u] = from[last + 1 - u];
    for (int64_t u = last + 1; u < K; ++u) to[u] = from[u];
  }

  // Advances over frames 0 .. count-1 and calls visit(k) after each.
  template <class Visit>
  void sweep(int64_t count, Visit visit) {
    const bool keeps = block != 0 && !replays(count);
    for (int64_t k = 0; k < count; ++k) {
      if (replays(count) && k % block == 0) {
        const int64_t at = k / block * chain.state_size(K);
        chain.save(saved_m + at, saved_e + at);
      }
      advance(k, keeps ? k : -1);
      visit(k);
    }
  }

  // Goes back over them: visit(k) finds the occupancies of frame k, and may add to them.
  template <class Visit>
  void sweep_back(int64_t count, Visit visit) {
    for (int64_t first = (count - 1) / block * block; first >= 0; first -= block) {
      const int64_t end = first + block < count ? first + block : count;
      if (replays(count)) {
        const int64_t at = first / block * chain.state_size(K);
        chain.restore(saved_m + at, saved_e + at);
        for (int64_t k = first; k < end; ++k) advance(k, k - first);
      }
      for (int64_t k = end - 1; k >= first; --k) {
        visit(k);
        if (k) retreat(k - first);
      }
    }
  }

  void retreat(int64_t share_row) {
    chain.retreat(blank[now], label[now], injected, share_row, blank[now ^ 1], label[now ^ 1]);
    now ^= 1;
  }

  // The occupancy of this frame: the blanks' sum, then the labels in their own order.
  template <class Out>
  void write(Out* __restrict out) const {
    each([=](int64_t u, Real value) { out[u] = static_cast<Out>(value); });
  }

  template <class Out>
  void add(Out* __restrict out) const {
    each([=](int64_t u, Real value) { out[u] = static_cast<Out>(static_cast<Real>(out[u]) + value); });
  }

  template <class Put>
  void each(Put put) const {
    const Real* __restrict b = blank[now];
    const Real* __restrict l = label[now];
    const int64_t count = K, last = U;
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t u = 0; u < count; ++u) sum += b[u];
    put(0, sum);
    if (reversed) {
#pragma omp simd
      for (int64_t u = 1; u <= last; ++u) put(u, l[last + 1 - u]);
    } else {
#pragma omp simd
      for (int64_t u = 1; u <= last; ++u) put(u, l[u]);
    }
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
  // Every rank has its own copy of these; what they point to is shared. The rank that runs a
  // direction owns it, and the others follow with chain.follow().
  Direction<Real> ahead{emit, false}, back{emit, true};
  int64_t* bad;    // per rank
  double* result;  // what rank 0 tells the others

  Solver(const Utterance<In>& utterance, const Team& members)
      : utt(utterance), team(members), T(utt.T), U(utt.U), K(padded(utt.U)) {}

  // Each direction will run over `steps` frames at most.
  void take(Arena& arena, int64_t steps, bool gradient) {
    emit.take(arena, T, U);
    ahead.take(arena, T, U, steps, gradient);
    back.take(arena, T, U, steps, gradient);
    bad = arena.take<int64_t>(2);
    result = arena.take<double>(2);
  }

  void fill() { bad[team.rank] = emit.fill(utt, team); }

  // After fill() and sync(): false if the scores cannot be read (then `bad_frame` says where) or
  // this format cannot hold them (then it is all_read and the caller takes a wider one).
  bool readable(double extra_range, int64_t& bad_frame) const {
    bad_frame = bad[0] != all_read || team.size == 1 ? bad[0] : bad[1];
    return bad_frame == all_read && emit.in_range(T, extra_range);
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
  team.after_first();
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
    const int64_t middle = (T + 1) / 2;
    if (!carve(team, [&](Arena& arena) { Base::take(arena, middle, occupancy != nullptr); }))
      return bad_frame = no_memory, true;
    // each direction needs just the frames that its thread fills: no need to meet before the middle
    Base::fill();
    if (team.mine(0)) ahead.begin(utt.labels);
    if (team.mine(1)) back.begin(utt.labels);
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
    const auto nothing = [](int64_t) {};
    if (team.mine(0)) ahead.sweep(middle, nothing);
    if (team.mine(1)) {
      back.sweep(T - middle, nothing);
      back.chain.step_unit(back.unit_row());
    }
    team.sync();
    ahead.chain.follow(middle);
    back.chain.follow(T - middle + 1);
    if (!Base::readable(__builtin_fabs(risk_factor), bad_frame)) return bad_frame != all_read;
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
      ahead.sweep_back(middle, [&](int64_t k) { ahead.write(occupancy + k * (U + 1)); });
    if (team.mine(1)) {
      back.retreat(back.unit_row());
      back.sweep_back(T - middle,
                      [&](int64_t k) { back.write(occupancy + back.frame(k) * (U + 1)); });
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
  Real *group_m, *rest_m;  // T rows of K: P_u(tau); what follows it, if two threads find them
  Int *group_e, *rest_e;
  Real* second;            // the occupancies of `after`, if two threads find them
  Real* source[2];         // per direction: a row of sources
  double log_total = -infinite;
  Int total_e;
  Real total_m;

  Grouped(const Utterance<In>& utterance, const Team& members, Event event)
      : Base(utterance, members),
        before(event == Event::end ? ahead : back),
        after(event == Event::end ? back : ahead) {}

  void take(Arena& arena, bool gradient) {
    const bool paired = team.size > 1;
    Base::take(arena, T, gradient);
    group_m = arena.take<Real>(T * K);
    group_e = arena.take<Int>(T * K);
    rest_m = arena.take<Real>(paired ? T * K : T);
    rest_e = arena.take<Int>(paired ? T * K : 0);
    second = arena.take<Real>(paired && gradient ? T * (U + 1) : 0);
    for (auto& row : source) row = arena.take<Real>(K);
  }

  // Runs both directions. `combine(k, rest_m, rest_e)` joins row k of what reaches each label,
  // in group_m and group_e, with what leaves it there; it comes in the order of `after`.
  template <class Combine>
  void run(Combine combine) {
    const bool paired = team.size > 1;
    if (team.mine(0)) {
      before.begin(utt.labels);
      before.sweep(T, [&](int64_t k) {
        copy(before.chain.labels(), group_m + k * K, group_e + k * K);
      });
      find_total();
    }
    if (team.mine(1)) {
      after.begin(utt.labels);
      after.chain.keeps_entering = true;
      after.sweep(T, [&](int64_t k) {
        const Row<Real>& entering = after.chain.entering;
        if (paired)
          copy(entering, rest_m + k * K, rest_e + k * K);
        else
          combine(T - 1 - k, entering.m, entering.e);
      });
    }
    after.chain.keeps_entering = false;
    if (!paired) return;
    team.sync();
    before.chain.follow(T);
    find_total();
    if (team.rank == 0)
      for (int64_t k = 0; k < T; ++k) combine(T - 1 - k, rest_m + k * K, rest_e + k * K);
    team.sync();
  }

  void copy(const Row<Real>& row, Real* __restrict m, Int* __restrict e) const {
    const Real* __restrict from_m = row.m;
    const Int* __restrict from_e = row.e;
    for (int64_t u = 0; u < K; ++u) m[u] = from_m[u], e[u] = from_e[u];
  }

  void find_total() {
    const auto &b = before.chain.blanks(), &l = before.chain.labels();
    total_e = larger(b.e[U], l.e[U]);
    total_m = b.m[U] * pow2<Real>(b.e[U] - total_e) + (U ? l.m[U] * pow2<Real>(l.e[U] - total_e) : 0);
    normalise(total_m, total_e);
    if (total_e >= Format<Real>::zero / 2)
      log_total = __builtin_log(static_cast<double>(total_m)) + static_cast<double>(total_e) * ln2;
  }

  bool feasible() const { return log_total != -infinite; }

  // From sources G(u, tau) to occupancies: mass at label u and the states before it at tau, and
  // at the states after it from the next frame on. `fill(k, row)` gives a row of sources.
  template <class Fill>
  void adjoint(In* occupancy, Fill fill) {
    if (team.mine(0))
      before.sweep_back(T, [&](int64_t k) {
        fill(k, source[0]);
        Real* __restrict label = before.label[before.now];
        const Real* __restrict g = source[0];
        const int64_t count = K;
#pragma omp simd
        for (int64_t u = 0; u < count; ++u) label[u] += g[u];
        before.write(occupancy + before.frame(k) * (U + 1));
      });
    if (team.mine(1))
      after.sweep_back(T, [&](int64_t k) {
        const int64_t at = after.frame(k) * (U + 1);
        if (team.size > 1)
          after.write(second + at);
        else
          after.add(occupancy + at);
        fill(T - 1 - k, source[1]);
        Real* __restrict injected = after.injected;
        const Real* __restrict g = source[1];
        const int64_t last = U;
#pragma omp simd
        for (int64_t u = 1; u <= last; ++u) injected[u] = g[last + 1 - u];
      });
    team.sync();
    if (team.size > 1 && team.rank == 0)
      for (int64_t i = 0; i < T * (U + 1); ++i)
        occupancy[i] = static_cast<In>(static_cast<Real>(occupancy[i]) + second[i]);
  }
};

// Group posteriors for risks of the user's own: exact over their whole range, as (m, e).
template <class Real, class In>
struct Posteriors : Grouped<Real, In> {
  using Base = Grouped<Real, In>;
  using Base::Base, Base::group_e, Base::group_m, Base::K, Base::T, Base::team, Base::U;
  using Int = IntOf<Real>;

  bool solve(bool gradient, int64_t& bad_frame) {
    const bool carved = carve(team, [&](Arena& arena) { Base::take(arena, gradient); });
    if (!carved) bad_frame = no_memory;
    if (!carved) return false;
    Base::fill();
    team.sync();
    if (!Base::readable(0, bad_frame)) return false;
    Base::run([&](int64_t k, const Real* __restrict rest_m, const Int* __restrict rest_e) {
      Real* __restrict m = group_m + k * K;
      Int* __restrict e = group_e + k * K;
      const int64_t last = U;
#pragma omp simd
      for (int64_t u = 1; u <= last; ++u) {
        Real mm = m[u] * rest_m[last + 1 - u];
        Int ee = e[u] + rest_e[last + 1 - u];
        normalise(mm, ee);
        m[u] = mm;
        e[u] = ee;
      }
    });
    return true;
  }
};

// Eq. 12: r_u(tau) = exp(-lambda (tau - tau'_u) / T), every token weighing 1/U.
template <class Real, class In>
struct Emission : Grouped<Real, In> {
  using Base = Grouped<Real, In>;
  using Base::Base, Base::before, Base::group_e, Base::group_m, Base::K, Base::T, Base::team, Base::U;
  using Base::total_e, Base::total_m;
  using Int = IntOf<Real>;
  double factor, slope;
  Real *sum, *peak, *peak_frame;  // per token: of the weighed shares; of the shares

  // A group's share of all paths, times exp(lambda/2 - lambda tau / T), is a plain number: what is
  // too small for it is nothing beside the token's sum, which is at least exp(-|lambda|/2).
  static constexpr double largest_factor = sizeof(Real) == 4 ? 120 : 1300;

  double log_weight(int64_t k) const {
    return factor / 2 - slope * static_cast<double>(before.frame(k) + 1);
  }

  bool solve(double risk_factor, bool gradient, int64_t& bad_frame) {
    factor = risk_factor, slope = risk_factor / static_cast<double>(T);
    const bool carved = carve(team, [&](Arena& arena) {
      Base::take(arena, gradient);
      sum = arena.take<Real>(K);
      peak = arena.take<Real>(K);
      peak_frame = arena.take<Real>(K);
    });
    if (!carved) bad_frame = no_memory;
    const bool representable = __builtin_fabs(risk_factor) <= largest_factor;
    if (!carved) return false;
    Base::fill();
    team.sync();
    if (!Base::readable(0, bad_frame) || !representable) return false;
    if (team.rank == 0)
      for (int64_t u = 0; u < K; ++u) sum[u] = peak[u] = peak_frame[u] = 0;
    Base::run([&](int64_t k, const Real* __restrict rest_m, const Int* __restrict rest_e) {
      Real* __restrict m = group_m + k * K;
      const Int* __restrict e = group_e + k * K;
      Real* __restrict total = sum;
      Real* __restrict highest = peak;
      const double log_w = log_weight(k);
      Real weight_m;
      Int weight_e;
      split_exp<Real>(log_w, weight_m, weight_e);
      weight_m /= total_m;
      const Real unweigh = static_cast<Real>(__builtin_exp(-log_w));
      const Int offset = weight_e - total_e;
      const int64_t last = U;
      m[0] = 0;
#pragma omp simd
      for (int64_t u = 1; u <= last; ++u) {
        const Real weighed = m[u] * rest_m[last + 1 - u] * weight_m *
                             pow2<Real>(e[u] + rest_e[last + 1 - u] + offset);
        m[u] = weighed;
        total[u] += weighed;
        highest[u] = larger(highest[u], weighed * unweigh);
      }
      for (int64_t u = last + 1; u < K; ++u) m[u] = 0;
    });
    return true;
  }

  double loss() {
    constexpr Real tied = static_cast<Real>(1 - peak_tolerance);
    for (int64_t k = T - 1; k >= 0; --k) {
      const Real* __restrict m = group_m + k * K;
      const Real* __restrict highest = peak;
      Real* __restrict found = peak_frame;
      const Real unweigh = static_cast<Real>(__builtin_exp(-log_weight(k))) / tied;
      const Real tau = static_cast<Real>(k + 1);
      const int64_t count = K;
#pragma omp simd
      for (int64_t u = 0; u < count; ++u) found[u] = m[u] * unweigh >= highest[u] ? tau : found[u];
    }
    double log_objective = 0;
    for (int64_t u = 1; u <= U; ++u)
      log_objective += __builtin_log(static_cast<double>(sum[u])) - factor / 2 +
                       slope * static_cast<double>(peak_frame[u]);
    return Base::normaliser() - Base::log_total - log_objective / static_cast<double>(U);
  }

  // The sources do not depend on tau': it scales a token's objective by a constant.
  void gradient(In* occupancy) {
    if (team.rank == 0)
      for (int64_t u = 0; u < K; ++u) sum[u] = u >= 1 && u <= U ? 1 / (static_cast<Real>(U) * sum[u]) : 0;
    team.sync();
    Base::adjoint(occupancy, [&](int64_t k, Real* __restrict row) {
      const Real* __restrict m = group_m + k * K;
      const Real* __restrict scale = sum;
      const int64_t count = K;
#pragma omp simd
      for (int64_t u = 0; u < count; ++u) row[u] = m[u] * scale[u];
    });
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
    Emission<Real, In> emission(utt, team, Event::end);
    if (!emission.solve(risk_factor, occupancy != nullptr, bad_frame)) return bad_frame != all_read;
    if (!emission.feasible()) {
      if (occupancy) emission.clear(occupancy);
      return true;
    }
    if (team.rank == 0) loss = emission.loss();
    if (occupancy) emission.gradient(occupancy);
    return true;
  };
  if (!attempt(In{})) {
    team.sync();
    if (!attempt(double{})) bad_frame = out_of_range;
  }
  team.sync();
  if (team.rank != 0) return;
  out.loss[n] = loss;
  bad[n] = bad_frame;
  if (loss == infinite && out.row_scale)
    for (int64_t t = 0; t < utt.T; ++t) utt.row_scale[t] = 0;
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
void with_groups(const Utterance<In>& utt, Event event, bool gradient, int64_t& bad_frame,
                 const Team& team, Use use) {
  auto attempt = [&](auto width) {
    Posteriors<decltype(width), In> groups(utt, team, event);
    if (!groups.solve(gradient, bad_frame)) return bad_frame != all_read;
    use(groups);
    return true;
  };
  if (attempt(In{})) return;
  team.sync();
  if (!attempt(double{})) bad_frame = out_of_range;
}

template <class In>
void run_groups(const Batch& batch, int64_t n, const Groups& out, BadFrame bad, const Team& team) {
  const Utterance<In> utt(batch, n, nullptr);
  int64_t bad_frame = all_read;
  In* shares = static_cast<In*>(out.log_share) + n * out.U_max * batch.T;
  constexpr In impossible = static_cast<In>(-infinite);
  if (team.rank == 0)
    for (int64_t u = 0; u < out.U_max; ++u)
      for (int64_t t = u < utt.U ? utt.T : 0; t < batch.T; ++t) shares[u * batch.T + t] = impossible;
  with_groups(utt, out.event, false, bad_frame, team, [&]<class Real>(Posteriors<Real, In>& groups) {
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
  team.sync();
  if (team.rank == 0) bad[n] = bad_frame;
}

template <class In>
void run_groups_backward(const Batch& batch, int64_t n, const Groups& grad, const Forward& out,
                         BadFrame bad, const Team& team) {
  const Utterance<In> utt(batch, n, &out);
  int64_t bad_frame = all_read;
  In* occupancy = static_cast<In*>(out.occupancy) + block_offset(batch, n);
  const In* grad_share = static_cast<const In*>(grad.log_share) + n * grad.U_max * batch.T;
  double mass = grad.log_likelihood[n];
  with_groups(utt, grad.event, true, bad_frame, team, [&]<class Real>(Posteriors<Real, In>& groups) {
    const int64_t T = utt.T, U = utt.U, K = groups.K;
    if (!groups.feasible()) {
      mass = 0;
      groups.clear(occupancy);
      return;
    }
    if (U == 0) {  // no groups: every frame is blank
      for (int64_t t = team.rank; t < T; t += team.size) occupancy[t] = static_cast<In>(mass);
      return;
    }
    if (team.rank == 0) {
      // d log_share = (paths of the group) - (all paths), d log_likelihood = all paths. What is
      // left for "all paths" is spread over the groups of one token, which hold every path once.
      Real* share = groups.rest_m;
      for (int64_t k = 0; k < T; ++k) {
        // rounding can leave a group a hair above the total, hence the factor of two
        const int64_t at = k * K + U;
        share[k] = 2 * groups.group_m[at] / groups.total_m *
                   pow2<Real>(groups.group_e[at] - groups.total_e - 1);
      }
      double rest = mass;
      for_each_tile(T, U, [&](int64_t first, int64_t end, int64_t u) {
        const In* row = grad_share + (groups.before.token(u) - 1) * batch.T;
        for (int64_t k = first; k < end; ++k) {
          const In given = row[groups.before.frame(k)];
          const bool there = groups.group_e[k * K + u] > Format<Real>::zero / 2;
          groups.group_m[k * K + u] = there ? static_cast<Real>(given) : 0;
          rest -= there ? static_cast<double>(given) : 0.0;
        }
      });
      for (int64_t k = 0; k < T; ++k) {
        groups.group_m[k * K + U] += static_cast<Real>(rest) * share[k];
        groups.group_m[k * K] = 0;
        for (int64_t u = U + 1; u < K; ++u) groups.group_m[k * K + u] = 0;
      }
    }
    team.sync();
    groups.adjoint(occupancy, [&](int64_t k, Real* __restrict row) {
      const Real* __restrict source = groups.group_m + k * K;
      for (int64_t u = 0; u < K; ++u) row[u] = source[u];
    });
  });
  team.sync();
  if (team.rank != 0) return;
  bad[n] = bad_frame;
  if (out.row_scale)
    for (int64_t t = 0; t < utt.T; ++t) utt.row_scale[t] *= static_cast<In>(mass);
}

}  // namespace BRCTC_ISA
}  // namespace brctc
