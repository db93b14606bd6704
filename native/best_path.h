// The most probable path, ali(l, x), and the frames of its tokens.
//
// States s = 0..S-1, S = 2U+1: even ones are blanks, state 2u+1 is token u, from 0.
#pragma once
#include "emissions.h"

namespace brctc {
inline namespace BRCTC_ISA {

// Scores are added up in double for both formats: T roundings must not pick the path. Ties go to
// the earlier predecessor state, which puts tokens as late as the tie allows.
template <class In>
struct PathSearch {
  static constexpr double none = -__builtin_inf();
  const Utterance<In>& utt;
  int64_t T, U, S;
  double *now, *next;   // scores of the states, behind two cells that stay impossible
  uint8_t* came_from;   // (T, S): how many states back
  double normaliser = 0;

  explicit PathSearch(const Utterance<In>& utterance)
      : utt(utterance), T(utt.T), U(utt.U), S(2 * utt.U + 1) {}

  bool take(Scratch& scratch) {
    Arena measure{nullptr};
    lay_out(measure);
    Arena arena{reserve(scratch, measure.used)};
    if (!arena.base) return false;
    lay_out(arena);
    for (double* row : {now, next})
      for (int64_t s = -2; s < S; ++s) row[s] = none;
    return true;
  }

  void lay_out(Arena& arena) {
    now = arena.take<double>(S + 2), next = arena.take<double>(S + 2);
    if (arena.base) now += 2, next += 2;
    came_from = arena.take<uint8_t>(T * S);
  }

  // One frame, with y the scores of its states:
  //   next[s] = y[s] + max(now[s], now[s-1], now[s-2] if s is a token that differs from the one before)
  // and in the first frame next[s] = y[s] for s = 0, 1. False if the frame cannot be read.
  bool advance(int64_t t) {
    const In* row = utt.scores + t * utt.stride_t;
    if (utt.from_logits) {
      In shift, sum;
      if (!softmax_row(row, utt.C, shift, sum)) return false;
      normaliser += static_cast<double>(shift) + __builtin_log(static_cast<double>(sum));
    }
    for (int64_t s = 0; s < S; ++s) {
      const bool label = s % 2;
      const int64_t token = s / 2;
      const double emission = row[label ? utt.labels[token] : utt.blank];
      if (!(emission < -none)) return false;
      double best = now[s];
      uint8_t step = 0;
      if (now[s - 1] >= best && now[s - 1] > none) best = now[s - 1], step = 1;
      const bool skips = label && token > 0 && utt.labels[token] != utt.labels[token - 1];
      if (skips && now[s - 2] >= best && now[s - 2] > none) best = now[s - 2], step = 2;
      if (t == 0) best = s < 2 ? 0 : none, step = 0;
      next[s] = best + emission;
      came_from[t * S + s] = step;
    }
    double* kept = now;
    now = next, next = kept;
    return true;
  }

  // The better of the last blank and the last token.
  int64_t last_state() const { return U > 0 && now[S - 2] > now[S - 1] ? S - 2 : S - 1; }

  // Follows the path back from its last state.
  void trace(int64_t s, int64_t* path, int64_t* start, int64_t* end) const {
    for (int64_t t = T - 1; t >= 0; --t) {
      const int64_t token = s / 2;
      path[t] = s % 2 ? utt.labels[token] : utt.blank;
      if (s % 2) {
        if (end[token] < 0) end[token] = t + 1;
        start[token] = t;
      }
      s -= came_from[t * S + s];
    }
  }
};

template <class In>
void run_best_path(const Batch& batch, int64_t n, const Alignment& out, BadFrame bad, const Team& team) {
  if (team.rank != 0) return;
  const Utterance<In> utt(batch, n, nullptr);
  PathSearch<In> search(utt);
  bad[n] = no_memory;
  if (!search.take(*team.scratch)) return;
  for (int64_t t = 0; t < utt.T; ++t)
    if (!search.advance(t)) return void(bad[n] = t);
  bad[n] = all_read;
  int64_t* path = out.path + n * batch.T;
  int64_t* start = out.start + n * out.U_max;
  int64_t* end = out.end + n * out.U_max;
  for (int64_t t = 0; t < batch.T; ++t) path[t] = -1;
  for (int64_t u = 0; u < out.U_max; ++u) start[u] = end[u] = -1;
  const int64_t last = search.last_state();
  out.score[n] = search.now[last] - search.normaliser;
  if (search.now[last] != search.none) search.trace(last, path, start, end);
}

}  // namespace BRCTC_ISA
}  // namespace brctc
