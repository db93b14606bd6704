// What Python sees of the criterion. Plain tensors are looked into (tensors.h); of others, which
// brctc/kernels/cpu.py has checked and keeps alive, addresses arrive.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "parallel.h"
#include "tensors.h"

namespace nb = nanobind;
namespace brctc {
void bind_transducer(nb::module_&);  // transducer_bindings.cpp
}
using namespace brctc;

namespace {

using Address = uintptr_t;

// A batch of plain tensors: their shapes fit together and their memory can be read as it is.
struct Views {
  View scores, labels, input_lengths, target_lengths;
  int64_t blank;

  // False if it is not one. What is wrong, or has to be changed first, is for Python to say and do.
  bool fit(nb::handle scores_, nb::handle targets, nb::handle input_lengths_, nb::handle target_lengths_,
           nb::handle blank_) {
    if (!look(scores_, scores) || !look(targets, labels) || !look(input_lengths_, input_lengths) ||
        !look(target_lengths_, target_lengths) || !PyLong_CheckExact(blank_.ptr()))
      return false;
    if (!is_float(scores) || scores.ndim != 3 || scores.strides[2] != 1 || !is_integers(labels)) return false;
    const int64_t T = scores.shape[0], N = scores.shape[1];
    if (T < 1 || N < 1) return false;
    for (const View* lengths : {&input_lengths, &target_lengths})
      if (!is_integers(*lengths) || lengths->ndim != 1 || lengths->shape[0] != N) return false;
    if (labels.ndim == 2 && labels.shape[0] != N) return false;
    blank = PyLong_AsLongLong(blank_.ptr());
    if (blank >= 0 && blank < scores.shape[2]) return true;
    PyErr_Clear();  // of a number that is too long
    return false;
  }
};

// A Batch together with the offsets it points to.
class Input {
 public:
  Batch batch{};
  int is_double;
  int64_t label_count;
  int threads;

  // Raises for lengths and labels out of range.
  Input(Address scores, int is_double_, int64_t T, int64_t N, int64_t C, int64_t stride_t,
        int64_t stride_n, Address labels, int64_t label_count_, int64_t label_stride,
        Address input_lengths, Address target_lengths, int64_t blank, bool from_logits, int threads_)
      : is_double(is_double_),
        label_count(label_count_),
        threads(threads_),
        label_stride_(label_stride),
        offsets_(static_cast<size_t>(N)) {
    batch.scores = reinterpret_cast<const void*>(scores);
    batch.stride_t = stride_t, batch.stride_n = stride_n;
    batch.T = T, batch.N = N, batch.C = C;
    batch.labels = reinterpret_cast<const int64_t*>(labels);
    batch.input_lengths = reinterpret_cast<const int64_t*>(input_lengths);
    batch.target_lengths = reinterpret_cast<const int64_t*>(target_lengths);
    batch.blank = blank, batch.from_logits = from_logits;
    // label_stride < 0: concatenated targets. Lengths are not checked yet: no signed overflow.
    uint64_t next = 0;
    for (int64_t n = 0; n < N; ++n) {
      offsets_[static_cast<size_t>(n)] = static_cast<int64_t>(next);
      next += static_cast<uint64_t>(label_stride < 0 ? batch.target_lengths[n] : label_stride);
    }
    batch.label_offset = offsets_.data();
    if (const std::string problem = find_problem(); !problem.empty()) throw nb::value_error(problem.c_str());
  }
  Input(const Input&) = delete;

  // The same of plain tensors, or null.
  static Input* of(nb::handle scores, nb::handle targets, nb::handle input_lengths,
                   nb::handle target_lengths, nb::handle blank, bool from_logits, int threads) {
    Views v;
    if (!v.fit(scores, targets, input_lengths, target_lengths, blank)) return nullptr;
    const View &s = v.scores, &l = v.labels;
    const auto address = [](const View& view) { return reinterpret_cast<Address>(view.data); };
    const bool padded = l.ndim == 2;
    return new Input(address(s), s.dtype.bits == 64, s.shape[0], s.shape[1], s.shape[2], s.strides[0],
                     s.strides[1], address(l), padded ? l.shape[0] * l.shape[1] : l.shape[0],
                     padded ? l.shape[1] : -1, address(v.input_lengths), address(v.target_lengths), v.blank,
                     from_logits, threads);
  }

