// From scores to the emission probabilities of an utterance's own labels, and back to a dense
// gradient: the only code that sees the vocabulary axis.
#pragma once
#include "lattice.h"

namespace brctc {
inline namespace BRCTC_ISA {

// Anything below counts as probability zero: exponents of a whole utterance stay exact.
constexpr double smallest_log = -1e13;

// One utterance as the algorithms see it.
template <class In>
struct Utterance {
  const In* scores;
  ptrdiff_t stride_t;
  int64_t T, U, C;
  const int64_t* labels;  // labels[u - 1] is label u
  int64_t blank;
  bool from_logits;
  In *row_shift, *row_scale, *row_exp;  // with from_logits
  Utterance(const Batch& b, int64_t n, const Forward* keep)
      : scores(static_cast<const In*>(b.scores) + n * b.stride_n),
        stride_t(b.stride_t),
        T(b.input_lengths[n]),
        U(b.target_lengths[n]),
        C(b.C),
        labels(b.labels + b.label_offset[n]),
        blank(b.blank),
        from_logits(b.from_logits),
        row_shift(keep && keep->row_shift ? static_cast<In*>(keep->row_shift) + n * b.T : nullptr),
        row_scale(keep && keep->row_shift ? static_cast<In*>(keep->row_scale) + n * b.T : nullptr),
        row_exp(keep && keep->row_exp ? static_cast<In*>(keep->row_exp) + n * b.T * b.C : nullptr) {}
};

template <class In>
static In row_maximum(const In* __restrict x, int64_t C) {
  In best = x[0];
#pragma omp simd reduction(max : best)
  for (int64_t c = 0; c < C; ++c) best = x[c] > best ? x[c] : best;
  return best;
}

// The sum of exp(x - shift); the terms go to `kept`, if that is not null.
template <class In>
static In row_sum_exp(const In* __restrict x, In shift, int64_t C, In* __restrict kept) {
  const Clamp<In> clamp;
  In sum = 0;
  if (kept) {
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < C; ++c) sum += kept[c] = exp_dense(x[c] - shift, clamp);
  } else {
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < C; ++c) sum += exp_dense(x[c] - shift, clamp);
  }
  return sum;
}

// softmax = exp(x - shift) / sum. Logits of ordinary size need no shift and no search for their
// maximum: the sum tells. False for NaN, +inf, or nothing but -inf.
template <class In>
static bool softmax_row(const In* x, int64_t C, In& shift, In& sum, In* kept = nullptr) {
  const In usual = static_cast<In>(1e30);
  shift = 0;
  sum = row_sum_exp(x, shift, C, kept);
  if (sum > 1 / usual && sum < usual) return true;
  shift = row_maximum(x, C);
  sum = row_sum_exp(x, shift, C, kept);
  return sum >= static_cast<In>(0.99) && sum < usual;
}

// Emissions of all frames: rows of K values, index 0 the blank, u label u. A plain number holds
// nearly every row; one that it cannot hold is `wide` and has exponents too.
template <class Real>
struct Emissions {
  using Int = IntOf<Real>;
  int64_t U, K;
  Real* m;
  Int* e;
  bool* wide;               // per frame
  void* gathered[2];        // one row of scores per rank
  double* normaliser;       // per frame: with from_logits, what divides every path
  double* largest;          // per frame: the largest exponent, to keep sums in range

  void take(Arena& arena, int64_t T, int64_t labels) {
    U = labels, K = padded(U);
    m = arena.take<Real>(T * K);
    wide = arena.take<bool>(T);
    for (auto& row : gathered) row = arena.take<double>(K);
    normaliser = arena.take<double>(T);
    largest = arena.take<double>(T);
    e = arena.take<Int>(T * K);  // last: memory that is rarely touched
  }

  const Real* mantissas(int64_t t) const { return m + t * K; }
  const Int* exponents(int64_t t) const { return wide[t] ? e + t * K : nullptr; }

  // Fills the rows that are this rank's. Returns the first unreadable frame, or all_read.
  template <class In>
  int64_t fill(const Utterance<In>& utt, const Team& team) {
    const int64_t half = (utt.T + team.size - 1) / team.size;
    const int64_t first = team.rank * half, last = first + half < utt.T ? first + half : utt.T;
    for (int64_t t = first; t < last; ++t)
      if (!fill_row(utt, t, static_cast<In*>(gathered[team.rank]))) return t;
    return all_read;
  }

  template <class In>
  bool fill_row(const Utterance<In>& utt, int64_t t, In* __restrict x) {
    const In* row = utt.scores + t * utt.stride_t;
    In shift = 0;
    normaliser[t] = 1;
    prefetch(utt, t + 4);
    if (utt.from_logits) {
      In sum;
      In* kept = utt.row_exp ? utt.row_exp + t * utt.C : nullptr;
      if (!softmax_row(row, utt.C, shift, sum, kept)) return false;
      if (utt.row_shift) utt.row_shift[t] = shift, utt.row_scale[t] = 1 / sum;
      normaliser[t] = static_cast<double>(sum);
    }
    x[0] = row[utt.blank];
    for (int64_t u = 1; u <= U; ++u) x[u] = row[utt.labels[u - 1]];
    for (int64_t u = U + 1; u < K; ++u) x[u] = x[0];  // whole vectors, no tail
    largest[t] = exp_limit<Real>;
    wide[t] = !convert(x, shift, m + t * K);
    if (!wide[t]) return true;
    for (int64_t u = 0; u <= U; ++u)
      if (!(x[u] < static_cast<In>(__builtin_inf()))) return false;
    largest[t] = convert_wide(x, shift, m + t * K, e + t * K);
    return true;
  }

