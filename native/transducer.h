// What the transducer's algorithms are given and what they offer. Plain C++: no Python, no torch.
//
// A cell (t, u) of an utterance is the joint network's row of logits at frame t after u labels. The
// vocabulary is seen row by row; the lattice sees four numbers per cell. Those of a frame lie
// together, one kind after the other, each for u = 0 .. U:
//     before the lattice:  logit of the blank,  logit of label u + 1,  shift,  others
//     after it:            how often the blank is taken,  the label,   shift,  scale
// where `others` is the sum of exp(x - shift) over all classes but one, the blank or the label, which
// of them has the larger logit; and the softmax is exp(x - shift) * scale. If a model is sure of that
// one, the probability of the rest still has all its digits.
#pragma once
#include "kernels.h"

namespace brctc {

constexpr int64_t numbers_per_cell = 4;

// The rows of one frame. Labels have been validated.
struct Frame {
  const void* rows;   // row u is `stride` elements behind row u - 1, innermost stride 1
  ptrdiff_t stride;
  int64_t U, C;
  const int64_t* labels;  // labels[u] leads from u to u + 1
  int64_t blank;
};

// One instruction set's build, for float [0] and double [1].
struct TransducerKernels {
  // logits to cells; false if a row holds NaN or +inf, or only -inf
  bool (*read_frame[2])(const Frame&, void* cells);
  // sums over all paths; false if there is no memory. Cells get their occupancies if wanted.
  bool (*lattice[2])(int64_t T, int64_t U, void* cells, double* loss, bool occupancies, Scratch&);
  // weight * d loss / d logits; `gradient` has its own stride and may be the rows themselves
  void (*gradient_frame[2])(const Frame&, const void* cells, double weight, void* gradient,
                            ptrdiff_t stride);
  // hidden (rows, D) = tanh(encoder (D) + prediction (rows, D))
  void (*join[2])(const void* encoder, const void* prediction, int64_t rows, int64_t D, void* hidden);
  // columns [first, last) of what join passes back, for T frames of `rows` rows each: the gradient of
  // the encoder (T, D) is written, that of the prediction (rows, D) added to
  void (*join_backward[2])(const void* hidden, const void* grad_hidden, int64_t T, int64_t rows,
                           int64_t D, int64_t first, int64_t last, void* grad_encoder,
                           void* grad_prediction);
};

const TransducerKernels& transducer_kernels();  // the best build that this processor runs

}  // namespace brctc