  // What is wrong with lengths or labels, or "". Nothing is read out of bounds on the way.
  std::string find_problem() const {
    const int64_t *input_lengths = batch.input_lengths, *target_lengths = batch.target_lengths;
    const auto text = [](int64_t value) { return std::to_string(value); };
    const bool padded = label_stride_ >= 0;
    const int64_t longest = padded ? label_stride_ : label_count;
    int64_t sum = 0;
    for (int64_t n = 0; n < batch.N; ++n) {
      if (input_lengths[n] < 1 || input_lengths[n] > batch.T)
        return "input_lengths[" + text(n) + "] is " + text(input_lengths[n]) + ", expected 1 to " +
               text(batch.T) + ", the frames of log_probs";
      if (target_lengths[n] < 0 || target_lengths[n] > longest)
        return "target_lengths[" + text(n) + "] is " + text(target_lengths[n]) + ", expected 0 to " +
               text(longest) + (padded ? ", the width of targets" : ", the number of targets");
      sum += target_lengths[n];
      if (!padded && sum > label_count) break;
    }
    if (!padded && sum != label_count)
      return "target_lengths ask for " + text(sum) + (sum > label_count ? " or more" : "") +
             " concatenated targets, but there are " + text(label_count);
    for (int64_t n = 0; n < batch.N; ++n)
      for (int64_t u = 0; u < target_lengths[n]; ++u) {
        const int64_t label = batch.labels[batch.label_offset[n] + u];
        if (label < 0 || label >= batch.C || label == batch.blank)
          return "label " + text(u) + " of utterance " + text(n) + " is " + text(label) + ", " +
                 (label == batch.blank ? "the blank" : "expected 0 to " + text(batch.C - 1));
      }
    return "";
  }

  // Runs `work(n, bad, team)` for all utterances and reports the first that failed. Without pairs,
  // one thread takes an utterance.
  template <class Work>
  void run(Work work, bool pairs = true) const {
    int64_t cells = 0;
    for (int64_t n = 0; n < batch.N; ++n)
      cells += batch.input_lengths[n] *
               (batch.target_lengths[n] + 1 + (batch.from_logits ? batch.C / 4 : 0));
    std::vector<int64_t> bad(static_cast<size_t>(batch.N), all_read);
    {
      nb::gil_scoped_release free;
      const int useful = useful_threads(cells, threads);
      const bool limited = !pairs && useful > batch.N;
      for_each_utterance(batch.N, limited ? static_cast<int>(batch.N) : useful,
                         [&](int64_t n, const Team& team) { work(n, bad.data(), team); });
    }
    for (int64_t n = 0; n < batch.N; ++n) {
      const int64_t frame = bad[static_cast<size_t>(n)];
      if (frame == all_read) continue;
      if (frame == no_memory) throw std::bad_alloc();
      if (frame == out_of_range)
        throw nb::value_error(("the scores or the risk factor of utterance " + std::to_string(n) +
                               " are too large to be computed with").c_str());
      const std::string what = batch.from_logits ? "logits hold NaN or +inf, or only -inf,"
                                                 : "log_probs hold NaN or +inf";
      throw nb::value_error((what + " at frame " + std::to_string(frame) + " of utterance " +
                             std::to_string(n)).c_str());
    }
  }

