// Scratch and steps that all forms of the criterion share.
#pragma once
#include "direction.h"

namespace brctc {
inline namespace BRCTC_ISA {

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
    team.barrier();
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
    own.publish(own_relay, 0);  // opens it
    own.sweep_back(own_count, visit, own_relay, team);
    // Only one rank can find blocks left: a rank looks here after the blocks of its own direction were all
    // taken, and `taken` never falls.
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
  team.broadcast();
  Arena arena{team.scratch->data};
  if (arena.base) take(arena);
  return arena.base != nullptr;
}

}  // namespace BRCTC_ISA
}  // namespace brctc
