// The one file that knows Python. Tensors arrive as addresses: brctc/kernels/cpu.py has checked
// them and keeps them alive, and an address costs nothing where DLPack costs microseconds each.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <new>
#include <string>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "parallel.h"

namespace nb = nanobind;
namespace brctc {
void bind_transducer(nb::module_&);  // transducer_bindings.cpp
}
using namespace brctc;

namespace {

using Address = uintptr_t;

// A Batch together with the offsets it points to.
class Input {
 public:
  Batch batch{};
  int is_double;
  int64_t label_count;
  int threads;

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
  }
  Input(const Input&) = delete;

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

// What backward needs lies in one buffer: the occupancy blocks; with from_logits shifts and scales
// of the softmax rows; if there is room, their exponentials. cpu.py's _saved_size has its length.
Forward forward_of(const Input& in, Address loss, Address saved, bool keep_exp) {
  Forward out{reinterpret_cast<double*>(loss), reinterpret_cast<void*>(saved), nullptr, nullptr, nullptr, nullptr};
  if (!saved || !in.batch.from_logits) return out;
  const Batch& b = in.batch;
  const size_t width = in.is_double ? 8 : 4;
  char* rows = reinterpret_cast<char*>(saved) + static_cast<size_t>(b.T * (in.label_count + b.N)) * width;
  out.row_shift = rows;
  out.row_scale = rows + static_cast<size_t>(b.N * b.T) * width;
  if (keep_exp) out.row_exp = rows + static_cast<size_t>(2 * b.N * b.T) * width;
  return out;
}

void loss(const Input& in, int risk, double risk_factor, Address loss, Address saved,
          bool keep_exp) {
  const Forward out = forward_of(in, loss, saved, keep_exp);
  in.run([&](int64_t n, BadFrame bad, const Team& team) {
    kernels().loss[in.is_double](in.batch, n, static_cast<Risk>(risk), risk_factor, out, bad, team);
  });
}

void groups(const Input& in, bool at_start, int64_t U_max, Address log_share,
            Address log_likelihood) {
  const Groups out{at_start ? Event::start : Event::end, U_max, reinterpret_cast<void*>(log_share),
                   reinterpret_cast<double*>(log_likelihood)};
  in.run([&](int64_t n, BadFrame bad, const Team& team) {
    kernels().groups[in.is_double](in.batch, n, out, bad, team);
  });
}

void groups_backward(const Input& in, bool at_start, int64_t U_max, Address grad_share,
                     Address grad_likelihood, Address saved) {
  const Groups grad{at_start ? Event::start : Event::end, U_max, reinterpret_cast<void*>(grad_share),
                    reinterpret_cast<double*>(grad_likelihood)};
  const Forward out = forward_of(in, 0, saved, false);
  in.run([&](int64_t n, BadFrame bad, const Team& team) {
    kernels().groups_backward[in.is_double](in.batch, n, grad, out, bad, team);
  });
}

void best_path(const Input& in, Address path, Address start, Address end, int64_t U_max,
               Address score) {
  const Alignment out{reinterpret_cast<int64_t*>(path), reinterpret_cast<int64_t*>(start),
                      reinterpret_cast<int64_t*>(end), reinterpret_cast<double*>(score), U_max};
  in.run([&](int64_t n, BadFrame bad, const Team& team) {
    kernels().best_path[in.is_double](in.batch, n, out, bad, team);
  }, false);
}

// torch.nn.CTCLoss's "mean" (each loss by its target length, then over the batch) or "sum". The
// weight of each loss goes behind the losses; one that is infinite counts as zero if wanted.
void reduce(Address losses_at, int64_t N, Address target_lengths_at, bool mean, bool zero_infinity,
            Address result_at, bool result_is_double) {
  auto* losses = reinterpret_cast<double*>(losses_at);
  double* weights = losses + N;
  const auto* target_lengths = reinterpret_cast<const int64_t*>(target_lengths_at);
  double total = 0;
  for (int64_t n = 0; n < N; ++n) {
    if (zero_infinity && losses[n] > 1e300) losses[n] = 0;
    const int64_t length = target_lengths[n] > 1 ? target_lengths[n] : 1;
    weights[n] = mean ? 1.0 / static_cast<double>(N * length) : 1.0;
    total += weights[n] * losses[n];
  }
  if (result_is_double)
    *reinterpret_cast<double*>(result_at) = total;
  else
    *reinterpret_cast<float*>(result_at) = static_cast<float>(total);
}

using Pooled = nb::ndarray<nb::pytorch>;

// A tensor in a block that goes back to the pool when the tensor goes.
Pooled pooled_tensor(const Block& block, std::initializer_list<size_t> shape, int is_double) {
  if (!block.data) throw std::bad_alloc();
  nb::capsule owner(new Block(block), [](void* p) noexcept {
    release(*static_cast<Block*>(p));
    delete static_cast<Block*>(p);
  });
  const auto type = is_double ? nb::dtype<double>() : nb::dtype<float>();
  return Pooled(block.data, shape, owner, {}, type);
}

Pooled empty(size_t count, int is_double) {
  return pooled_tensor(acquire(count * (is_double ? 8 : 4)), {count}, is_double);
}

// The dense gradient, (T, N, C) or, where the input was batch-major, (N, T, C).
// Utterance n's part is weighed by weights[n] * scale; `mass`, if any, is what its occupancies add
// up to.
Pooled gradient(const Input& in, Address weights, double scale, Address saved_at, bool keep_exp,
                Address mass) {
  const Batch& b = in.batch;
  const size_t width = in.is_double ? 8 : 4;
  const bool batch_major = b.stride_n > b.stride_t;
  const size_t T = static_cast<size_t>(b.T), N = static_cast<size_t>(b.N), C = static_cast<size_t>(b.C);
  const Block block = acquire(T * N * C * width);
  Pooled dense = batch_major ? pooled_tensor(block, {N, T, C}, in.is_double)
                             : pooled_tensor(block, {T, N, C}, in.is_double);
  Forward saved = forward_of(in, 0, saved_at, keep_exp);
  saved.mass = reinterpret_cast<const double*>(mass);
  const auto* weight = reinterpret_cast<const double*>(weights);
  {
    nb::gil_scoped_release free;
    const int64_t rows = b.T * b.N;
    const int64_t cells = rows * b.C / 4;  // four scores take the time of a lattice cell
    for_each_range(rows, useful_threads(cells, in.threads), [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const int64_t n = batch_major ? row / b.T : row % b.N;
        const int64_t t = batch_major ? row % b.T : row / b.N;
        char* out = block.data + static_cast<size_t>(row * b.C) * width;
        kernels().gradient_row[in.is_double](b, n, t, weight[n] * scale, saved, out);
      }
    });
  }
  return dense;
}

}  // namespace

NB_MODULE(_native, m) {
  nb::class_<Input>(m, "Input")
      .def(nb::init<Address, int, int64_t, int64_t, int64_t, int64_t, int64_t, Address, int64_t,
                    int64_t, Address, Address, int64_t, bool, int>())
      .def("find_problem", &Input::find_problem);
  m.def("loss", &loss);
  m.def("groups", &groups);
  m.def("groups_backward", &groups_backward);
  m.def("reduce", &reduce);
  m.def("best_path", &best_path);
  m.def("empty", &empty);
  m.def("gradient", &gradient);
  m.def("instruction_set", [] { return std::string(instruction_set()); });
  bind_transducer(m);
  m.def("poison_memory", &poison, "Fill every handed-out block with NaN (for tests).");
}
