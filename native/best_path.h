// The most probable path, ali(l, x), and the frames of its tokens.
//
// A path is in label u, u = 1..U, or in gap u, u = 0..U, behind it. A gap holds blanks; a wild one also whatever
// was not transcribed: any class, for a price. Nothing is pointed back to: where a path came from is seen from the
// scores of the frame before. Of these every one is kept, or, of long utterances, every so many; the others are
// found again, near the path alone.
#pragma once
#include "emissions.h"

namespace brctc {
inline namespace BRCTC_ISA {

constexpr double none = -__builtin_inf();

// Scores of all labels and gaps at one frame, added up in double for both formats: T roundings must not pick
// the path.
struct PathScores {
  double *label, *gap;  // 0..U; label 0 is impossible
  int64_t first;        // of what is kept

  void clear(int64_t count) {
    for (int64_t u = 0; u < count; ++u) label[u] = gap[u] = none;
  }
  void copy(const PathScores& from, int64_t u, int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(double);
    first = u;
    __builtin_memcpy(label, from.label + (u - from.first), bytes);
    __builtin_memcpy(gap, from.gap + (u - from.first), bytes);
  }
  double label_at(int64_t u) const { return u < first ? none : label[u - first]; }
  double gap_at(int64_t u) const { return u < first ? none : gap[u - first]; }
};

template <class In>
struct PathSearch {
  static constexpr int64_t most_kept = int64_t{1} << 21;  // numbers: 16 MB
  const Utterance<In>& utt;
  const uint8_t* wild;  // (U + 1), or null
  double price;
  int64_t T, U, W;
  int64_t step;            // frames from one kept row to the next
  PathScores state[2];     // of this frame and of the next
  double *kept, *again;    // rows: every `step` frames; of the frames between two of them
  double *skip, *own;      // per label: 0 where it may follow the label before at once; a frame's emissions
  double normaliser = 0;

  PathSearch(const Utterance<In>& utterance, const uint8_t* wild_, double price_)
      : utt(utterance), wild(wild_), price(price_), T(utt.T), U(utt.U), W(utt.U + 1) {
    const int64_t few = U / 16;
    step = T * 2 * W <= most_kept ? 1 : few < 64 ? 64 : few > 1024 ? 1024 : few;
  }

  bool take(Scratch& scratch) {
    Arena measure{nullptr};
    lay_out(measure);
    Arena arena{reserve(scratch, measure.used)};
    if (!arena.base) return false;
    lay_out(arena);
    for (auto& row : state) row.first = 0, row.clear(W);
    for (int64_t u = 0; u <= U; ++u) skip[u] = u > 1 && utt.labels[u - 1] != utt.labels[u - 2] ? 0 : none;
    return true;
  }

  void lay_out(Arena& arena) {
    for (auto& row : state) row.label = arena.take<double>(W), row.gap = arena.take<double>(W);
    skip = arena.take<double>(W), own = arena.take<double>(W);
    kept = arena.take<double>(((T + step - 1) / step) * 2 * W);
    again = arena.take<double>(step > 1 ? step * 2 * (step + 1) : 0);
  }

  // What a frame says of gaps.
  struct Frame {
    const In* row;
    double blank, anything;  // what a gap is worth; a wild one
  };
  Frame frame(int64_t t) const {
    const In* row = utt.scores + t * utt.stride_t;
    const double blank = static_cast<double>(row[utt.blank]);
    const double best = wild ? static_cast<double>(row_maximum(row, utt.C)) - price : blank;
    return {row, blank, best > blank ? best : blank};
  }

  // From frame t - 1 to frame t, labels and gaps u = first .. last, with y the emissions of frame t:
  //   label'[u] = y[u] + max(label[u], gap[u-1], label[u-1] if it is another class)
  //   gap'[u] = y_gap + max(gap[u], label[u])
  bool advance(int64_t t, int64_t first, int64_t last, const PathScores& now, const PathScores& next) {
    const Frame at = frame(t);
    const int64_t* __restrict labels = utt.labels;
    const In* __restrict row = at.row;
    double* __restrict y = own;
    constexpr double most = __builtin_inf();
    int wrong = !(at.blank < most);
    const int64_t from = first > 1 ? first : 1;
#pragma omp simd reduction(| : wrong)
    for (int64_t u = from; u <= last; ++u) {
      y[u] = static_cast<double>(row[labels[u - 1]]);
      wrong |= !(y[u] < most);
    }
    if (wrong) return false;
    const double* __restrict label = now.label - now.first;
    const double* __restrict gap = now.gap - now.first;
    const double* __restrict skips = skip;
    double* __restrict next_label = next.label - next.first;
    double* __restrict next_gap = next.gap - next.first;
    if (first == 0) next_label[0] = none, next_gap[0] = gap[0] + (wild && wild[0] ? at.anything : at.blank);
    const double blank = at.blank;
#pragma omp simd
    for (int64_t u = from; u <= last; ++u) {
      const double skipped = label[u - 1] + skips[u];
      const double came = skipped > gap[u - 1] ? skipped : gap[u - 1];
      next_label[u] = y[u] + (came > label[u] ? came : label[u]);
      next_gap[u] = blank + (gap[u] > label[u] ? gap[u] : label[u]);
    }
    if (wild && at.anything > blank)
      for (int64_t u = from; u <= last; ++u)
        if (wild[u]) next_gap[u] = at.anything + (gap[u] > label[u] ? gap[u] : label[u]);
    return true;
  }

  // Labels that can have begun at frame t, and those that leave time for the rest.
  int64_t first_at(int64_t t) const { return U - (T - 1 - t) > 0 ? U - (T - 1 - t) : 0; }
  int64_t last_at(int64_t t) const { return t + 1 < U ? t + 1 : U; }

  PathScores kept_row(int64_t t) const {
    double* row = kept + t / step * 2 * W;
    return {row, row + W, 0};
  }

  // The first frame that cannot be read, or all_read.
  int64_t run() {
    PathScores &now = state[0], &next = state[1];
    now.gap[0] = 0;  // before the first frame
    for (int64_t t = 0; t < T; ++t) {
      if (utt.from_logits) {
        In shift, sum;
        if (!softmax_row(utt.scores + t * utt.stride_t, utt.C, shift, sum)) return t;
        normaliser += static_cast<double>(shift) + __builtin_log(static_cast<double>(sum));
      }
      if (!advance(t, first_at(t), last_at(t), now, next)) return t;
      const PathScores done = now;
      now = next, next = done;
      if (t == 0) next.gap[0] = none;
      if (t % step == 0) kept_row(t).copy(now, 0, W);
    }
    return all_read;
  }

  // The better of the last gap and the last label.
  bool ends_in_label() const { return U > 0 && state[0].label[U] > state[0].gap[U]; }
  double total() const { return ends_in_label() ? state[0].label[U] : state[0].gap[U]; }

  // The scores of frame t, if they were kept or found again by find_rows.
  PathScores row_at(int64_t t, int64_t first) const {
    if (t % step == 0) return kept_row(t);
    double* row = again + t % step * 2 * (step + 1);
    return {row, row + step + 1, first};
  }

  // Finds the rows between two kept ones again, for labels first .. last: who is at `last` in the end has come
  // from nowhere else.
  void find_rows(int64_t t, int64_t first, int64_t last) {
    const int64_t begin = t / step * step;
    PathScores now{state[0].label, state[0].gap, first}, next{state[1].label, state[1].gap, first};
    const int64_t count = last - first + 1;
    PathScores start = kept_row(begin);
    now.copy(start, first, count);
    next.clear(count);
    for (int64_t k = begin + 1; k <= t; ++k) {
      // the label before the first one is out of sight: what comes from there comes nowhere near the path
      const int64_t from = first_at(k) > first ? first_at(k) : first + (first > 0);
      const int64_t to = last < last_at(k) ? last : last_at(k);
      advance(k, from, to, now, next);
      const PathScores done = now;
      now = next, next = done;
      row_at(k, first).copy(now, first, count);
    }
  }

  // Follows the path back from its end. Ties go to the earlier label or gap, which puts tokens as late as the
  // tie allows. -1 stands for what was not transcribed.
  void trace(int64_t* path, int64_t* start, int64_t* end) {
    int64_t u = U, first = 0;
    bool in_label = ends_in_label();
    for (int64_t t = T - 1;; --t) {
      if (in_label) {
        path[t] = utt.labels[u - 1];
        if (end[u - 1] < 0) end[u - 1] = t + 1;
        start[u - 1] = t;
      } else {
        const Frame at = frame(t);
        path[t] = wild && wild[u] && at.anything > at.blank ? -1 : utt.blank;
      }
      if (t == 0) return;
      if (step > 1 && (t == T - 1 || (t - 1) % step == step - 1)) {
        first = u - step > 0 ? u - step : 0;
        find_rows(t - 1, first, u);
      }
      const PathScores before = row_at(t - 1, first);
      if (!in_label) {
        const double stay = before.gap_at(u), left = u > 0 ? before.label_at(u) : none;
        in_label = left >= stay && left > none;
        continue;
      }
      double best = before.label_at(u);
      const double gap = before.gap_at(u - 1);
      const double label = u > 1 ? before.label_at(u - 1) + skip[u] : none;
      int64_t back = 0;
      if (gap >= best && gap > none) best = gap, back = 1, in_label = false;
      if (label >= best && label > none) back = 1, in_label = true;
      u -= back;
    }
  }
};

template <class In>
void run_best_path(const Batch& batch, int64_t n, const Alignment& out, BadFrame bad, const Team& team) {
  if (team.rank != 0) return;
  const Utterance<In> utt(batch, n, nullptr);
  int64_t* path = out.path + n * batch.T;
  int64_t* start = out.start + n * out.U_max;
  int64_t* end = out.end + n * out.U_max;
  for (int64_t t = 0; t < batch.T; ++t) path[t] = -1;
  for (int64_t u = 0; u < out.U_max; ++u) start[u] = end[u] = -1;
  out.score[n] = utt.U ? none : 0;
  if (utt.T == 0) return;
  PathSearch<In> search(utt, out.wild ? out.wild + n * (out.U_max + 1) : nullptr, out.price);
  bad[n] = no_memory;
  if (!search.take(*team.scratch)) return;
  bad[n] = search.run();
  if (bad[n] != all_read) return;
  out.score[n] = search.total() - search.normaliser;
  if (search.total() != none) search.trace(path, start, end);
}

}  // namespace BRCTC_ISA
}  // namespace brctc
