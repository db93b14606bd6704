// Threads that wait, asleep, from one call to the next: to start one and to end it takes 100 us, to wake
// it 10. It is 50 until it runs, so small work stays on one thread. After a fork there are new ones.
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
