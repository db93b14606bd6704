// The transducer's only code that sees the vocabulary axis: from rows of logits to cells, and from
// cells to rows of the gradient.
#pragma once
#include "emissions.h"
#include "transducer.h"

namespace brctc {
inline namespace BRCTC_ISA {

// The sum of exp(x - shift) over all classes but one.
template <class In>
static In sum_others(const In* x, In shift, int64_t C, int64_t without) {
  return row_sum_exp<In>(x, shift, without, nullptr) +
         row_sum_exp<In>(x + without + 1, shift, C - without - 1, nullptr);
}

// As in softmax_row, logits of ordinary size need no shift. False for NaN, +inf, or nothing but -inf.
template <class In>
static bool read_row(const In* x, int64_t C, int64_t main_class, In& shift, In& others) {
  const In usual = static_cast<In>(1e30);
  const Clamp<In> clamp;
  shift = 0;
  for (int attempt = 0; attempt < 2; ++attempt) {
    others = sum_others(x, shift, C, main_class);
    const In sum = others + exp_dense(x[main_class] - shift, clamp);
    if (sum > 1 / usual && sum < usual) return true;
    shift = row_maximum(x, C);
  }
  return false;
}

template <class In>
bool read_frame(const Frame& frame, void* cells_at) {
  const int64_t count = frame.U + 1;
  In* cells = static_cast<In*>(cells_at);
  for (int64_t u = 0; u < count; ++u) {
    const In* row = static_cast<const In*>(frame.rows) + u * frame.stride;
    const In blank = row[frame.blank];
    const In label = u < frame.U ? row[frame.labels[u]] : static_cast<In>(-__builtin_inf());
    const int64_t main_class = label > blank ? frame.labels[u] : frame.blank;
    if (!read_row(row, frame.C, main_class, cells[2 * count + u], cells[3 * count + u])) return false;
    cells[u] = blank;
    cells[count + u] = label;
  }
  return true;
}

// weight * (visits * softmax - taken), where visits = taken[blank] + taken[label].
template <class In>
void gradient_frame(const Frame& frame, const void* cells_at, double weight, void* gradient,
                    ptrdiff_t stride) {
  const int64_t count = frame.U + 1, C = frame.C;
  const In* cells = static_cast<const In*>(cells_at);
  const Clamp<In> clamp;
  const In w = static_cast<In>(weight);
  for (int64_t u = 0; u < count; ++u) {
    const In* x = static_cast<const In*>(frame.rows) + u * frame.stride;
    In* out = static_cast<In*>(gradient) + u * stride;
    const In by_blank = cells[u], by_label = cells[count + u];
    const In visits = by_blank + by_label;
    const In shift = cells[2 * count + u], scale = w * visits * cells[3 * count + u];
    if (visits == 0 || scale == 0) {  // both: an infinite weight times zero is neither
      __builtin_memset(out, 0, static_cast<size_t>(C) * sizeof(In));
      continue;
    }
#pragma omp simd
    for (int64_t c = 0; c < C; ++c) out[c] = exp_dense(x[c] - shift, clamp) * scale;
    // A row adds up to zero. The class that is mostly taken may have nearly all the probability,
    // and the difference would be lost in rounding: it is what the others leave.
    const bool mostly_blank = u == frame.U || by_blank > by_label;
    if (u < frame.U) {
      const int64_t label = frame.labels[u];
      if (mostly_blank)
        out[label] -= w * by_label;
      else
        out[frame.blank] -= w * by_blank;
    }
    const int64_t main_class = mostly_blank ? frame.blank : frame.labels[u];
    out[main_class] = 0;
    In others = 0;
#pragma omp simd reduction(+ : others)
    for (int64_t c = 0; c < C; ++c) others += out[c];
    out[main_class] = -others;
  }
}

}  // namespace BRCTC_ISA
}  // namespace brctc