 private:
  int64_t label_stride_;
  std::vector<int64_t> offsets_;
};

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

// torch.nn.CTCLoss's reductions: "mean" divides each loss by its target length, then by the batch.
enum class Reduction { none, sum, mean };

// What each loss counts in the reduced one.
std::vector<double> loss_weights(int reduction, const int64_t* target_lengths, int64_t N) {
  std::vector<double> weights(static_cast<size_t>(N), 1.0);
  if (static_cast<Reduction>(reduction) == Reduction::mean)
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
void write_losses(std::vector<double>& losses, const std::vector<double>& weights, int reduction,
                  bool zero_infinity, Address result, bool is_double) {
  double total = 0;
  for (size_t n = 0; n < losses.size(); ++n) {
    if (zero_infinity && losses[n] > 1e300) losses[n] = 0;
    total += weights[n] * losses[n];
  }
  if (static_cast<Reduction>(reduction) != Reduction::none) losses.assign(1, total);
  write(losses, result, is_double);
}

// The losses (N), or their sum or mean, and the gradient of what was asked for. An utterance with an
// infinite loss counts as zero if wanted, and has no gradient.
nb::object loss(const Input& in, int risk, double risk_factor, int reduction, bool zero_infinity,
                Address result, bool gradient) {
  const Batch& b = in.batch;
  const std::vector<double> weights = loss_weights(reduction, b.target_lengths, b.N);
  std::vector<double> losses(weights.size());
  std::optional<Dense> dense;
  if (gradient) dense.emplace(in, weights.data());
  const Gradient out = dense ? dense->gradient : Gradient{};
  in.run([&](int64_t n, BadFrame bad, const Team& team) {
    kernels().loss[in.is_double](b, n, static_cast<Risk>(risk), risk_factor, losses.data(), out,
                               bad, team);
  });
  write_losses(losses, weights, reduction, zero_infinity, result, in.is_double);
  return dense ? dense->tensor() : nb::none();
}

void groups(const Input& in, bool at_start, int64_t U_max, Address log_share,
            Address log_likelihood) {
  std::vector<double> likelihoods(static_cast<size_t>(in.batch.N));
  const Groups out{at_start ? Event::start : Event::end, U_max, reinterpret_cast<void*>(log_share),
                   likelihoods.data()};
  in.run([&](int64_t n, BadFrame bad, const Team& team) {
    kernels().groups[in.is_double](in.batch, n, out, bad, team);
  });
  write(likelihoods, log_likelihood, in.is_double);
}

nb::object groups_backward(const Input& in, bool at_start, int64_t U_max, Address grad_share,
                           Address grad_likelihood) {
  const Groups grad{at_start ? Event::start : Event::end, U_max, reinterpret_cast<void*>(grad_share),
                    reinterpret_cast<double*>(grad_likelihood)};
  // what the core finds is a loss's gradient, and these are log-probabilities
  const std::vector<double> weights(static_cast<size_t>(in.batch.N), -1.0);
  Dense dense(in, weights.data());
  in.run([&](int64_t n, BadFrame bad, const Team& team) {
    kernels().groups_backward[in.is_double](in.batch, n, grad, dense.gradient, bad, team);
  });
  return dense.tensor();
}

void weigh(Address log_share, Address log_risk, std::tuple<int64_t, int64_t, int64_t> risk_strides,
           std::tuple<int64_t, int64_t, int64_t> shape, Address log_likelihood, Address tokens, bool last_only,
           int reduction, bool zero_infinity, Address result, Address grad_likelihood, Address grad_share,
           bool is_double, int threads) {
  auto at = [](Address address) { return reinterpret_cast<void*>(address); };
  const auto [stride_n, stride_u, stride_t] = risk_strides;
  const auto [N, U, T] = shape;
  const auto* counts = static_cast<const int64_t*>(at(tokens));
  const std::vector<double> weights = loss_weights(reduction, counts, N);
  std::vector<double> losses(weights.size());
  const Weighing w{at(log_share), at(log_risk), stride_n, stride_u, stride_t, U, T, at(log_likelihood), counts,
                   last_only, weights.data(), losses.data(), static_cast<double*>(at(grad_likelihood)),
                   at(grad_share)};
  {
    nb::gil_scoped_release free;
    const int useful = useful_threads(N * U * T, threads);
    for_each_utterance(N, N < useful ? static_cast<int>(N) : useful,
                       [&](int64_t n, const Team&) { kernels().weigh[is_double](w, n); });
  }
  write_losses(losses, weights, reduction, zero_infinity, result, is_double);
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

void best_path(const Input& in, Address path, Address start, Address end, int64_t U_max,
               Address score) {
  const Alignment out{reinterpret_cast<int64_t*>(path), reinterpret_cast<int64_t*>(start),
                      reinterpret_cast<int64_t*>(end), reinterpret_cast<double*>(score), U_max};
  in.run([&](int64_t n, BadFrame bad, const Team& team) {
    kernels().best_path[in.is_double](in.batch, n, out, bad, team);
  }, false);
}

}  // namespace

NB_MODULE(_native, m) {
  nb::class_<Input>(m, "Input")
      .def(nb::init<Address, int, int64_t, int64_t, int64_t, int64_t, int64_t, Address, int64_t,
                    int64_t, Address, Address, int64_t, bool, int>())
      .def_static("of", &Input::of);
  m.def("are_plain", [](nb::handle scores, nb::handle targets, nb::handle input_lengths, nb::handle target_lengths,
                  nb::handle blank) {
    return Views{}.fit(scores, targets, input_lengths, target_lengths, blank);
  }, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg().none());
  m.def("is_one", [](nb::handle tensor) {
    View v;
    if (!look(tensor, v) || v.ndim != 0 || !is_float(v)) return false;
    return v.dtype.bits == 64 ? *static_cast<double*>(v.data) == 1 : *static_cast<float*>(v.data) == 1;
  });
  m.def("learn_tensors", &learn_tensors, nb::arg().none(), nb::arg().none());
  m.def("loss", &loss);
  m.def("groups", &groups);
  m.def("groups_backward", &groups_backward);
  m.def("weigh", &weigh);
  m.def("peaks", &peaks);
  m.def("best_path", &best_path);
  m.def("instruction_set", [] { return std::string(instruction_set()); });
  bind_transducer(m);
  m.def("poison_memory", &poison, "Fill every handed-out block with NaN (for tests).");
}
