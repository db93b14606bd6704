// The CTC criteria as Python sees them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <tuple>
#include <vector>

#include "ctc_input.h"
#include "kernels.h"
#include "memory.h"
#include "parallel.h"
#include "tensors.h"

namespace nb = nanobind;

namespace brctc {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

void fill(void* data, int64_t first, int64_t count, double value, bool is_double) {
  if (is_double)
    std::fill_n(static_cast<double*>(data) + first, count, value);
  else
    std::fill_n(static_cast<float*>(data) + first, count, static_cast<float>(value));
}

// Room for a dense gradient, (T, N, C) or, where the input was batch-major, (N, T, C). It goes back
// to the pool with its tensor: fresh pages at every call would cost more than what is written there.
class Dense {
 public:
  Dense(const Input& in, const double* weight)
      : batch_(in.batch), is_double_(in.is_double), block_(acquire(size())) {
    if (!block_.data) throw std::bad_alloc();
    const bool batch_major = batch_.stride_n > batch_.stride_t;
    const int64_t outer = batch_.C * (batch_major ? batch_.T : batch_.N);
    gradient = {block_.data, batch_major ? batch_.C : outer, batch_major ? outer : batch_.C, weight};
  }
  Dense(const Dense&) = delete;
  ~Dense() {
    if (block_.data) release(block_);
  }

  Gradient gradient;

  // NaN in the frames of utterances that could not be computed: what is made of it shows that. Of those that
  // nothing comes back for, `upstream` being zero, nothing is made.
  void spoil(const std::vector<int64_t>& failed, const double* upstream = nullptr) {
    for (const int64_t n : failed) {
      const double value = upstream && upstream[n] == 0 ? 0 : nan;
      for (int64_t t = 0; t < batch_.T; ++t) {
        const int64_t row = t * gradient.stride_t + n * gradient.stride_n;
        fill(block_.data, row, batch_.C, t < batch_.input_lengths[n] ? value : 0, is_double_);
      }
    }
  }

  nb::object tensor() {
    const Block block = block_;
    block_ = {};
    return lend(block, {batch_.T, batch_.N, batch_.C}, {gradient.stride_t, gradient.stride_n, 1}, is_double_);
  }

