#include "parallel.h"

#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "memory.h"

namespace brctc {
namespace {

// Runs work(i) for i in [0, count) on `count` threads, this one among them.
void run_threads(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> others;
  others.reserve(static_cast<size_t>(count - 1));
  int started = 1;
  try {
    for (; started < count; ++started) others.emplace_back(work, started);
  } catch (const std::system_error&) {
    // no more threads to be had: this one takes what is left
  }
  work(0);
  for (int i = started; i < count; ++i) work(i);
  for (auto& thread : others) thread.join();
}

// Two threads and where they wait for each other. The halves of an utterance take the same time,
// so waits are short: look a while, then let others run. Sleeping would cost 50 us to wake.
class Pair {
 public:
  Scratch scratch;
  int64_t n = 0;

  static void wait(void* self) {
    auto& pair = *static_cast<Pair*>(self);
    const unsigned meeting = pair.arrived_.fetch_add(1) / 2;
    look_until([&] { return pair.arrived_.load() / 2 != meeting; });
  }

  static void follow(void* self, int rank) {
    auto& pair = *static_cast<Pair*>(self);
    if (rank == 0)
      pair.told_.fetch_add(1);
    else
      look_until([&] { return pair.told_.load() > pair.heard_; }), ++pair.heard_;
  }

 private:
  std::atomic<unsigned> arrived_{0}, told_{0};
  unsigned heard_ = 0;  // the second thread's own

  template <class Done>
  static void look_until(Done done) {
    for (int looks = 0; !done(); ++looks)
      if (looks > 2000) std::this_thread::yield();
  }
};

}  // namespace

int useful_threads(int64_t work, int allowed) {
  constexpr int64_t worth_a_thread = 131072;  // about 400 us
  const int64_t useful = 1 + work / worth_a_thread;
  if (allowed < 1) return 1;
  return useful < allowed ? static_cast<int>(useful) : allowed;
}

void for_each_utterance(int64_t N, int threads,
                        const std::function<void(int64_t, const Team&)>& work) {
  std::atomic<int64_t> next{0};
  if (threads >= 2 && N < threads) {
    const int pairs = static_cast<int>(N < threads / 2 ? N : threads / 2);
    auto run_pair = [&](int) {
      Pair pair;
      auto member = [&](int rank) {
        const Team team{rank, 2, Pair::wait, Pair::follow, &pair, &pair.scratch};
        for (;;) {
          if (rank == 0) pair.n = next++;
          team.after_first();
          const int64_t n = pair.n;
          if (n >= N) return;
          work(n, team);
          team.sync();
        }
      };
      try {
        std::thread helper(member, 1);
        member(0);
        helper.join();
      } catch (const std::system_error&) {
        const Team alone{0, 1, nullptr, nullptr, nullptr, &pair.scratch};
        for (int64_t n; (n = next++) < N;) work(n, alone);
      }
      release(pair.scratch);
    };
    return run_threads(pairs, run_pair);
  }
  run_threads(threads < 1 ? 1 : threads, [&](int) {
    Scratch scratch;
    const Team alone{0, 1, nullptr, nullptr, nullptr, &scratch};
    for (int64_t n; (n = next++) < N;) work(n, alone);
    release(scratch);
  });
}

}  // namespace brctc
