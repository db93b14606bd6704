// The transducer's lattice: all paths from (0, 0) to (T, U), a blank leading from (t, u) to
// (t + 1, u) and a label to (t, u + 1). docs/math.md has the recursion.
//
// Cells of one diagonal, t + u constant, do not depend on each other, so a diagonal is a row of
// vectors here: index u, one diagonal after the other. What arrives at u on diagonal d + 1 comes by
// blank from u or by label from u - 1 on diagonal d; slot (d, u) of each array belongs to that
// arrival. It holds the emission first, then the share of the arriving mass that came this way, then
// how often this way is taken. Always in double with an exponent: the vocabulary takes the time.
#pragma once
#include "emissions.h"
#include "transducer.h"

namespace brctc {
inline namespace BRCTC_ISA {

template <class In>
struct TransducerLattice {
  using Int = int64_t;
  static constexpr Int zero = Format<double>::zero;
  int64_t T, U, K, diagonals;
  double *blank_m, *label_m;  // (diagonals, K)
  Int *blank_e, *label_e;
  Row<double> frame_blank, frame_label;  // emissions of a frame, on their way
  Row<double> state[2];                  // mass of the cells on this diagonal and on the next
  double *visits, *visits_before;

  TransducerLattice(int64_t frames, int64_t labels)
      : T(frames), U(labels), K(padded(labels)), diagonals(frames + labels) {}

  bool take(Scratch& scratch) {
    Arena measure{nullptr};
    lay_out(measure);
    Arena arena{reserve(scratch, measure.used)};
    if (!arena.base) return false;
    lay_out(arena);
    return true;
  }

  void lay_out(Arena& arena) {
    const int64_t slots = diagonals * K + lanes;  // retreat() looks one slot past a row
    blank_m = arena.take<double>(slots), label_m = arena.take<double>(slots);
    blank_e = arena.take<Int>(slots), label_e = arena.take<Int>(slots);
    for (Row<double>* row : {&frame_blank, &frame_label, &state[0], &state[1]}) row->take(arena, K);
    visits = arena.take<double>(K), visits_before = arena.take<double>(K);
  }

  // From cells to emissions, frames to diagonals.
  void fill(In* cells) {
    for (int64_t d = 0; d < diagonals; ++d) {
      const int64_t first = larger(d - T + 1, Int{0}), last = d < U ? d : U;  // the cells there are
      for (int64_t u = 0; u < K; ++u) {
        if (u < first || u > last) blank_m[d * K + u] = 1, blank_e[d * K + u] = zero;
        if (u <= first || u > last) label_m[d * K + u] = 1, label_e[d * K + u] = zero;
      }
    }
    for (int64_t u = 0; u < lanes; ++u) label_m[diagonals * K + u] = 0;
    for (int64_t t = 0; t < T; ++t) {
      fill_frame(cells + t * numbers_per_cell * (U + 1));
      for (int64_t u = 0; u <= U; ++u) {
        const int64_t at = (t + u) * K + u;
        blank_m[at] = frame_blank.m[u], blank_e[at] = frame_blank.e[u];
        if (u < U) label_m[at + 1] = frame_label.m[u], label_e[at + 1] = frame_label.e[u];
      }
    }
  }

  void fill_frame(In* cells) {
    const int64_t count = U + 1;
    const In* __restrict x_blank = cells;
    const In* __restrict x_label = cells + count;
    const In* __restrict shift = cells + 2 * count;
    In* __restrict others = cells + 3 * count;  // becomes the scale
    double* __restrict bm = frame_blank.m;
    double* __restrict lm = frame_label.m;
    Int* __restrict be = frame_blank.e;
    Int* __restrict le = frame_label.e;
#pragma omp simd
    for (int64_t u = 0; u < count; ++u) {
      const double down = static_cast<double>(shift[u]);
      const double log_blank = larger(static_cast<double>(x_blank[u]) - down, smallest_log);
      const double log_label = larger(static_cast<double>(x_label[u]) - down, smallest_log);
      double m_blank, m_label;
      Int e_blank, e_label;
      split_exp<double>(log_blank, m_blank, e_blank);
      split_exp<double>(log_label, m_label, e_label);
      const double larger_one = log_label > log_blank ? m_label * pow2<double>(e_label)
                                                      : m_blank * pow2<double>(e_blank);
      const double scale = 1 / (larger_one + static_cast<double>(others[u]));
      others[u] = static_cast<In>(scale);
      m_blank *= scale, m_label *= scale;
      normalise(m_blank, e_blank);
      normalise(m_label, e_label);
      bm[u] = m_blank, lm[u] = m_label;
      be[u] = log_blank > smallest_log ? e_blank : zero;
      le[u] = log_label > smallest_log ? e_label : zero;
    }
  }

  // Runs over all diagonals d = 0 .. T+U-1; afterwards slots hold shares if they are kept. Returns the loss.
  // With a(d, u) the mass of cell (t, u), t = d - u, both from 0, and a(0, 0) = 1:
  //   a(d+1, u) = a(d, u) blank(t, u) + a(d, u-1) label(t+1, u-1)
  //   loss = -log a(T+U, U)
  template <bool keep>
  double run() {
    for (auto& row : state) row.clear(K);
    state[0].e[0] = 0;
    for (int64_t d = 0; d < diagonals; ++d) advance<keep>(d);
    const Row<double>& end = state[diagonals % 2];
    if (end.e[U] <= zero / 2) return __builtin_inf();
    return -(__builtin_log(end.m[U]) + static_cast<double>(end.e[U]) * 0.6931471805599453);
  }

  template <bool keep>
  void advance(int64_t d) {
    const double* __restrict m = state[d % 2].m;
    const Int* __restrict e = state[d % 2].e;
    double* __restrict next_m = state[(d + 1) % 2].m;
    Int* __restrict next_e = state[(d + 1) % 2].e;
    double* __restrict bm = blank_m + d * K;
    double* __restrict lm = label_m + d * K;
    const Int* __restrict be = blank_e + d * K;
    const Int* __restrict le = label_e + d * K;
    const int64_t count = K;
#pragma omp simd
    for (int64_t u = 0; u < count; ++u) {
      // the sum of many zeros must not wrap
      const Int e_blank = larger(e[u] + be[u], zero), e_label = larger(e[u - 1] + le[u], zero);
      const Int e_sum = larger(e_blank, e_label);
      const double by_blank = m[u] * bm[u] * pow2<double>(e_blank - e_sum);
      const double by_label = m[u - 1] * lm[u] * pow2<double>(e_label - e_sum);
      double sum = by_blank + by_label;
      if constexpr (keep) {
        const double of_sum = 1 / sum;
        bm[u] = by_blank * of_sum;
        lm[u] = by_label * of_sum;
      }
      Int exponent = e_sum;
      normalise(sum, exponent);
      next_m[u] = sum;
      next_e[u] = exponent;
    }
  }

  // From shares to how often each way is taken, with g(d, u) the visits of cells, g(T+U, U) = 1:
  //   taken = share * g(d+1, u),   g(d, u) = taken by blank (to u) + taken by label (to u + 1).
  // A cell that no path reaches has shares too, of nothing: none of the visits ever come to it.
  void retreat() {
    for (int64_t u = 0; u < K; ++u) visits[u] = u == U;
    for (int64_t d = diagonals - 1; d >= 0; --d) {
      double* __restrict bm = blank_m + d * K;
      double* __restrict lm = label_m + d * K;
      const double* __restrict g = visits;
      double* __restrict before = visits_before;
      const int64_t count = K;
#pragma omp simd
      for (int64_t u = 0; u < count; ++u) bm[u] *= g[u], lm[u] *= g[u];
#pragma omp simd
      for (int64_t u = 0; u < count; ++u) before[u] = bm[u] + lm[u + 1];
      visits_before = visits, visits = before;
    }
  }

  // Back from diagonals to frames. What is too small to be felt in any gradient counts as never.
  void write(In* cells) const {
    constexpr double never = sizeof(In) == 4 ? 1e-30 : 1e-250;
    const int64_t count = U + 1;
    for (int64_t t = 0; t < T; ++t) {
      In* frame = cells + t * numbers_per_cell * count;
      for (int64_t u = 0; u <= U; ++u) {
        const int64_t at = (t + u) * K + u;
        const double blank = blank_m[at], label = u < U ? label_m[at + 1] : 0;
        frame[u] = blank > never ? static_cast<In>(blank) : 0;
        frame[count + u] = label > never ? static_cast<In>(label) : 0;
      }
    }
  }

  void clear(In* cells) const {
    const int64_t count = U + 1;
    for (int64_t t = 0; t < T; ++t)
      for (int64_t i = 0; i < 2 * count; ++i) cells[t * numbers_per_cell * count + i] = 0;
  }
};

template <class In>
bool run_transducer(int64_t T, int64_t U, void* cells_at, double* loss, bool occupancies,
                    Scratch& scratch) {
  In* cells = static_cast<In*>(cells_at);
  TransducerLattice<In> lattice(T, U);
  if (!lattice.take(scratch)) return false;
  lattice.fill(cells);
  *loss = occupancies ? lattice.template run<true>() : lattice.template run<false>();
  if (!occupancies) return true;
  if (*loss < __builtin_inf()) {
    lattice.retreat();
    lattice.write(cells);
  } else {
    lattice.clear(cells);
  }
  return true;
}

}  // namespace BRCTC_ISA
}  // namespace brctc
