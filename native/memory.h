// Large blocks that are kept between calls: fresh 4K pages cost more than the work done in them.
#pragma once
#include <initializer_list>

#include "kernels.h"

namespace brctc {

using Block = Scratch;

Block acquire(size_t bytes);  // null data if there is no memory
void release(Block);

// Numbers that a tensor can have at most: no machine addresses more, and products of sizes do not wrap.
constexpr int64_t most_numbers = int64_t{1} << 47;

// Whether the product of sizes, none of them negative, is at most that.
inline bool fits_memory(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(product, size, &product) || product > most_numbers) return false;
  return true;
}

// Fills every block that is handed out with NaN, so that tests see reads of unwritten memory.
void poison(bool on);

}  // namespace brctc
