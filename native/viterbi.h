// The most probable path, ali(l, x), and the frames of its tokens.
#pragma once
#include "emissions.h"

namespace brctc {
inline namespace BRCTC_ISA {

// Scores are added up in double for both formats: T roundings must not pick the path. Ties go to
// the earlier predecessor state, which puts tokens as late as the tie allows.
template <class In>
void run_best_path(const Batch& batch, int64_t n, const Alignment& out, BadFrame bad,
                   const Team& team) {
  if (team.rank != 0) return;
  const Utterance<In> utt(batch, n, nullptr);
  const int64_t T = utt.T, U = utt.U, S = 2 * U + 1;
  constexpr double none = -__builtin_inf();
  double* score[2];
  uint8_t* came_from;  // how many states back
  auto take = [&](Arena& arena) {
    for (auto& row : score) row = arena.take<double>(S + 2);
    came_from = arena.take<uint8_t>(T * S);
  };
  Arena measure{nullptr};
  take(measure);
  bad[n] = no_memory;
  Arena arena{reserve(*team.scratch, measure.used)};
  if (!arena.base) return;
  take(arena);
  for (auto& row : score)
    for (int64_t s = 0; s < S + 2; ++s) row[s] = none;
  // Two leading cells stay impossible.
  double *now = score[0] + 2, *next = score[1] + 2;

  bad[n] = all_read;
  double normaliser = 0;
  for (int64_t t = 0; t < T; ++t) {
    const In* row = utt.scores + t * utt.stride_t;
    if (utt.from_logits) {
      In shift, sum;
      if (!softmax_row(row, utt.C, shift, sum)) return void(bad[n] = t);
      normaliser += static_cast<double>(shift) + __builtin_log(static_cast<double>(sum));
    }
    for (int64_t s = 0; s < S; ++s) {
      const bool label = s % 2;
      const int64_t token = s / 2;
      const double emission = row[label ? utt.labels[token] : utt.blank];
      if (!(emission < -none)) return void(bad[n] = t);
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
  }

  int64_t* path = out.path + n * batch.T;
  int64_t* start = out.start + n * out.U_max;
  int64_t* end = out.end + n * out.U_max;
  for (int64_t t = 0; t < batch.T; ++t) path[t] = -1;
  for (int64_t u = 0; u < out.U_max; ++u) start[u] = end[u] = -1;
  int64_t s = U > 0 && now[S - 2] > now[S - 1] ? S - 2 : S - 1;
  out.score[n] = now[s] - normaliser;
  if (now[s] == none) return;
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

}  // namespace BRCTC_ISA
}  // namespace brctc
