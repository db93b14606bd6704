// What the algorithms are given and what they offer. Plain C++: no Python, no torch.
//
// Axes: T frames, N utterances, C classes, U labels. Everything an utterance needs is reached
// from a Batch; lengths and labels have been validated before a Batch is made.
#pragma once
#include <cstddef>
#include <cstdint>

namespace brctc {

// The path weighting that a closed form exists for. brctc/kernels/ctc/closed_form.py has the same numbers.
enum class Risk { none, early_finish, early_emission, delay_penalty };

enum class Event { end, start };

struct Batch {
  const void* scores;           // log_probs or logits, (T, N, C), innermost stride 1
  ptrdiff_t stride_t, stride_n; // in elements
  int64_t T, N, C;
  const int64_t* labels;        // all targets; utterance n starts at label_offset[n]
  const int64_t* label_offset;
  const int64_t* input_lengths;
  const int64_t* target_lengths;
  int64_t blank;
  bool from_logits;
};

// d loss / d scores, dense, written in the same pass as the loss: the softmax that the loss needs is
// most of it, and is in the cache then. Utterance n's is multiplied by weight[n].
struct Gradient {
  void* data;  // null if none is wanted
  ptrdiff_t stride_t, stride_n;  // in elements; innermost stride 1
  const double* weight;          // (N)
};

// Group posteriors, or in the backward pass the gradients that belong to them.
struct Groups {
  Event event;
  int64_t U_max;
  void* log_share;         // (N, U_max, T): log P_u(tau) - log P(l|x)
  double* log_likelihood;  // (N): log P(l|x)
};

// Per utterance the first frame whose scores cannot be read, or one of these.
using BadFrame = int64_t*;
constexpr int64_t all_read = -1, no_memory = -2, out_of_range = -3;
__attribute__((always_inline)) inline int64_t earlier_bad(int64_t a, int64_t b) {
  return a == all_read || (b != all_read && b < a) ? b : a;
}

// A block of memory that grows on demand (memory.cpp). `data` is null if there is no memory.
struct Scratch {
  char* data = nullptr;
  size_t size = 0;
};
char* reserve(Scratch&, size_t bytes);

// What two threads share (parallel.cpp), as functions that every instruction set's build can call.
struct Synchronisation {
  void (*barrier)(void* shared);
  void (*broadcast)(void* shared, int rank);
  int64_t (*fetch_piece)(void* shared);
  void (*wait_for)(const int64_t* value, int64_t least);
};

// Threads that work on one utterance together. Every rank runs the same code.
struct Team {
  int rank = 0, size = 1;
  const Synchronisation* synchronisation = nullptr;
  void* shared = nullptr;
  Scratch* scratch = nullptr;
  __attribute__((always_inline)) bool mine(int task) const { return task % size == rank; }
  // Until every rank has come here.
  __attribute__((always_inline)) void barrier() const {
    if (size > 1) synchronisation->barrier(shared);
  }
  // What rank 0 wrote before, the others see afterwards: they wait for it, and it waits for nobody. Pieces
  // are counted from 0 again.
  __attribute__((always_inline)) void broadcast() const {
    if (size > 1) synchronisation->broadcast(shared, rank);
  }
  // Until the value, which another rank stores with release, is at least that.
  __attribute__((always_inline)) void wait_for(const int64_t* value, int64_t least) const {
    synchronisation->wait_for(value, least);
  }
  // Calls work(i) for pieces i of a count, each on one rank, from both ends towards each other: who comes
  // late or is slow takes fewer.
  template <class Work>
  __attribute__((always_inline)) void divide(int64_t pieces, Work work) const {
    for (int64_t i = 0; (size > 1 ? synchronisation->fetch_piece(shared) : i) < pieces; ++i)
      work(rank == 0 ? i : pieces - 1 - i);
  }
};

// A custom risk for all groups, (N, U, T): the losses and the derivatives of their weighed sum.
struct Weighing {
  const void *log_share, *log_risk;
  int64_t stride_n, stride_u, stride_t;  // of log_risk; the last is 0 or 1
  int64_t U, T;
  const void* log_likelihood;  // (N)
  const int64_t* tokens;       // (N): how many of the U there are
  const double* token_weight;  // (N, U): what each counts, or null: all the same, 1 together
  bool last_only;              // of these, weigh the last alone
  const double* weight;        // (N)
  double *loss, *grad_likelihood;  // (N)
  void* grad_share;            // (N, U, T)
};

struct Alignment {
  int64_t* path;   // (N, T): the class of every frame
  int64_t *start, *end;  // (N, U_max): frames of token u are start .. end - 1
  double* score;   // (N)
  int64_t U_max;
  const uint8_t* wild;  // (N, U_max + 1): whether anything may be said in front of label u, or behind the last; or null
  double price;         // of a frame of anything, in nats
};

// One instruction set's build of every algorithm, for float [0] and double [1] scores.
struct Kernels {
  void (*loss[2])(const Batch&, int64_t n, Risk, double factor, double* loss, const Gradient&,
                  BadFrame, const Team&);
  void (*groups[2])(const Batch&, int64_t n, const Groups&, BadFrame, const Team&);
  // from d loss / d log_share and d loss / d log_likelihood to d loss / d scores
  void (*groups_backward[2])(const Batch&, int64_t n, const Groups&, const Gradient&, BadFrame,
                             const Team&);
  void (*weigh[2])(const Weighing&, int64_t n);
  void (*peaks[2])(const void* log_share, int64_t rows, int64_t T, double tolerance, int64_t* out);
  void (*best_path[2])(const Batch&, int64_t n, const Alignment&, BadFrame, const Team&);
};

const Kernels& kernels();           // the best build that this processor runs
const char* instruction_set();      // its name

}  // namespace brctc
