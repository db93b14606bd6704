// A batch of the CTC criteria as Python hands it over. Plain tensors are looked into (tensors.h); of
// others, which brctc/kernels/ctc/inputs.py has checked, addresses arrive.
#pragma once
#include <nanobind/nanobind.h>

#include <new>
#include <string>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "parallel.h"
#include "tensors.h"

namespace brctc {

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

// A checked batch. Labels and lengths are its own copy: who writes to the tensors meanwhile, from another
// thread, changes nothing. The scores are not copied; Python keeps them alive.
class Input {
 public:
  Batch batch{};
  int is_double;
  bool nan;  // scores that cannot be read are reported to the caller, not to the user
  int threads;

  // Raises for lengths and labels out of range. `label_stride` is negative for concatenated targets. Without
  // scores there is nothing to compute, and no size is too large.
  Input(Address scores, int is_double_, int64_t T, int64_t N, int64_t C, int64_t stride_t,
        int64_t stride_n, Address labels, int64_t label_count, int64_t label_stride,
        Address input_lengths, Address target_lengths, int64_t blank, bool from_logits, bool nan_, int threads_)
      : is_double(is_double_),
        nan(nan_),
        threads(threads_),
        input_lengths_(copy(input_lengths, N)),
        target_lengths_(copy(target_lengths, N)) {
    batch.scores = reinterpret_cast<const void*>(scores);
    batch.stride_t = stride_t, batch.stride_n = stride_n;
    batch.T = T, batch.N = N, batch.C = C;
    batch.blank = blank, batch.from_logits = from_logits;
    batch.input_lengths = input_lengths_.data();
    batch.target_lengths = target_lengths_.data();
    if (batch.scores) check_sizes();
    check_lengths(label_count, label_stride);
    copy_labels(reinterpret_cast<const int64_t*>(labels), label_stride);
    check_labels();
  }
  Input(const Input&) = delete;

  // The same of plain tensors, or null.
  static Input* of(nb::handle scores, nb::handle targets, nb::handle input_lengths,
                   nb::handle target_lengths, nb::handle blank, bool from_logits, bool nan, int threads) {
    Views v;
    if (!v.fit(scores, targets, input_lengths, target_lengths, blank)) return nullptr;
    const View &s = v.scores, &l = v.labels;
    const auto address = [](const View& view) { return reinterpret_cast<Address>(view.data); };
    const bool padded = l.ndim == 2;
    return new Input(address(s), s.dtype.bits == 64, s.shape[0], s.shape[1], s.shape[2], s.strides[0],
                     s.strides[1], address(l), padded ? l.shape[0] * l.shape[1] : l.shape[0],
                     padded ? l.shape[1] : -1, address(v.input_lengths), address(v.target_lengths), v.blank,
                     from_logits, nan, threads);
  }

  // Runs `work(n, bad, team)` for all utterances and raises for the first that failed; with `nan`, gives those
  // that failed. Without pairs, one thread takes an utterance.
  template <class Work>
  std::vector<int64_t> run(Work work, bool pairs = true) const {
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
    std::vector<int64_t> failed;
    for (int64_t n = 0; n < batch.N; ++n)
      if (const int64_t frame = bad[static_cast<size_t>(n)]; frame != all_read) {
        if (!nan || frame == no_memory) refuse_scores(n, frame);
        failed.push_back(n);
      }
    return failed;
  }

 private:
  std::vector<int64_t> input_lengths_, target_lengths_, labels_, label_offset_;

  static std::vector<int64_t> copy(Address values, int64_t count) {
    const auto* first = reinterpret_cast<const int64_t*>(values);
    return {first, first + count};
  }

  [[noreturn]] static void refuse(const std::string& problem) { throw nb::value_error(problem.c_str()); }
  static std::string text(int64_t value) { return std::to_string(value); }

  // A tensor that repeats itself in memory can have any size; its gradient, and what is kept per frame, cannot.
  void check_sizes() const {
    if (!fits_memory({batch.T, batch.N, batch.C}))
      refuse("log_probs of shape (" + text(batch.T) + ", " + text(batch.N) + ", " + text(batch.C) +
             ") are too large to be computed with");
  }

  void check_lengths(int64_t label_count, int64_t label_stride) const {
    const bool padded = label_stride >= 0;
    const int64_t longest = padded ? label_stride : label_count;
    int64_t sum = 0;
    for (int64_t n = 0; n < batch.N; ++n) {
      const int64_t T = batch.input_lengths[n], U = batch.target_lengths[n];
      if (T < 0 || T > batch.T)
        refuse("input_lengths[" + text(n) + "] is " + text(T) + ", expected 0 to " + text(batch.T) +
               ", the frames of log_probs");
      if (U < 0 || U > longest)
        refuse("target_lengths[" + text(n) + "] is " + text(U) + ", expected 0 to " + text(longest) +
               (padded ? ", the width of targets" : ", the number of targets"));
      if (batch.scores && !fits_memory({T, U + 16, 64}))
        refuse("utterance " + text(n) + " with " + text(T) + " frames and " + text(U) +
               " labels is too large to be computed with");
      sum += U;
      if (!padded && sum > label_count) break;
    }
    if (!padded && sum != label_count)
      refuse("target_lengths ask for " + text(sum) + (sum > label_count ? " or more" : "") +
             " concatenated targets, but there are " + text(label_count));
  }

  // Without the padding.
  void copy_labels(const int64_t* labels, int64_t label_stride) {
    label_offset_.reserve(target_lengths_.size());
    for (size_t n = 0; n < target_lengths_.size(); ++n) {
      const auto offset = static_cast<int64_t>(labels_.size());
      const int64_t* first = labels + (label_stride < 0 ? offset : static_cast<int64_t>(n) * label_stride);
      label_offset_.push_back(offset);
      labels_.insert(labels_.end(), first, first + target_lengths_[n]);
    }
    batch.labels = labels_.data();
    batch.label_offset = label_offset_.data();
  }

  void check_labels() const {
    for (int64_t n = 0; n < batch.N; ++n)
      for (int64_t u = 0; u < batch.target_lengths[n]; ++u) {
        const int64_t label = batch.labels[batch.label_offset[n] + u];
        if (label < 0 || label >= batch.C || label == batch.blank)
          refuse("label " + text(u) + " of utterance " + text(n) + " is " + text(label) + ", " +
                 (label == batch.blank ? "the blank" : "expected 0 to " + text(batch.C - 1)));
      }
  }

  [[noreturn]] void refuse_scores(int64_t n, int64_t frame) const {
    if (frame == no_memory) throw std::bad_alloc();
    if (frame == out_of_range)
      refuse("the scores or the risk factor of utterance " + text(n) + " are too large to be computed with");
    const std::string what =
        batch.from_logits ? "logits hold NaN or +inf, or only -inf," : "log_probs hold NaN or +inf";
    refuse(what + " at frame " + text(frame) + " of utterance " + text(n));
  }
};

}  // namespace brctc
