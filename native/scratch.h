// Pieces of scratch memory: rows of numbers that loops over whole vectors can run past.
#pragma once
#include "numbers.h"

namespace brctc {
inline namespace BRCTC_ISA {

constexpr int64_t lanes = 8;  // arrays are padded by this much on both sides
static inline int64_t padded(int64_t U) { return (U + 1 + lanes - 1) / lanes * lanes; }

// Hands out pieces of one block of scratch memory. With no block it only measures.
struct Arena {
  char* base;
  size_t used = 0;
  template <class T>
  T* take(int64_t count) {
    T* piece = base ? reinterpret_cast<T*>(base + used) : nullptr;
    used += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return piece;
  }
};

// A row of probabilities for states 0..U, with room for index -1 and for a vector's tail.
template <class Real>
struct Row {
  Real* m;
  IntOf<Real>* e;
  void take(Arena& arena, int64_t K) {
    m = arena.take<Real>(K + 2 * lanes);
    e = arena.take<IntOf<Real>>(K + 2 * lanes);
    if (m) m += lanes, e += lanes;
  }
  void clear(int64_t K) {
    for (int64_t u = -lanes; u < K + lanes; ++u) m[u] = 1, e[u] = Format<Real>::zero;
  }
};

}  // namespace BRCTC_ISA
}  // namespace brctc
