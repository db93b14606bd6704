// Large blocks that are kept between calls: fresh 4K pages cost more than the work done in them.
#pragma once
#include "kernels.h"

namespace brctc {

using Block = Scratch;

Block acquire(size_t bytes);  // null data if there is no memory
void release(Block);

// Fills every block that is handed out with NaN, so that tests see reads of unwritten memory.
void poison(bool on);

}  // namespace brctc
