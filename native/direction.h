// A direction of the lattice over an utterance: forwards over frames, then back with occupancies.
#pragma once
#include "emissions.h"

namespace brctc {
inline namespace BRCTC_ISA {

constexpr double ln2 = 0.6931471805599453;
constexpr double infinite = __builtin_inf();

// How two threads go back over the blocks of one direction. Blocks are numbered from the last one, 0, to
// the first. A thread takes a block, finds its shares again (half of the time, and independent of other
// blocks), waits for its turn, and goes back over it:
//   1. i = taken++                      sequentially consistent: each block has one taker
//   2. replay block i                   at the same time as the other thread's block
//   3. wait until done >= i             acquire: sees the occupancies of step 5, below
//   4. copy the occupancies at the end of block i, unless they are this thread's own, and go back over it
//   5. blank, label = own occupancies; done = i + 1      release, so that they are written before
// Plain fields carry the occupancies: only the thread whose turn it is writes them, and the other reads
// them after step 3. They point into their owner's rows, which it leaves alone until its next turn; that
// comes after the other's. Whoever has its direction's mass at the last frame opens the relay with done = 0.
struct Relay {
  int64_t taken, done;        // blocks; done is -1 until the relay is open
  const void *blank, *label;  // the occupancies behind the last block that is done
};

// A chain with its side of the emissions and the occupancies that flow back through it.
template <class Real>
struct Direction {
  using Int = IntOf<Real>;
  Chain<Real> chain;
  const Emissions<Real>* emit;
  bool reversed;
  int64_t T, U, K;
  Int* skip;
  Real* row_m;  // an emission row in the order of the reversed labels
  Int* row_e;
  Real *blank[2], *label[2], *injected;
  int now = 0;

  Real* saved_m;  // the chain's state at the start of each block
  Int* saved_e;

  int64_t block;  // frames whose shares are kept at a time; 0 if there is no going back

  Direction(const Emissions<Real>& emissions, bool backwards) : emit(&emissions), reversed(backwards) {}

  // `steps` frames of the T will be run over.
  void take(Arena& arena, int64_t frames, int64_t labels, int64_t steps, bool gradient) {
    T = frames, U = labels, K = padded(U);
    const int64_t bytes = steps * 6 * (K + lanes) * static_cast<int64_t>(sizeof(Real));
    block = !gradient ? 0 : bytes <= most_share_bytes ? steps : short_block;
    chain.take(arena, U, gradient ? block + 1 : 0);
    skip = arena.take<Int>(K);
    row_m = arena.take<Real>(K);
    row_e = arena.take<Int>(K);
    for (int i = 0; i < 2; ++i) {
      blank[i] = arena.take<Real>(K + lanes);
      label[i] = arena.take<Real>(K + lanes);
    }
    injected = arena.take<Real>(K + lanes);
    const int64_t saves = replays(steps) ? blocks(steps) : 0;
    saved_m = arena.take<Real>(saves * chain.state_size(K));
    saved_e = arena.take<Int>(saves * chain.state_size(K));
  }

  int64_t unit_row() const { return block ? block : -1; }
  bool replays(int64_t steps) const { return block != 0 && block < steps; }

  void begin(const int64_t* labels) {
    for (int64_t u = 0; u < K; ++u) {
      const bool follows = u >= 2 && u <= U;
      const int64_t a = reversed ? U - u : u - 1, b = reversed ? a + 1 : a - 1;
      skip[u] = follows && labels[a] != labels[b] ? 0 : Format<Real>::zero;
    }
    chain.skip = skip;
    chain.begin();
    for (int i = 0; i < 2; ++i)
      for (int64_t u = 0; u < K + lanes; ++u) blank[i][u] = label[i][u] = 0;
    for (int64_t u = 0; u < K + lanes; ++u) injected[u] = 0;
  }

  // Multiplies a path by exp(slope) for every frame and token that has begun by then: blank u and label u,
  // u tokens have. Reversed, index u stands for blank U - u and label U + 1 - u.
  void weigh(double slope) {
    for (int64_t u = 0; u < K; ++u) {
      const double begun = u > U ? 0 : static_cast<double>(reversed ? U - u : u);
      split_exp<Real>(slope * begun, chain.weights.blank.m[u], chain.weights.blank.e[u]);
      const double label = u == 0 || u > U ? 0 : static_cast<double>(token(u));
      split_exp<Real>(slope * label, chain.weights.label.m[u], chain.weights.label.e[u]);
    }
  }

  int64_t frame(int64_t k) const { return reversed ? T - 1 - k : k; }
  int64_t token(int64_t u) const { return reversed ? U + 1 - u : u; }

  // Frame number k as this direction counts.
  void advance(int64_t k, int64_t share_row) {
    const Real* m = emit->mantissas(frame(k));
    const Int* e = emit->exponents(frame(k));
    if (reversed && frame(k) < emit->reversed_from) {
      reverse(m, row_m);
      if (e) reverse(e, row_e);
      m = row_m, e = e ? row_e : nullptr;
    }
    chain.step(m, e, share_row);
  }

  template <class T>
  void reverse(const T* __restrict from, T* __restrict to) const {
    const int64_t last = U;
    to[0] = from[0];
#pragma omp simd
    for (int64_t u = 1; u <= last; ++u) to[u] = from[last + 1 - u];
    for (int64_t u = last + 1; u < K; ++u) to[u] = from[u];
  }

  // Advances over frames 0 .. count-1 and calls visit(k) after each.
  template <class Visit>
  void sweep(int64_t count, Visit visit) {
    const bool keeps = block != 0 && !replays(count);
    for (int64_t k = 0; k < count; ++k) {
      if (replays(count) && k % block == 0) {
        const int64_t at = k / block * chain.state_size(K);
        chain.save(saved_m + at, saved_e + at);
      }
      advance(k, keeps ? k : -1);
      visit(k);
    }
  }

  // Goes back over them, from count-1 to 0: visit(*this, k) finds the occupancies of frame k, and may add to them.
  template <class Visit>
  void sweep_back(int64_t count, Visit visit) {
    for (int64_t i = blocks(count) - 1; i >= 0; --i) {
      if (replays(count)) replay(i, count);
      go_back(i, count, visit);
    }
  }

  // The same, sharing the blocks with another thread, which has a direction of its own.
  template <class Visit>
  void sweep_back(int64_t count, Visit visit, Relay& relay, const Team& team) {
    for (int64_t i; (i = __atomic_fetch_add(&relay.taken, 1, __ATOMIC_SEQ_CST)) < blocks(count);) {
      replay(blocks(count) - 1 - i, count);
      team.wait_for(&relay.done, i);
      if (relay.blank != blank[now]) {
        const size_t bytes = static_cast<size_t>(K + lanes) * sizeof(Real);
        __builtin_memcpy(blank[now], relay.blank, bytes);
        __builtin_memcpy(label[now], relay.label, bytes);
      }
      go_back(blocks(count) - 1 - i, count, visit);
      publish(relay, i + 1);
    }
  }

  void publish(Relay& relay, int64_t done) const {
    relay.blank = blank[now], relay.label = label[now];
    __atomic_store_n(&relay.done, done, __ATOMIC_RELEASE);
  }

  // Gets ready to go back over blocks that another direction has run over.
  void join(const Direction& other, const int64_t* labels) {
    reversed = other.reversed, saved_m = other.saved_m, saved_e = other.saved_e;
    begin(labels);
    chain.weights = other.chain.weights, chain.injects = other.chain.injects;
  }

  int64_t blocks(int64_t count) const { return (count + block - 1) / block; }
  int64_t block_end(int64_t i, int64_t count) const { return (i + 1) * block < count ? (i + 1) * block : count; }

  // Finds the shares of a block again.
  void replay(int64_t i, int64_t count) {
    const int64_t at = i * chain.state_size(K);
    chain.restore(saved_m + at, saved_e + at);
    for (int64_t k = i * block; k < block_end(i, count); ++k) advance(k, k - i * block);
  }

  template <class Visit>
  void go_back(int64_t i, int64_t count, Visit& visit) {
    for (int64_t k = block_end(i, count) - 1; k >= i * block; --k) {
      visit(*this, k);
      if (k) retreat(k - i * block);
    }
  }

  void retreat(int64_t share_row) {
    chain.retreat(blank[now], label[now], injected, share_row, blank[now ^ 1], label[now ^ 1]);
    now ^= 1;
  }

  // The occupancy of this frame: the blanks' sum, then the labels in their own order.
  template <class Out>
  void write(Out* __restrict out) const {
    each([=](int64_t u, Real value) { out[u] = static_cast<Out>(value); });
  }

  template <class Out>
  void add(Out* __restrict out) const {
    each([=](int64_t u, Real value) { out[u] = static_cast<Out>(static_cast<Real>(out[u]) + value); });
  }

  template <class Put>
  void each(Put put) const {
    const Real* __restrict b = blank[now];
    const Real* __restrict l = label[now];
    const int64_t count = K, last = U;
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t u = 0; u < count; ++u) sum += b[u];
    put(0, sum);
    if (reversed) {
#pragma omp simd
      for (int64_t u = 1; u <= last; ++u) put(u, l[last + 1 - u]);
    } else {
#pragma omp simd
      for (int64_t u = 1; u <= last; ++u) put(u, l[u]);
    }
  }
};

}  // namespace BRCTC_ISA
}  // namespace brctc
