#include "memory.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace brctc {
namespace {

constexpr size_t huge_page = size_t{2} << 20;
constexpr size_t kept_limit = size_t{256} << 20;  // what idle blocks may add up to

std::mutex guard;
std::vector<Block>& idle() {
  static auto* blocks = new std::vector<Block>;  // lives until the process ends
  return *blocks;
}
size_t kept = 0;
std::atomic<bool> poisoned{false};

// Another thread's fork must not leave us waiting: without the lock we go past the cache.
using Lock = std::unique_lock<std::mutex>;

Block allocate(size_t bytes) {
  const size_t unit = bytes >= huge_page ? huge_page : 4096;
  const size_t size = (bytes + unit - 1) / unit * unit;
  void* data = std::aligned_alloc(unit, size);
#ifdef __linux__
  if (data && unit == huge_page) madvise(data, size, MADV_HUGEPAGE);
#endif
  return {static_cast<char*>(data), data ? size : 0};
}

}  // namespace

Block acquire(size_t bytes) {
  if (bytes == 0) bytes = 1;
  Block block;
  if (Lock lock(guard, std::try_to_lock); lock) {
    auto& blocks = idle();
    size_t best = blocks.size();
    for (size_t i = 0; i < blocks.size(); ++i) {
      const bool fits = blocks[i].size >= bytes && blocks[i].size / 2 <= bytes + huge_page;
      if (fits && (best == blocks.size() || blocks[i].size < blocks[best].size)) best = i;
    }
    if (best < blocks.size()) {
      block = blocks[best];
      blocks.erase(blocks.begin() + static_cast<ptrdiff_t>(best));
      kept -= block.size;
    }
  }
  if (!block.data) block = allocate(bytes);
  if (block.data && poisoned) std::memset(block.data, 0xff, block.size);
  return block;
}

void release(Block block) {
  if (!block.data) return;
  if (Lock lock(guard, std::try_to_lock); lock && block.size <= kept_limit) {
    auto& blocks = idle();
    while (kept + block.size > kept_limit) {  // the oldest goes first
      kept -= blocks.front().size;
      std::free(blocks.front().data);
      blocks.erase(blocks.begin());
    }
    blocks.push_back(block);
    kept += block.size;
    return;
  }
  std::free(block.data);
}

char* reserve(Scratch& scratch, size_t bytes) {
  if (scratch.size < bytes) {
    release(scratch);
    scratch = acquire(bytes);
  }
  return scratch.data;
}

void poison(bool on) { poisoned = on; }

}  // namespace brctc
