// Threads for the length of one call. Nothing outlives it: no pool that a fork could break, no
// spinning between calls. Starting a thread costs 20 to 80 us, so small work stays on one.
#pragma once
#include <functional>

#include "kernels.h"

namespace brctc {

// Calls work(n, team) for every n in [0, N). With fewer utterances than threads, two threads
// work on one. Results do not depend on the number of threads.
void for_each_utterance(int64_t N, int threads, const std::function<void(int64_t, const Team&)>& work);

// How many of the allowed threads this much work (in lattice cells) deserves.
int useful_threads(int64_t work, int allowed);

}  // namespace brctc
