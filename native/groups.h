// Path groups: for every token u and frame tau, the mass of the paths on which u ends (or starts) there.
//   P_u(tau) = (mass of label u at tau, with its emission) * (mass that leaves it after tau)
// by two runs over all frames. The gradient of anything that is made of groups comes by two adjoint passes.
#pragma once
#include "solver.h"

namespace brctc {
inline namespace BRCTC_ISA {

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
  Real* source[2];         // per rank: a row of sources
  double log_total = -infinite;
  Int total_e;
  Real total_m;

  Grouped(const Utterance<In>& utterance, const Team& members, Event event)
      : Base(utterance, members),
        before(event == Event::end ? ahead : back),
        after(event == Event::end ? back : ahead) {
    after.chain.injects = true;
  }

  void take(Arena& arena) {
    const bool paired = team.size > 1, gradient = utt.gradient != nullptr;
    Base::take(arena, T, T);
    group_m = arena.take<Real>(T * K);
    group_e = arena.take<Int>(T * K);
    rest_m = arena.take<Real>(paired ? T * K : T);
    rest_e = arena.take<Int>(paired ? T * K : 0);
    second = arena.take<Real>(paired && gradient ? T * (U + 1) : 0);
    for (auto& row : source) row = arena.take<Real>(K);
  }

  // Tokens first .. end - 1: what one rank adds up over the frames, in the same order as a single one.
  struct Tokens {
    int64_t first, end;
  };
  Tokens own_tokens() const {
    const int64_t middle = team.size == 1 ? U + 1 : 1 + U / 2;
    return team.rank == 0 ? Tokens{1, middle} : Tokens{middle, U + 1};
  }

  // Runs both directions. `combine(k, tokens, rest_m, rest_e)` joins row k of what reaches each label,
  // in group_m and group_e, with what leaves it there; it comes in the order of `after`.
  template <class Combine>
  void run(Combine combine) {
    const bool paired = team.size > 1;
    const Tokens tokens = own_tokens();
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
          combine(T - 1 - k, tokens, entering.m, entering.e);
      });
    }
    after.chain.keeps_entering = false;
    if (!paired) return;
    team.barrier();
    before.chain.follow(T);
    find_total();
    for (int64_t k = 0; k < T; ++k) combine(T - 1 - k, tokens, rest_m + k * K, rest_e + k * K);
    team.barrier();
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

  // From sources G(u, tau) to occupancies. A source is mass of paths on which u has its event at tau:
  //   on the side of `before`, added to the occupancy of label u at tau, and moved back with it;
  //   on the side of `after`, injected: it enters label u from tau's far side and goes to the states beyond.
  // A frame's occupancy is the sum of both sides `fill(k, row)` gives a row of sources.
  template <class Fill>
  void adjoint(Fill fill) {
    In* const occupancy = Base::occupancy;
    Base::sweep_back(before, T, after, T, [&](Direction<Real>& side, int64_t k) {
      const int64_t at = side.frame(k) * (U + 1);
      Real* __restrict g = source[team.rank];
      if (side.reversed == before.reversed) {
        fill(k, g);
        Real* __restrict label = side.label[side.now];
        const int64_t count = K;
#pragma omp simd
        for (int64_t u = 0; u < count; ++u) label[u] += g[u];
        side.write(occupancy + at);
        return;
      }
      if (team.size > 1) {
        side.write(second + at);
      } else {
        prefetch(utt.rows_ahead(side.frame(k - 2)).gradient, utt.C);
        side.add(occupancy + at);
        emit.finish_gradient(utt, side.frame(k), occupancy + at);
      }
      fill(T - 1 - k, g);
      Real* __restrict injected = side.injected;
      const int64_t last = U;
#pragma omp simd
      for (int64_t u = 1; u <= last; ++u) injected[u] = g[last + 1 - u];
    });
    team.barrier();
    for (int64_t t = team.rank; team.size > 1 && t < T; t += team.size) {
      In* __restrict row = occupancy + t * (U + 1);
      const Real* __restrict more = second + t * (U + 1);
      for (int64_t u = 0; u <= U; ++u) row[u] = static_cast<In>(static_cast<Real>(row[u]) + more[u]);
      emit.finish_gradient(utt, t, row);
    }
  }
};

// Group posteriors for custom risks: exact over their whole range, as (m, e).
template <class Real, class In>
struct Posteriors : Grouped<Real, In> {
  using Base = Grouped<Real, In>;
  using Base::Base, Base::group_e, Base::group_m, Base::K, Base::T, Base::team, Base::U;
  using Int = IntOf<Real>;
  using typename Base::Tokens;

  bool solve(int64_t& bad_frame) {
    const bool carved = carve(team, [&](Arena& arena) { Base::take(arena); });
    if (!carved) bad_frame = no_memory;
    if (!carved) return false;
    if (!Base::fill(0, bad_frame)) return false;
    Base::run([&](int64_t k, Tokens tokens, const Real* __restrict rest_m, const Int* __restrict rest_e) {
      Real* __restrict m = group_m + k * K;
      Int* __restrict e = group_e + k * K;
      const int64_t last = U;
#pragma omp simd
      for (int64_t u = tokens.first; u < tokens.end; ++u) {
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

}  // namespace BRCTC_ISA
}  // namespace brctc