 private:
  const Batch& batch_;
  int is_double_;
  Block block_;
  size_t size() const { return static_cast<size_t>(batch_.T * batch_.N * batch_.C) * (is_double_ ? 8 : 4); }
};

// torch.nn.CTCLoss's reductions: "mean" divides each loss by its target length, then by the batch; "batchmean"
// by the batch alone. Here, and not only in brctc/kernels/reduction.py, since five small operators cost as much as the loss of a small batch.
struct Reduction {
  bool sums, by_length, by_batch, zero_infinity;
  Reduction(const char* kind, bool zero_infinity_)
      : sums(std::strcmp(kind, "none") != 0),
        by_length(std::strcmp(kind, "mean") == 0),
        by_batch(by_length || std::strcmp(kind, "batchmean") == 0),
        zero_infinity(zero_infinity_) {}
};

// What each loss counts in the reduced one.
std::vector<double> loss_weights(const Reduction& reduction, const int64_t* target_lengths, int64_t N) {
  std::vector<double> weights(static_cast<size_t>(N), reduction.by_batch ? 1.0 / static_cast<double>(N) : 1.0);
  if (reduction.by_length)
    for (int64_t n = 0; n < N; ++n)
      weights[static_cast<size_t>(n)] = 1.0 / static_cast<double>(N * std::max<int64_t>(target_lengths[n], 1));
  return weights;
}

// In the scores' own format.
void write(const std::vector<double>& values, Address result, bool is_double) {
  for (size_t i = 0; i < values.size(); ++i)
    if (is_double)
      reinterpret_cast<double*>(result)[i] = values[i];
    else
      reinterpret_cast<float*>(result)[i] = static_cast<float>(values[i]);
}

// Writes the losses, or their weighed sum.
void write_losses(std::vector<double>& losses, const std::vector<double>& weights, const Reduction& reduction,
                  Address result, bool is_double) {
  double total = 0;
  for (size_t n = 0; n < losses.size(); ++n) {
    if (reduction.zero_infinity && losses[n] > 1e300) losses[n] = 0;
    total += weights[n] * losses[n];
  }
  if (reduction.sums) losses.assign(1, total);
  write(losses, result, is_double);
}

// The losses (N), or their sum or mean, and the gradient of what was asked for. An utterance with an
// infinite loss counts as zero if wanted, and has no gradient.
nb::object loss(const Input& in, int risk, double factor, const char* kind, bool zero_infinity,
                Address result, bool gradient) {
  const Batch& b = in.batch;
  const Reduction reduction(kind, zero_infinity);
  const std::vector<double> weights = loss_weights(reduction, b.target_lengths, b.N);
  std::vector<double> losses(weights.size());
  std::optional<Dense> dense;
  if (gradient) dense.emplace(in, weights.data());
  const Gradient out = dense ? dense->gradient : Gradient{};
  const std::vector<int64_t> failed = in.run([&](int64_t n, BadFrame bad, const Team& team) {
    kernels().loss[in.is_double](b, n, static_cast<Risk>(risk), factor, losses.data(), out, bad, team);
  });
  for (const int64_t n : failed) losses[static_cast<size_t>(n)] = nan;
  if (dense) dense->spoil(failed);
  write_losses(losses, weights, reduction, result, in.is_double);
  return dense ? dense->tensor() : nb::none();
}

void groups(const Input& in, bool at_start, int64_t U_max, Address log_share,
            Address log_likelihood) {
  std::vector<double> likelihoods(static_cast<size_t>(in.batch.N));
  const Groups out{at_start ? Event::start : Event::end, U_max, reinterpret_cast<void*>(log_share),
                   likelihoods.data()};
  const std::vector<int64_t> failed = in.run([&](int64_t n, BadFrame bad, const Team& team) {
    kernels().groups[in.is_double](in.batch, n, out, bad, team);
  });
  const int64_t size = U_max * in.batch.T;
  for (const int64_t n : failed) {  // no groups, and nothing is known of all paths
    likelihoods[static_cast<size_t>(n)] = nan;
    fill(out.log_share, n * size, size, -std::numeric_limits<double>::infinity(), in.is_double);
  }
  write(likelihoods, log_likelihood, in.is_double);
}

nb::object groups_backward(const Input& in, bool at_start, int64_t U_max, Address grad_share,
                           Address grad_likelihood) {
  const Groups grad{at_start ? Event::start : Event::end, U_max, reinterpret_cast<void*>(grad_share),
                    reinterpret_cast<double*>(grad_likelihood)};
  // what the core finds is a loss's gradient, and these are log-probabilities
  const std::vector<double> weights(static_cast<size_t>(in.batch.N), -1.0);
  Dense dense(in, weights.data());
  const std::vector<int64_t> failed = in.run([&](int64_t n, BadFrame bad, const Team& team) {
    kernels().groups_backward[in.is_double](in.batch, n, grad, dense.gradient, bad, team);
  });
  dense.spoil(failed, grad.log_likelihood);
  return dense.tensor();
}

void weigh(Address log_share, Address log_risk, std::tuple<int64_t, int64_t, int64_t> risk_strides,
           std::tuple<int64_t, int64_t, int64_t> shape, Address log_likelihood, Address tokens, Address token_weights,
           bool last_only, const char* kind, bool zero_infinity, Address result, Address grad_likelihood, Address grad_share,
           bool is_double, int threads) {
  const Reduction reduction(kind, zero_infinity);
  auto at = [](Address address) { return reinterpret_cast<void*>(address); };
  const auto [stride_n, stride_u, stride_t] = risk_strides;
  const auto [N, U, T] = shape;
  const auto* counts = static_cast<const int64_t*>(at(tokens));
  const std::vector<double> weights = loss_weights(reduction, counts, N);
  std::vector<double> losses(weights.size());
  const Weighing w{at(log_share), at(log_risk), stride_n, stride_u, stride_t, U, T, at(log_likelihood), counts,
                   static_cast<const double*>(at(token_weights)), last_only, weights.data(), losses.data(), static_cast<double*>(at(grad_likelihood)),
                   at(grad_share)};
  {
    nb::gil_scoped_release free;
    const int useful = useful_threads(N * U * T, threads);
    for_each_utterance(N, N < useful ? static_cast<int>(N) : useful,
                       [&](int64_t n, const Team&) { kernels().weigh[is_double](w, n); });
  }
  write_losses(losses, weights, reduction, result, is_double);
}

// The peaks (N, U) of plain log_share (N, U, T); false if it is not that.
bool peaks(nb::handle log_share, double tolerance, nb::handle out) {
  View share, found;
  if (!look(log_share, share) || !is_float(share) || share.ndim != 3 || share.strides[2] != 1 ||
      share.strides[1] != share.shape[2] || share.strides[0] != share.shape[1] * share.shape[2])
    return false;
  const int64_t rows = share.shape[0] * share.shape[1];
  if (!look(out, found) || !is_integers(found) || found.ndim != 2 || found.shape[0] * found.shape[1] != rows)
    return false;
  const nb::gil_scoped_release free;
  kernels().peaks[share.dtype.bits == 64](share.data, rows, share.shape[2], tolerance,
                                          static_cast<int64_t*>(found.data));
  return true;
}

// The largest of the first scores of the first frame, of plain tensors; 0 of others.
double first_scores(nb::handle scores) {
  View v;
  if (!look(scores, v) || !is_float(v) || v.ndim != 3 || v.strides[2] != 1) return 0;
  if (v.shape[0] == 0 || v.shape[1] == 0) return 0;
  const int64_t count = std::min<int64_t>(v.shape[2], 1024);  // enough to tell, and no time
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t c = 0; c < count; ++c)
    largest = std::max(largest, v.dtype.bits == 64 ? static_cast<const double*>(v.data)[c]
                                                   : static_cast<double>(static_cast<const float*>(v.data)[c]));
  return largest;
}

