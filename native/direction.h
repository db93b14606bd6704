// A direction of the lattice over an utterance, and what the forms of the criterion share.
#pragma once
#include "emissions.h"

namespace brctc {
inline namespace BRCTC_ISA {

constexpr double ln2 = 0.6931471805599453;
constexpr double infinite = __builtin_inf();

// How far two threads have gone back over the blocks of a direction.
struct Relay {
  int64_t taken, done;          // blocks; done is -1 before the occupancies at the first one are there
  const void *blank, *label;    // the occupancies behind the last one that is done
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

  // Multiplies a path by exp(slope) for every frame and token that has begun by then.
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

  // Goes back over them: visit(*this, k) finds the occupancies of frame k, and may add to them.
  template <class Visit>
  void sweep_back(int64_t count, Visit visit) {
    for (int64_t i = blocks(count) - 1; i >= 0; --i) {
      if (replays(count)) replay(i, count);
      go_back(i, count, visit);
    }
  }

  // The same, block by block with another thread, which has a direction of its own. What takes half of
  // the time, to run over a block again, needs nothing of the blocks that are gone back over before.
  template <class Visit>
  void sweep_back(int64_t count, Visit visit, Relay& relay, const Team& team) {
    for (int64_t i; (i = __atomic_fetch_add(&relay.taken, 1, __ATOMIC_SEQ_CST)) < blocks(count);) {
      replay(blocks(count) - 1 - i, count);
      team.look(&relay.done, i);
      if (relay.blank != blank[now]) {
        const size_t bytes = static_cast<size_t>(K + lanes) * sizeof(Real);
        __builtin_memcpy(blank[now], relay.blank, bytes);
        __builtin_memcpy(label[now], relay.label, bytes);
      }
      go_back(blocks(count) - 1 - i, count, visit);
      pass(relay, i + 1);
    }
  }

  void pass(Relay& relay, int64_t done) const {
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

// Scratch and steps that all forms of the criterion share.
template <class Real, class In>
struct Solver {
  using Int = IntOf<Real>;
  const Utterance<In>& utt;
  const Team& team;
  int64_t T, U, K;
  Emissions<Real> emit;
  // Every rank has its own copy of these; what they point to is shared. The rank that runs a
  // direction owns it, and the others follow with chain.follow().
  Direction<Real> ahead{emit, false}, back{emit, true};
  Direction<Real> helping{emit, false};  // for the rank that is done with its own direction first
  Relay* relays;                         // one per rank
  In* occupancy;   // rows of U + 1: the blank, then the labels; one per rank, or of every frame
  int64_t* bad;    // per rank
  double* result;  // what rank 0 tells the others

  Solver(const Utterance<In>& utterance, const Team& members)
      : utt(utterance), team(members), T(utt.T), U(utt.U), K(padded(utt.U)) {}

  // Each direction will run over `steps` frames at most.
  void take(Arena& arena, int64_t steps, int64_t occupancy_rows) {
    const bool gradient = utt.gradient != nullptr;
    emit.take(arena, T, U);
    ahead.take(arena, T, U, steps, gradient);
    back.take(arena, T, U, steps, gradient);
    if (team.size > 1 && ahead.replays(steps)) helping.take(arena, T, U, steps, gradient);
    relays = arena.take<Relay>(2);
    occupancy = arena.take<In>(gradient ? occupancy_rows * (U + 1) : 0);
    bad = arena.take<int64_t>(2);
    result = arena.take<double>(1);
  }

  // False if the scores cannot be read (then `bad_frame` says where) or this format cannot hold them
  // (then it is all_read and the caller takes a wider one).
  bool fill(double extra_range, int64_t& bad_frame) {
    bad[team.rank] = emit.fill(utt, team);
    if (team.rank == 0) relays[0] = relays[1] = {0, -1, nullptr, nullptr};
    team.sync();
    bad_frame = team.size > 1 ? earlier_bad(bad[0], bad[1]) : bad[0];
    return bad_frame == all_read && emit.in_range(T, extra_range);
  }

  // Goes back over both directions, rank 0 over the first, rank 1 over the second, and who is done helps
  // the other. visit(side, k) is called with the direction that found the occupancies of its frame k.
  template <class Visit>
  void sweep_back(Direction<Real>& first, int64_t first_count, Direction<Real>& second, int64_t second_count,
                  Visit visit) {
    if (team.size == 1 || !first.replays(first_count) || !second.replays(second_count)) {
      if (team.mine(0)) first.sweep_back(first_count, visit);
      if (team.mine(1)) second.sweep_back(second_count, visit);
      return;
    }
    Direction<Real>&own = team.rank == 0 ? first : second, &other = team.rank == 0 ? second : first;
    const int64_t own_count = team.rank == 0 ? first_count : second_count;
    const int64_t other_count = team.rank == 0 ? second_count : first_count;
    Relay &own_relay = relays[team.rank], &other_relay = relays[1 - team.rank];
    own.pass(own_relay, 0);
    own.sweep_back(own_count, visit, own_relay, team);
    // only one rank can find blocks left: the other's own were all taken before it looked here
    if (__atomic_load_n(&other_relay.taken, __ATOMIC_SEQ_CST) >= other.blocks(other_count)) return;
    helping.join(other, utt.labels);
    helping.sweep_back(other_count, visit, other_relay, team);
  }

  // The logarithm of all frames' normalisers, each between 1e-30 and 1e30: one log for eight.
  double normaliser() const {
    double sum = 0, product = 1;
    for (int64_t t = 0; t < T; ++t) {
      product *= emit.normaliser[t];
      if (t % 8 == 7 || t == T - 1) sum += __builtin_log(product), product = 1;
    }
    return sum;
  }

  // An utterance without a path has no gradient.
  void clear() const {
    if (team.rank == 0) utt.clear(0);
  }
};

// All ranks carve the same pieces from the team's scratch. False if there is no memory.
template <class Take>
bool carve(const Team& team, Take take) {
  Arena measure{nullptr};
  take(measure);
  if (team.rank == 0) reserve(*team.scratch, measure.used);
  team.after_first();
  Arena arena{team.scratch->data};
  if (arena.base) take(arena);
  return arena.base != nullptr;
}

}  // namespace BRCTC_ISA
}  // namespace brctc
