// From scores to the emission probabilities of an utterance's own labels, and back to a dense
// gradient: the only code that sees the vocabulary axis.
#pragma once
#include "chain.h"

namespace brctc {
inline namespace BRCTC_ISA {

// Anything below counts as probability zero: exponents of a whole utterance stay exact.
constexpr double smallest_log = -1e13;

constexpr ptrdiff_t own_cache = ptrdiff_t{2} << 20;  // bytes that stay near a core between two passes

// A frame's rows, or nothing.
template <class In>
struct Rows {
  const In *scores = nullptr, *gradient = nullptr;
};

// Asks for a row ahead of time, if there is one. Inline, or the compiler removes the call: it knows of no
// effect that this has.
template <class In>
[[gnu::always_inline]] static inline void prefetch(const In* row, int64_t C) {
  for (int64_t c = 0; row && c < C; c += 64 / sizeof(In)) __builtin_prefetch(row + c);
}

// One utterance as the algorithms see it.
template <class In>
struct Utterance {
  const In* scores;
  ptrdiff_t stride_t;
  int64_t T, U, C;
  const int64_t* labels;  // labels[u - 1] is label u
  int64_t blank;
  bool from_logits;
  int64_t T_max;
  In* gradient;  // null if none is wanted
  ptrdiff_t gradient_stride;
  In weight;       // multiplies the gradient
  In mass = 1;     // what the occupancies of a frame add up to
  bool far;        // more than stays near a core: ask for rows ahead of time
  Utterance(const Batch& b, int64_t n, const Gradient* out)
      : scores(static_cast<const In*>(b.scores) + n * b.stride_n),
        stride_t(b.stride_t),
        T(b.input_lengths[n]),
        U(b.target_lengths[n]),
        C(b.C),
        labels(b.labels + b.label_offset[n]),
        blank(b.blank),
        from_logits(b.from_logits),
        T_max(b.T),
        gradient(out && out->data ? static_cast<In*>(out->data) + n * out->stride_n : nullptr),
        gradient_stride(out ? out->stride_t : 0),
        weight(out && out->data ? static_cast<In>(out->weight[n]) : 0),
        far(T * stride_t * static_cast<ptrdiff_t>(sizeof(In)) > own_cache) {}

  In* gradient_row(int64_t t) const { return gradient ? gradient + t * gradient_stride : nullptr; }

  bool is_ahead(int64_t t) const { return far && t >= 0 && t < T; }

  // The rows of a frame that comes soon, if it is worth asking for them: the hardware sees by itself how a
  // long row goes on.
  Rows<In> rows_ahead(int64_t t) const {
    if (!is_ahead(t) || C > 1024) return {};
    return {scores + t * stride_t, gradient_row(t)};
  }

  // No gradient from frame `first` on.
  void clear(int64_t first) const {
    for (int64_t t = first; gradient && t < T_max; ++t)
      __builtin_memset(gradient_row(t), 0, static_cast<size_t>(C) * sizeof(In));
  }
};

template <class In>
static In row_maximum(const In* __restrict x, int64_t C) {
  In best = x[0];
#pragma omp simd reduction(max : best)
  for (int64_t c = 0; c < C; ++c) best = x[c] > best ? x[c] : best;
  return best;
}

// A block of vectors at a time: of single ones, half of the work would be to count them.
template <class In>
static void multiply(In* __restrict row, In scale, int64_t C) {
  constexpr int64_t block = 4 * lanes;
  int64_t c = 0;
  for (; c + block <= C; c += block)
#pragma omp simd
    for (int64_t i = 0; i < block; ++i) row[c + i] *= scale;
  for (; c < C; ++c) row[c] *= scale;
}

// The sum of exp(x - shift); the terms go to `kept`, if that is not null. What is left of the row after
// whole vectors goes through a vector of its own: one by one, they would take as long as the others.
template <class In>
[[gnu::always_inline]]  // without a shift, nothing is left of it
static inline In row_sum_exp(const In* __restrict x, In shift, int64_t C, In* __restrict kept) {
  const Clamp<In> clamp;
  const int64_t whole = C / lanes * lanes, rest = C - whole;
  In sum = 0;
  if (kept) {
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < whole; ++c) sum += kept[c] = exp_dense(x[c] - shift, clamp);
  } else {
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < whole; ++c) sum += exp_dense(x[c] - shift, clamp);
  }
  if (!rest) return sum;
  In last[lanes];
  for (int64_t i = 0; i < lanes; ++i) last[i] = i < rest ? x[whole + i] - shift : static_cast<In>(-1e30);
#pragma omp simd
  for (int64_t i = 0; i < lanes; ++i) last[i] = exp_dense(last[i], clamp);
  for (int64_t i = 0; i < rest; ++i) sum += last[i];
  for (int64_t i = 0; kept && i < rest; ++i) kept[whole + i] = last[i];
  return sum;
}