  // exp(x - shift), with the rounding error of the difference carried along. False if there is one
  // that a plain number does not hold, NaN among them.
  template <class In>
  bool convert(const In* __restrict x, In shift, Real* __restrict row) const {
    constexpr In limit = static_cast<In>(exp_limit<Real>);
    const int64_t count = K;
    int odd = 0;
#pragma omp simd reduction(| : odd)
    for (int64_t u = 0; u < count; ++u) {
      const In d = x[u] - shift, back = d - x[u];
      const In error = (x[u] - (d - back)) - (shift + back);
      odd |= !((d < 0 ? -d : d) < limit);
      row[u] = exp_exact(static_cast<Real>(d), static_cast<Real>(error));
    }
    return !odd;
  }

  // The same for any size, probability zero among them. Returns the largest exponent.
  template <class In>
  double convert_wide(const In* x, In shift, Real* row_m, Int* row_e) const {
    double top = 0;
    for (int64_t u = 0; u < K; ++u) {
      const double d = static_cast<double>(x[u]) - static_cast<double>(shift);
      row_m[u] = 1, row_e[u] = Format<Real>::zero;
      if (!(d > smallest_log)) continue;
      const double size = d < 0 ? -d : d;
      top = size > top ? size : top;
      split_exp<Real>(d, row_m[u], row_e[u]);
    }
    return top;
  }

  // Rows are far apart in memory and cold: ask for what will be read of one ahead of time.
  template <class In>
  static void prefetch(const Utterance<In>& utt, int64_t t) {
    if (t >= utt.T || utt.from_logits) return;
    const In* row = utt.scores + t * utt.stride_t;
    constexpr int64_t line = 64 / sizeof(In);
    if (utt.C <= line * utt.U)
      for (int64_t c = 0; c < utt.C; c += line) __builtin_prefetch(row + c);
    else
      for (int64_t u = 0; u < utt.U; ++u) __builtin_prefetch(row + utt.labels[u]);
  }

  // Whether this format's exponents hold every path of the utterance.
  bool in_range(int64_t T, double extra) const {
    double sum = extra;
    for (int64_t t = 0; t < T; ++t) sum += largest[t] + 2;
    return sum * 1.4427 < static_cast<double>(Format<Real>::budget);
  }
};

// weight * (softmax - occupancy) for logits, -weight * occupancy for log_probs.
template <class In>
void gradient_row(const Batch& batch, int64_t n, int64_t t, double weight, const Forward& saved,
                  void* out) {
  In* __restrict grad = static_cast<In*>(out);
  const int64_t C = batch.C, U = batch.target_lengths[n];
  const In w = static_cast<In>(weight);
  const bool used = t < batch.input_lengths[n] && weight != 0;
  if (used && batch.from_logits) {
    const int64_t row = n * batch.T + t;
    const In scale = w * static_cast<const In*>(saved.row_scale)[row];
    if (saved.row_exp) {
      const In* __restrict kept = static_cast<const In*>(saved.row_exp) + row * C;
#pragma omp simd
      for (int64_t c = 0; c < C; ++c) grad[c] = kept[c] * scale;
    } else {
      const In* __restrict x = static_cast<const In*>(batch.scores) + n * batch.stride_n + t * batch.stride_t;
      const In shift = static_cast<const In*>(saved.row_shift)[row];
      const Clamp<In> clamp;
#pragma omp simd
      for (int64_t c = 0; c < C; ++c) grad[c] = exp_dense(x[c] - shift, clamp) * scale;
    }
  } else {
    __builtin_memset(grad, 0, static_cast<size_t>(C) * sizeof(In));
  }
  if (!used) return;
  const In* occupancy = static_cast<const In*>(saved.occupancy) + block_offset(batch, n) + t * (U + 1);
  const int64_t* labels = batch.labels + batch.label_offset[n];
  grad[batch.blank] -= w * occupancy[0];
  for (int64_t u = 0; u < U; ++u) grad[labels[u]] -= w * occupancy[u + 1];
  if (!batch.from_logits) return;
  // With logits, a frame's gradient sums to zero. Where one class has nearly all the probability and
  // nearly all the occupancy, their difference is lost in rounding, but the other classes keep
  // their digits: the main one is what they leave.
  const In half = static_cast<In>(saved.mass ? __builtin_fabs(saved.mass[n]) / 2 : 0.5);
  In most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t u = 0; u <= U; ++u) {
    const In size = occupancy[u] < 0 ? -occupancy[u] : occupancy[u];
    most = size > most ? size : most;
  }
  if (!(most > half)) return;
  int64_t main_state = 0;
  while (occupancy[main_state] != most && occupancy[main_state] != -most) ++main_state;
  const int64_t main_class = main_state ? labels[main_state - 1] : batch.blank;
  grad[main_class] = 0;
  In others = 0;
#pragma omp simd reduction(+ : others)
  for (int64_t c = 0; c < C; ++c) others += grad[c];
  grad[main_class] = -others;
}

}  // namespace BRCTC_ISA
}  // namespace brctc
