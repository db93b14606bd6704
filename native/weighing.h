// A token's groups, weighed by a risk of the user's own and summed.
#pragma once
#include "simd.h"

namespace brctc {
inline namespace BRCTC_ISA {

// log sum exp(log_share + log_risk) over T groups; -inf if no group holds a path, NaN if the risk of
// one that does is NaN or +inf. Leaves each group's part of the sum in `part`. `risk_stride` is 0 or 1.
template <class In>
double weigh_row(const void* log_share, const void* log_risk, int64_t risk_stride, int64_t T, void* part) {
  const In* __restrict share = static_cast<const In*>(log_share);
  const In* __restrict risk = static_cast<const In*>(log_risk);
  In* __restrict out = static_cast<In*>(part);
  constexpr In infinite = static_cast<In>(__builtin_inf());
  // what is smaller is nothing beside the largest, and an exp that underflows is slow
  constexpr In negligible = sizeof(In) == 4 ? -87 : -700;
  In highest = -infinite;
  int wrong = 0;
  const bool constant = risk_stride == 0;
  const In first = risk[0];
#pragma omp simd reduction(max : highest) reduction(| : wrong)
  for (int64_t t = 0; t < T; ++t) {
    const In r = constant ? first : risk[t];
    const bool there = share[t] > -infinite;
    const In weighed = there ? share[t] + r : -infinite;
    wrong |= there & !(r < infinite);
    out[t] = weighed;
    highest = weighed > highest ? weighed : highest;
  }
  if (wrong) return __builtin_nan("");
  if (highest == -infinite) {
    __builtin_memset(out, 0, static_cast<size_t>(T) * sizeof(In));
    return -static_cast<double>(infinite);
  }
  const Clamp<In> clamp;
  double sum = 0;
  constexpr int64_t block = 256;  // few enough for a plain float to add up
  for (int64_t begin = 0; begin < T; begin += block) {
    const int64_t end = begin + block < T ? begin + block : T;
    In some = 0;
#pragma omp simd reduction(+ : some)
    for (int64_t t = begin; t < end; ++t) {
      const In d = out[t] - highest;
      const In e = exp_dense(d, clamp);
      some += out[t] = d > negligible ? e : 0;
    }
    sum += static_cast<double>(some);
  }
  const In scale = static_cast<In>(1 / sum);
#pragma omp simd
  for (int64_t t = 0; t < T; ++t) out[t] *= scale;
  return static_cast<double>(highest) + __builtin_log(sum);
}

}  // namespace BRCTC_ISA
}  // namespace brctc