// softmax = exp(x - shift) / sum. Logits of ordinary size need no shift and no search for their
// maximum: the sum tells. False for NaN, +inf, or nothing but -inf.
template <class In>
static bool softmax_row(const In* x, int64_t C, In& shift, In& sum, In* kept = nullptr) {
  const In usual = static_cast<In>(1e30);
  shift = 0;
  sum = row_sum_exp(x, In{0}, C, kept);
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
  int64_t* main_class;      // per frame: a class with most of the probability, or -1,
  double* others;           // and what the gradient of the other classes adds up to, occupancies apart
  int64_t reversed_from;    // from this frame on, labels are kept from last to first

  void take(Arena& arena, int64_t T, int64_t labels) {
    U = labels, K = padded(U), reversed_from = T;
    m = arena.take<Real>(T * K);
    wide = arena.take<bool>(T);
    for (auto& row : gathered) row = arena.take<double>(K);
    normaliser = arena.take<double>(T);
    largest = arena.take<double>(T);
    main_class = arena.take<int64_t>(T);
    others = arena.take<double>(T);
    e = arena.take<Int>(T * K);  // last: memory that is rarely touched
  }

  const Real* mantissas(int64_t t) const { return m + t * K; }
  const Int* exponents(int64_t t) const { return wide[t] ? e + t * K : nullptr; }

  // Fills some of the rows, the other ranks the rest. Returns the first of them that is unreadable, or
  // all_read.
  template <class In>
  int64_t fill(const Utterance<In>& utt, const Team& team) {
    constexpr int64_t piece = 16;
    int64_t bad = all_read;
    team.divide((utt.T + piece - 1) / piece, [&](int64_t i) {
      const int64_t first = i * piece, end = first + piece < utt.T ? first + piece : utt.T;
      for (int64_t t = first; t < end; ++t)
        if (!fill_row(utt, t, static_cast<In*>(gathered[team.rank]))) bad = earlier_bad(bad, t);
    });
    return bad;
  }

  // Of frame t, from 0: y[0] = exp(x[blank] - shift), y[u] = exp(x[label u] - shift), u = 1..U. Of logits, every
  // path is divided by the sum of exp(x - shift) over all classes, the frame's normaliser. False if unreadable.
  template <class In>
  bool fill_row(const Utterance<In>& utt, int64_t t, In* __restrict x) {
    const In* row = utt.scores + t * utt.stride_t;
    In shift = 0;
    normaliser[t] = 1;
    if (utt.from_logits) {
      In sum;
      const Rows<In> next = utt.rows_ahead(t + 1);
      prefetch(next.scores, utt.C);
      if (!softmax_row(row, utt.C, shift, sum, utt.gradient_row(t))) return false;
      prefetch(next.gradient, utt.C);
      normaliser[t] = static_cast<double>(sum);
    } else {
      prefetch_labels(utt, t + 4);
    }
    x[0] = row[utt.blank];
    if (t < reversed_from)
      for (int64_t u = 1; u <= U; ++u) x[u] = row[utt.labels[u - 1]];
    else
      for (int64_t u = 1; u <= U; ++u) x[u] = row[utt.labels[U - u]];
    for (int64_t u = U + 1; u < K; ++u) x[u] = x[0];  // whole vectors, no tail
    largest[t] = exp_limit<Real>;
    wide[t] = !convert(x, shift, m + t * K);
    if (utt.from_logits && utt.gradient) begin_gradient(utt, t);
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

  // Of log-probabilities, only the labels are read.
  template <class In>
  [[gnu::always_inline]] static void prefetch_labels(const Utterance<In>& utt, int64_t t) {
    if (!utt.is_ahead(t)) return;
    const In* row = utt.scores + t * utt.stride_t;
    if (utt.C <= 64 / static_cast<int64_t>(sizeof(In)) * utt.U)
      prefetch(row, utt.C);
    else
      for (int64_t u = 0; u < utt.U; ++u) __builtin_prefetch(row + utt.labels[u]);
  }

  // From exp(x - shift) to weight * mass * softmax, for logits. A frame's gradient sums to zero. Where
  // one class has nearly all the probability and nearly all the occupancy, their difference is lost in
  // rounding, but the other classes keep their digits: the main one is what they leave.
  template <class In>
  void begin_gradient(const Utterance<In>& utt, int64_t t) {
    In* __restrict row = utt.gradient_row(t);
    const In sum = static_cast<In>(normaliser[t]), scale = utt.weight * utt.mass / sum;
    const int64_t C = utt.C, count = K;
    const Real* __restrict emission = m + t * K;
    Real most = 0;
#pragma omp simd reduction(max : most)
    for (int64_t u = 0; u < count; ++u) most = emission[u] > most ? emission[u] : most;
    int64_t main = -1;
    if (wide[t] || most > static_cast<Real>(sum) / 2) {
      main = row[utt.blank] > sum / 2 ? utt.blank : -1;
      for (int64_t u = 0; u < U; ++u) main = row[utt.labels[u]] > sum / 2 ? utt.labels[u] : main;
      if (main >= 0) row[main] = 0;
    }
    main_class[t] = main;
    multiply(row, scale, C);
    if (main < 0) return;
    In rest = 0;
#pragma omp simd reduction(+ : rest)
    for (int64_t c = 0; c < C; ++c) rest += row[c];
    others[t] = static_cast<double>(rest);
  }

  // Takes the occupancies of a frame off: column 0 is the blank, column u label u. Afterwards
  //   row[c] = weight * (mass * softmax[c] - sum of the occupancies whose class is c)
  // where log-probabilities have no softmax.
  template <class In>
  void finish_gradient(const Utterance<In>& utt, int64_t t, In* __restrict occupancy) const {
    In* __restrict row = utt.gradient_row(t);
    const In w = utt.weight;
    if (utt.from_logits) settle(occupancy, utt.mass);
    else __builtin_memset(row, 0, static_cast<size_t>(utt.C) * sizeof(In));
    row[utt.blank] -= w * occupancy[0];
    for (int64_t u = 0; u < U; ++u) row[utt.labels[u]] -= w * occupancy[u + 1];
    if (!utt.from_logits || main_class[t] < 0) return;
    const int64_t main = main_class[t];
    const int64_t* __restrict labels = utt.labels;
    const int64_t count = U;
    In rest = main == utt.blank ? 0 : occupancy[0];
#pragma omp simd reduction(+ : rest)
    for (int64_t u = 0; u < count; ++u) rest += labels[u] == main ? 0 : occupancy[u + 1];
    row[main] = w * rest - static_cast<In>(others[t]);
  }

  // Rounding over many frames makes occupancies drift. One that has most of the mass is better known
  // from the others.
  template <class In>
  void settle(In* __restrict occupancy, In mass) const {
    const In half = (mass < 0 ? -mass : mass) / 2;
    const int64_t last = U;
    In most = 0, sum = 0;
#pragma omp simd reduction(max : most)
    for (int64_t u = 0; u <= last; ++u) {
      const In size = occupancy[u] < 0 ? -occupancy[u] : occupancy[u];
      most = size > most ? size : most;
    }
    if (!(most > half)) return;
    int64_t main = 0;
    while (occupancy[main] != most && occupancy[main] != -most) ++main;
    occupancy[main] = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t u = 0; u <= last; ++u) sum += occupancy[u];
    occupancy[main] = mass - sum;
  }

  // Whether this format's exponents hold every path of the utterance.
  bool in_range(int64_t T, double extra) const {
    double sum = extra;
    for (int64_t t = 0; t < T; ++t) sum += largest[t] + 2;
    return sum * 1.4427 < static_cast<double>(Format<Real>::budget);
  }
};

}  // namespace BRCTC_ISA
}  // namespace brctc
