// One direction of the CTC lattice: run a chain of states over frames, remember how each state's
// mass divides over its predecessors, and later move occupancies back along these shares.
//
// Blank and label states are kept apart: blank u stands after label u (blank 0 before the first),
// so every recursion couples index u with u and u-1 only. The other direction is the same chain
// over the reversed utterance: frames backwards, label u as U+1-u, blank u as U-u.
#pragma once
#include <initializer_list>

#include "scratch.h"

namespace brctc {
inline namespace BRCTC_ISA {

// A lattice whose shares take more than this runs a second time, block by block, when it is gone
// back over: the state at the start of a block is enough to find its shares again, and they stay
// in the cache.
constexpr int64_t most_share_bytes = int64_t{4} << 20;
constexpr int64_t short_block = 16;

// What multiplies emissions in every frame.
template <class Real>
struct Weights {
  int64_t boosted = -1;  // this blank's, by boost
  Real boost_m = 1;
  IntOf<Real> boost_e = 0;
  bool weighed = false;  // every state's, by its own
  Row<Real> blank, label;
};

enum class Keep { nothing, shares, shares_of_entering };

template <class Real>
struct Chain {
  using Int = IntOf<Real>;
  int64_t U, K, stride;          // K covers states 0..U; rows of shares are `stride` apart
  const Int* skip;               // 0 where label u may follow label u-1 directly, else a wall
  Weights<Real> weights;
  Row<Real> blank[2], label[2];  // the state now and before
  Row<Real> entering;            // mass that enters label u at this frame, before its emission,
  bool keeps_entering = false;   // if that is wanted
  bool injects = false;          // whether retreat() is given what enters a label but does not stay
  // For a block of frames, where each state's mass came from. Every share is stored, none is found
  // as one minus another: a small occupancy keeps its digits beside a large one.
  struct Shares {
    Real *label_stayed, *label_entered;  // of label u: from itself, from before (if the chain injects)
    Real *by_blank, *by_skip;            // from the blank, from the label before: of label u, or of
                                         // what entered it, if the chain injects
    Real *blank_stayed, *blank_entered;  // of blank u: from itself, from label u
  } shares;
  Real* unit_m;                  // an emission row of ones
  int now = 0;

  // `frames` is for how many frames shares can be kept.
  void take(Arena& arena, int64_t labels, int64_t frames) {
    U = labels, K = padded(U), stride = K + lanes;
    for (int i = 0; i < 2; ++i) blank[i].take(arena, K), label[i].take(arena, K);
    entering.take(arena, K);
    weights.blank.take(arena, K), weights.label.take(arena, K);
    unit_m = arena.take<Real>(K);
    for (Real** rows : {&shares.label_stayed, &shares.label_entered, &shares.by_blank,
                        &shares.by_skip, &shares.blank_stayed, &shares.blank_entered})
      *rows = arena.take<Real>(frames * stride);
  }

  // Before the first frame all mass stands at blank 0.
  void begin() {
    for (int i = 0; i < 2; ++i) blank[i].clear(K), label[i].clear(K);
    entering.clear(K);
    for (int64_t u = 0; u < K; ++u) unit_m[u] = 1;
    now = 0;
    blank[0].e[0] = 0;
  }

  // For a thread that reads the state of a chain which another has taken `steps` steps.
  void follow(int64_t steps) { now = static_cast<int>(steps % 2); }

  const Row<Real>& blanks() const { return blank[now]; }
  const Row<Real>& labels() const { return label[now]; }

  // One frame with emissions y (index 0 the blank, u label u), y_e null if they are plain numbers.
  // Its shares go to `row`, if that is not negative.
  void step(const Real* y_m, const Int* y_e, int64_t row) {
    move(y_m, y_e, row);
    if (weights.weighed) multiply(blank[now], weights.blank), multiply(label[now], weights.label);
    const int64_t boosted = weights.boosted;
    if (boosted < 0) return;
    Real m = blank[now].m[boosted] * weights.boost_m;
    Int e = blank[now].e[boosted] + weights.boost_e;
    normalise(m, e);
    blank[now].m[boosted] = m;
    blank[now].e[boosted] = e;
  }

  // A step without emissions: afterwards each state holds what it receives from the far side.
  void step_unit(int64_t row) { move(unit_m, nullptr, row); }

  void multiply(Row<Real>& row, const Row<Real>& by) const {
    Real* __restrict row_m = row.m;
    Int* __restrict row_e = row.e;
    const Real* __restrict by_m = by.m;
    const Int* __restrict by_e = by.e;
    const int64_t count = K;
#pragma omp simd
    for (int64_t u = 0; u < count; ++u) {
      Real m = row_m[u] * by_m[u];
      Int e = row_e[u] + by_e[u];
      normalise(m, e);
      row_m[u] = m;
      row_e[u] = e;
    }
  }

  void move(const Real* y_m, const Int* y_e, int64_t row) {
    const Keep keep = row < 0 ? Keep::nothing : injects ? Keep::shares_of_entering : Keep::shares;
    if (keep == Keep::nothing)
      move<Keep::nothing>(y_m, y_e, 0);
    else if (keep == Keep::shares)
      move<Keep::shares>(y_m, y_e, row);
    else
      move<Keep::shares_of_entering>(y_m, y_e, row);
  }

  template <Keep keep>
  void move(const Real* y_m, const Int* y_e, int64_t row) {
    if (y_e)  // rare: no special cases
      advance<keep, true, true>(y_m, y_e, row);
    else if (keeps_entering)
      advance<keep, false, true>(y_m, y_e, row);
    else
      advance<keep, false, false>(y_m, y_e, row);
  }

  // One frame t. In linear numbers, with y the frame's emissions, b and l the masses of blanks and labels before:
  //   in[u]  = b[u-1] + skip[u] l[u-1]        u = 1..U; skip[u] is 1 or, between equal labels, 0
  //   l'[u]  = (l[u] + in[u]) y[u]
  //   b'[u]  = (b[u] + l[u]) y[0]             u = 0..U
  // Index 0 of l and what lies beyond U stay zero. Shares are the summands over their sums.
  template <Keep keep, bool wide, bool keep_entering>
  void advance(const Real* __restrict y_m, const Int* __restrict y_e, int64_t row) {
    const Real* __restrict bm = blank[now].m;
    const Int* __restrict be = blank[now].e;
    const Real* __restrict lm = label[now].m;
    const Int* __restrict le = label[now].e;
    now ^= 1;
    Real* __restrict new_bm = blank[now].m;
    Int* __restrict new_be = blank[now].e;
    Real* __restrict new_lm = label[now].m;
    Int* __restrict new_le = label[now].e;
    Real* __restrict in_m = entering.m;
    Int* __restrict in_e = entering.e;
    Real* __restrict label_stayed = shares.label_stayed + row * stride;
    Real* __restrict label_entered = shares.label_entered + row * stride;
    Real* __restrict by_blank = shares.by_blank + row * stride;
    Real* __restrict by_skip = shares.by_skip + row * stride;
    Real* __restrict blank_stayed = shares.blank_stayed + row * stride;
    Real* __restrict blank_entered = shares.blank_entered + row * stride;
    const Int* __restrict wall = skip;
    const Real yb_m = y_m[0];
    const Int yb_e = wide ? y_e[0] : 0;
    const int64_t count = K;
#pragma omp simd
    for (int64_t u = 0; u < count; ++u) {
      const auto in = align(bm[u - 1], be[u - 1], lm[u - 1], le[u - 1] + wall[u]);
      const Real in_sum = in.first + in.second;
      const auto l = align(lm[u], le[u], in_sum, in.e);
      const Real l_sum = l.first + l.second;
      if constexpr (keep != Keep::nothing) {
        const Real of_sum = 1 / l_sum;
        label_stayed[u] = l.first * of_sum;
        if constexpr (keep == Keep::shares_of_entering) label_entered[u] = l.second * of_sum;
        const Real of_in = keep == Keep::shares ? of_sum * relative<Real>(in.e, l.e) : 1 / in_sum;
        by_blank[u] = in.first * of_in;
        by_skip[u] = in.second * of_in;
      }
      if constexpr (keep_entering) in_m[u] = in_sum, in_e[u] = in.e;
      emit<wide>(l_sum, l.e, y_m[u], wide ? y_e[u] : 0, new_lm[u], new_le[u]);
      const auto b = align(bm[u], be[u], lm[u], le[u]);
      const Real b_sum = b.first + b.second;
      if constexpr (keep != Keep::nothing) {
        const Real of_sum = 1 / b_sum;
        blank_stayed[u] = b.first * of_sum;
        blank_entered[u] = b.second * of_sum;
      }
      emit<wide>(b_sum, b.e, yb_m, yb_e, new_bm[u], new_be[u]);
    }
    // for retreat()
    if constexpr (keep != Keep::nothing) by_blank[count] = by_skip[count] = 0;
    if constexpr (keep == Keep::shares_of_entering) label_entered[count] = 0;
  }

  // A mass times its emission, normalised; zero stays zero, where emissions can be so small.
  template <bool wide>
  [[gnu::always_inline]] static void emit(Real sum, Int e, Real y_m, Int y_e, Real& out_m, Int& out_e) {
    Real m = sum * y_m;
    if constexpr (wide) e += y_e;
    normalise(m, e);
    out_m = m;
    out_e = wide ? larger(e, Format<Real>::zero) : e;
  }

  // The state as one piece of memory, to go back to later.
  static int64_t state_size(int64_t K) { return 2 * K; }
  void save(Real* m, Int* e) const {
    for (int64_t u = 0; u < K; ++u) {
      m[u] = blank[now].m[u], m[K + u] = label[now].m[u];
      e[u] = blank[now].e[u], e[K + u] = label[now].e[u];
    }
  }
  void restore(const Real* m, const Int* e) {
    for (int64_t u = 0; u < K; ++u) {
      blank[now].m[u] = m[u], label[now].m[u] = m[K + u];
      blank[now].e[u] = e[u], label[now].e[u] = e[K + u];
    }
  }

  // Moves occupancies g one frame back along the shares of `row`:
  //   out_label[u] = g_label[u] label_stayed[u] + g_blank[u] blank_entered[u] + in[u+1] by_skip[u+1]
  //   out_blank[u] = g_blank[u] blank_stayed[u] + in[u+1] by_blank[u+1]
  // with in[u] = g_label[u], or g_label[u] label_entered[u] + injected[u]. `injected` is mass that enters
  // label u at this frame but does not stay there: it goes to the states before it only.
  void retreat(const Real* g_blank, const Real* g_label, const Real* injected, int64_t row, Real* out_blank,
               Real* out_label) const {
    if (injects)
      retreat<true>(g_blank, g_label, injected, row, out_blank, out_label);
    else
      retreat<false>(g_blank, g_label, injected, row, out_blank, out_label);
  }

  template <bool injecting>
  void retreat(const Real* __restrict g_blank, const Real* __restrict g_label,
               const Real* __restrict injected, int64_t row, Real* __restrict out_blank,
               Real* __restrict out_label) const {
    const Real* __restrict label_stayed = shares.label_stayed + row * stride;
    const Real* __restrict label_entered = shares.label_entered + row * stride;
    const Real* __restrict by_blank = shares.by_blank + row * stride;
    const Real* __restrict by_skip = shares.by_skip + row * stride;
    const Real* __restrict blank_stayed = shares.blank_stayed + row * stride;
    const Real* __restrict blank_entered = shares.blank_entered + row * stride;
    const int64_t count = K;
#pragma omp simd
    for (int64_t u = 0; u < count; ++u) {
      const Real in = injecting ? g_label[u + 1] * label_entered[u + 1] + injected[u + 1] : g_label[u + 1];
      out_label[u] = g_label[u] * label_stayed[u] + g_blank[u] * blank_entered[u] + in * by_skip[u + 1];
      out_blank[u] = g_blank[u] * blank_stayed[u] + in * by_blank[u + 1];
    }
  }
};

}  // namespace BRCTC_ISA
}  // namespace brctc
