// Vanilla CTC, Eq. 10 and the delay penalty: one weighed sum over all paths, by meeting in the middle.
#pragma once
#include "solver.h"

namespace brctc {
inline namespace BRCTC_ISA {

template <class Real, class In>
struct PathSum : Solver<Real, In> {
  using Base = Solver<Real, In>;
  using Base::ahead, Base::back, Base::emit, Base::team, Base::T, Base::U, Base::K, Base::utt;
  using Int = IntOf<Real>;
  using Base::Base;

  // log of the summed path weight, -inf if there is none. At the last frame of `ahead`, u = 0..U,
  //   total = sum_u a_blank[u] r_blank[U-u] + sum_{u>0} a_label[u] r_label[U+1-u]
  // with a of `ahead`, that frame's emissions included, and r of `back`, in its own order, without them.
  // Leaves the occupancies of that frame, each summand over the total, in both directions.
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

  // Weighs the paths in both directions, by multiplying emissions. Returns what is to be added to the loss.
  double weigh(Risk risk, double factor) {
    if (U == 0) return 0;
    const double frames = static_cast<double>(T), tokens = static_cast<double>(U);
    // exp(-lambda tau / T) = exp(-lambda) exp(lambda / T)^(T - tau), and T - tau frames are final
    // blanks: multiply their emissions, add lambda to the loss.
    if (risk == Risk::early_finish) {
      Real m;
      Int e;
      split_exp<Real>(factor / frames, m, e);
      auto &first = ahead.chain.weights, &second = back.chain.weights;
      first.boosted = U, second.boosted = 0;
      first.boost_m = second.boost_m = m, first.boost_e = second.boost_e = e;
      return factor;
    }
    // A token that starts at frame s, from 0, has begun in T - s frames: pay exp(penalty) in each of them
    // for exp(-penalty (s - (T - 1) / 2)), and take back what a start in the middle would have got.
    if (risk == Risk::delay_penalty) {
      if (team.mine(0)) ahead.weigh(factor);
      if (team.mine(1)) back.weigh(factor);
      ahead.chain.weights.weighed = back.chain.weights.weighed = true;
      return factor * tokens * (frames + 1) / 2;
    }
    return 0;
  }

  // Both directions up to the middle: `ahead` over the first frames with their emissions, `back` over the
  // others, and then a step without emissions, into the frame where they meet.
  void run_to_middle(int64_t middle) {
    const auto nothing = [](int64_t) {};
    if (team.mine(0)) ahead.sweep(middle, nothing);
    if (team.mine(1)) {
      back.sweep(T - middle, nothing);
      back.chain.step_unit(back.unit_row());
    }
    team.barrier();
    ahead.chain.follow(middle);
    back.chain.follow(T - middle + 1);
  }

  // Writes the gradient of every frame, going back from the middle to both ends.
  void gradient(int64_t middle) {
    In* row = Base::occupancy + team.rank * (U + 1);
    if (team.mine(1)) back.retreat(back.unit_row());
    Base::sweep_back(ahead, middle, back, T - middle, [&](const Direction<Real>& side, int64_t k) {
      prefetch(utt.rows_ahead(side.frame(k - 2)).gradient, utt.C);
      side.write(row);
      emit.finish_gradient(utt, side.frame(k), row);
    });
  }

  // What a risk can add to the exponents of a path.
  double range_of(Risk risk, double factor) const {
    if (risk == Risk::none || U == 0) return 0;
    const double range = __builtin_fabs(factor);
    return risk == Risk::delay_penalty ? range * static_cast<double>(U) * static_cast<double>(T) : range;
  }

  // Returns false if a wider format is needed.
  bool solve(Risk risk, double factor, double& loss, int64_t& bad_frame) {
    const int64_t middle = (T + 1) / 2;
    if (!carve(team, [&](Arena& arena) { Base::take(arena, middle, team.size); }))
      return bad_frame = no_memory, true;
    emit.reversed_from = middle;
    if (!Base::fill(range_of(risk, factor), bad_frame)) return bad_frame != all_read;
    if (team.mine(0)) ahead.begin(utt.labels);
    if (team.mine(1)) back.begin(utt.labels);
    const double offset = weigh(risk, factor);
    run_to_middle(middle);
    if (team.rank == 0) {
      const double log_total = meet();
      Base::result[0] = log_total;
      loss = Base::normaliser() - log_total + offset;
    }
    team.barrier();
    if (!utt.gradient) return true;
    if (Base::result[0] == -infinite)
      Base::clear();
    else
      gradient(middle);
    return true;
  }
};

}  // namespace BRCTC_ISA
}  // namespace brctc
