// Large blocks that are kept between calls: fresh 4K pages cost more than the work done in them.
#pragma once
#include "kernels.h"

namespace brctc {

struct Block {
  char* data = nullptr;
  size_t size = 0;
};

Block acquire(size_t bytes);  // null data if there is no memory
void release(Block);
void release(Scratch&);

// Fills every block that is handed out with NaN, so that tests see reads of unwritten memory.
void poison(bool on);

}  // namespace brctc