void best_path(const Input& in, Address path, Address start, Address end, int64_t U_max,
               Address score, Address wild, double price) {
  const Alignment out{reinterpret_cast<int64_t*>(path), reinterpret_cast<int64_t*>(start),
                      reinterpret_cast<int64_t*>(end), reinterpret_cast<double*>(score), U_max,
                      reinterpret_cast<const uint8_t*>(wild), price};
  in.run([&](int64_t n, BadFrame bad, const Team& team) {
    kernels().best_path[in.is_double](in.batch, n, out, bad, team);
  }, false);
}

}  // namespace

void bind_ctc(nb::module_& m) {
  using nb::arg;
  nb::class_<Input>(m, "Input")
      .def(nb::init<Address, int, int64_t, int64_t, int64_t, int64_t, int64_t, Address, int64_t,
                    int64_t, Address, Address, int64_t, bool, bool, int>(),
           arg("scores"), arg("is_double"), arg("T"), arg("N"), arg("C"), arg("stride_t"), arg("stride_n"),
           arg("labels"), arg("label_count"), arg("label_stride"), arg("input_lengths"), arg("target_lengths"),
           arg("blank"), arg("from_logits"), arg("nan"), arg("threads"))
      .def_static("of", &Input::of);
  m.def("are_plain", [](nb::handle scores, nb::handle targets, nb::handle input_lengths, nb::handle target_lengths,
                  nb::handle blank) {
    return Views{}.fit(scores, targets, input_lengths, target_lengths, blank);
  }, arg().none(), arg().none(), arg().none(), arg().none(), arg().none());
  m.def("loss", &loss);
  m.def("groups", &groups);
  m.def("groups_backward", &groups_backward);
  m.def("weigh", &weigh, arg("log_share"), arg("log_risk"), arg("risk_strides"), arg("shape"), arg("log_likelihood"),
        arg("tokens"), arg("token_weights"), arg("last_only"), arg("reduction"), arg("zero_infinity"), arg("result"),
        arg("grad_likelihood"), arg("grad_share"), arg("is_double"), arg("threads"));
  m.def("peaks", &peaks);
  m.def("first_scores", &first_scores);
  m.def("best_path", &best_path);
}

}  // namespace brctc
