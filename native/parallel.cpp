#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include "memory.h"

namespace brctc {
namespace {

// Spins a while, since most waits are short and sleeping costs 50 us to wake; then lets others run.
template <class Done>
void wait_until(Done done) {
  for (int spins = 0; !done(); ++spins)
    if (spins > 2000) std::this_thread::yield();
}

// A thread that sleeps until it is given work, for as long as the process lives.
class Worker {
 public:
  Worker() { std::thread([this] { serve(); }).detach(); }

  void start(std::function<void()> work) {
    work_ = std::move(work);
    given_.fetch_add(1);
    given_.notify_one();
  }
  void wait() const {
    wait_until([&] { return done_.load() == given_.load(); });
  }

 private:
  std::function<void()> work_;
  std::atomic<unsigned> given_{0}, done_{0};

  void serve() {
    for (unsigned seen = 0;; done_.store(seen)) {
      given_.wait(seen);
      ++seen;
      work_();
    }
  }
};

struct Idle {
  std::mutex guard;
  std::vector<Worker*> workers;
};
Idle* idle = new Idle;

// A forked child has none of its parent's threads, and perhaps a lock that nobody opens.
#if defined(__unix__) || defined(__APPLE__)
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { idle = new Idle; });
#endif

// This thread and others: as many as were wanted, or as could be had.
class Crew {
 public:
  explicit Crew(int wanted) {
    if (wanted <= 1) return;
    const auto others = static_cast<size_t>(wanted - 1);
    others_.reserve(others);
    {
      const std::lock_guard lock(idle->guard);
      for (auto& workers = idle->workers; others_.size() < others && !workers.empty(); workers.pop_back())
        others_.push_back(workers.back());
    }
    try {
      while (others_.size() < others) others_.push_back(new Worker);
    } catch (const std::system_error&) {
      // no more threads to be had
    }
  }
  Crew(const Crew&) = delete;
  ~Crew() {
    if (others_.empty()) return;
    const std::lock_guard lock(idle->guard);
    idle->workers.insert(idle->workers.end(), others_.begin(), others_.end());
  }

  int size() const { return 1 + static_cast<int>(others_.size()); }

  // Runs work(i) for i in [0, size()), all at once.
  void run(const std::function<void(int)>& work) {
    for (int i = 1; i < size(); ++i) others_[static_cast<size_t>(i - 1)]->start([&work, i] { work(i); });
    work(0);
    for (const Worker* other : others_) other->wait();
  }

 private:
  std::vector<Worker*> others_;
};

// What two threads that work on one utterance share.
struct Pair {
  Scratch scratch;
  int64_t n = 0;
  std::atomic<unsigned> arrived{0};  // at barriers, two at each
  std::atomic<unsigned> sent{0};     // broadcasts
  std::atomic<int64_t> pieces{0};    // that were fetched
  unsigned received = 0;             // broadcasts; the second thread's own

  static void barrier(void* shared) {
    auto& pair = *static_cast<Pair*>(shared);
    const unsigned number = pair.arrived.fetch_add(1) / 2;
    wait_until([&] { return pair.arrived.load() / 2 != number; });
  }

  static void broadcast(void* shared, int rank) {
    auto& pair = *static_cast<Pair*>(shared);
    if (rank == 0) {
      pair.pieces.store(0);
      pair.sent.fetch_add(1);
    } else {
      wait_until([&] { return pair.sent.load() > pair.received; });
      ++pair.received;
    }
  }

  static int64_t fetch_piece(void* shared) { return static_cast<Pair*>(shared)->pieces.fetch_add(1); }

  static void wait_for(const int64_t* value, int64_t least) {
    wait_until([=] { return __atomic_load_n(value, __ATOMIC_ACQUIRE) >= least; });
  }

  static constexpr Synchronisation synchronisation{barrier, broadcast, fetch_piece, wait_for};
  Team member(int rank) { return {rank, 2, &synchronisation, this, &scratch}; }
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
  const bool paired = threads >= 2 && N < threads;
  Crew crew(paired ? 2 * static_cast<int>(std::min<int64_t>(N, threads / 2)) : threads);
  if (paired && crew.size() >= 2) {
    std::vector<Pair> pairs(static_cast<size_t>(crew.size()) / 2);
    crew.run([&](int i) {
      if (static_cast<size_t>(i) >= 2 * pairs.size()) return;  // fewer than wanted, and one is left over
      Pair& pair = pairs[static_cast<size_t>(i) / 2];
      const Team team = pair.member(i % 2);
      for (;;) {
        if (team.rank == 0) pair.n = next++;
        team.broadcast();
        const int64_t n = pair.n;
        if (n >= N) return;
        work(n, team);
        team.barrier();
      }
    });
    for (Pair& pair : pairs) release(pair.scratch);
    return;
  }
  crew.run([&](int) {
    Scratch scratch;
    Team alone;
    alone.scratch = &scratch;
    for (int64_t n; (n = next++) < N;) work(n, alone);
    release(scratch);
  });
}

}  // namespace brctc
