// The transducer losses as Python sees them. Tensors arrive as addresses: brctc/kernels/transducer/ has
// checked them and keeps them alive.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "memory.h"
#include "parallel.h"
#include "tensors.h"
#include "transducer.h"

namespace nb = nanobind;

namespace brctc {

namespace baseline {
extern const TransducerKernels transducer_table;
}
#ifdef BRCTC_X86
namespace x86_64_v3 {
extern const TransducerKernels transducer_table;
}
namespace x86_64_v4 {
extern const TransducerKernels transducer_table;
}
#endif

const TransducerKernels& transducer_kernels() {
#ifdef BRCTC_X86
  const std::string_view chosen = instruction_set();
  if (chosen == "x86_64_v4") return x86_64_v4::transducer_table;
  if (chosen == "x86_64_v3") return x86_64_v3::transducer_table;
#endif
  return baseline::transducer_table;
}

namespace {

using Address = uintptr_t;

// A checked batch. Its frames are counted through without padding, utterance after utterance, and so
// are the rows of these frames. Everything here takes a range of frames, and addresses that belong to
// the first of them; what it needs to know of targets and lengths is its own copy.
class Transducer {
 public:
  // Raises for lengths and labels out of range; nothing is read out of bounds on the way.
  Transducer(bool is_double, int64_t N, int64_t T, int64_t U, int64_t C, Address targets,
             Address logit_lengths, Address target_lengths, int64_t blank, int threads)
      : is_double_(is_double), N_(N), T_(T), U_(U), C_(C), blank_(blank), threads_(threads),
        labels_(copy(targets, N * U)), T_of_(copy(logit_lengths, N)), U_of_(copy(target_lengths, N)) {
    check();
    for (size_t n = 0; n < size_t(N); ++n) {
      frame_offset_.push_back(frame_offset_[n] + T_of_[n]);
      row_offset_.push_back(row_offset_[n] + T_of_[n] * (U_of_[n] + 1));
    }
  }

  int64_t frames() const { return frame_offset_.back(); }
  int64_t first_frame(int64_t n) const { return frame_offset_[size_t(n)]; }

  // How many rows the frames before this one have.
  int64_t rows_before(int64_t frame) const {
    return frame < frames() ? place(frame).row : row_offset_.back();
  }

  // The end of a part: as many frames from `first` on as have at most so many rows, but at least one.
  int64_t end_of_part(int64_t first, int64_t most_rows) const {
    const int64_t row = rows_before(first) + most_rows;
    const int64_t n = utterance_at(row_offset_, row);
    if (n == N_) return frames();
    const int64_t t = (row - row_offset_[size_t(n)]) / (U_of_[size_t(n)] + 1);
    return std::max(frame_offset_[size_t(n)] + t, first + 1);
  }

  // Cells of dense logits (N, T, U + 1, C); strides are in elements.
  void read(Address logits, int64_t stride_n, int64_t stride_t, int64_t stride_u, Address cells) const {
    read_frames(0, frames(), cells, [&](const Place& at) {
      return frame(at, logits, at.n * stride_n + at.t * stride_t, stride_u);
    });
  }

  // Cells of packed logits, rows that are `stride` apart.
  void read_packed(int64_t first, int64_t last, Address logits, int64_t stride, Address cells) const {
    read_frames(first, last, cells, [&](const Place& at) {
      return frame(at, logits, at.row * stride, stride);
    });
  }

  // Losses of utterances first .. last - 1; their cells get occupancies if wanted.
  void lattice(int64_t first, int64_t last, Address cells, Address losses, bool occupancies) const {
    std::atomic<bool> memory{true};
    const int64_t first_row = row_offset_[size_t(first)];
    {
      nb::gil_scoped_release free;
      const int64_t wanted = useful_threads(2 * (row_offset_[size_t(last)] - first_row), threads_);
      // one thread takes an utterance, never two
      for_each_utterance(last - first, int(std::min(wanted, last - first)), [&](int64_t i, const Team& team) {
        const size_t n = size_t(first + i);
        void* own = element(cells, numbers_per_cell * (row_offset_[n] - first_row));
        double* loss = reinterpret_cast<double*>(losses) + n;
        if (!kernels_.lattice[is_double_](T_of_[n], U_of_[n], own, loss, occupancies, *team.scratch))
          memory = false;
      });
    }
    if (!memory) throw std::bad_alloc();
  }

  // The dense gradient (N, T, U + 1, C), utterance n's weighed by weights[n].
  nb::object gradient(Address logits, int64_t stride_n, int64_t stride_t, int64_t stride_u, Address cells,
                      Address weights) const {
    const int64_t rows_and_classes = (U_ + 1) * C_;
    const Block block = acquire(size_t(N_ * T_ * rows_and_classes) * width());
    if (!block.data) throw std::bad_alloc();
    nb::object tensor = lend(block, {N_, T_, U_ + 1, C_}, {T_ * rows_and_classes, rows_and_classes, C_, 1}, is_double_);
    {
      nb::gil_scoped_release free;
      for_each_part(N_ * T_, N_ * T_ * rows_and_classes / 4, [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; ++i) {
          const int64_t n = i / T_, t = i % T_;
          char* out = block.data + size_t(i * rows_and_classes) * width();
          int64_t used = 0;
          if (t < T_of_[size_t(n)]) {
            const Place at = place(frame_offset_[size_t(n)] + t, 0);
            gradient_frame(frame(at, logits, n * stride_n + t * stride_t, stride_u), at, cells, weights,
                           out, C_);
            used = (U_of_[size_t(n)] + 1) * C_;
          }
          std::memset(out + size_t(used) * width(), 0, size_t(rows_and_classes - used) * width());
        }
      });
    }
    return tensor;
  }

  // Turns packed logits into their gradient.
  void gradient_packed(int64_t first, int64_t last, Address logits, int64_t stride, Address cells,
                       Address weights) const {
    nb::gil_scoped_release free;
    for_each_frame(first, last, C_ / 4, [&](const Place& at) {
      const int64_t offset = at.row * stride;
      gradient_frame(frame(at, logits, offset, stride), at, cells, weights, element(logits, offset), stride);
    });
  }

  // Packed rows of tanh(encoder (N, T, D) + prediction (N, U + 1, D)).
  void join(int64_t first, int64_t last, Address encoder, Address prediction, int64_t D,
            Address hidden) const {
    nb::gil_scoped_release free;
    for_each_frame(first, last, D / 4, [&](const Place& at) {
      kernels_.join[is_double_](element(encoder, (at.n * T_ + at.t) * D),
                                element(prediction, at.n * (U_ + 1) * D), at.U + 1, D,
                                element(hidden, at.row * D));
    });
  }

  // The gradient of the encoder is written for these frames, that of the prediction is added to.
  void join_backward(int64_t first, int64_t last, Address hidden, Address grad_hidden, int64_t D,
                     Address grad_encoder, Address grad_prediction) const {
    // threads share out utterances and columns, so that every sum has its own order
    constexpr int64_t columns = 64;
    const int64_t blocks = (D + columns - 1) / columns;
    const int64_t n_first = place(first, first).n, n_last = place(last - 1, first).n;
    const int64_t work = (place(last - 1, first).row + U_ + 1) * D / 8;
    nb::gil_scoped_release free;
    for_each_part((n_last - n_first + 1) * blocks, work, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        const int64_t n = n_first + i / blocks, column = i % blocks * columns;
        const Place at = place(std::max(first, frame_offset_[size_t(n)]), first);
        const int64_t frames = std::min(last, frame_offset_[size_t(n + 1)]) - at.frame;
        kernels_.join_backward[is_double_](
            element(hidden, at.row * D), element(grad_hidden, at.row * D), frames, at.U + 1, D, column,
            std::min(column + columns, D), element(grad_encoder, (n * T_ + at.t) * D),
            element(grad_prediction, n * (U_ + 1) * D));
      }
    });
  }

 private:
  // A frame, and its first row counted from the first row of a range.
  struct Place {
    int64_t frame, n, t, U, row;
  };

  const TransducerKernels& kernels_ = transducer_kernels();
  bool is_double_;
  int64_t N_, T_, U_, C_, blank_;
  int threads_;
  std::vector<int64_t> labels_, T_of_, U_of_;
  std::vector<int64_t> frame_offset_{0}, row_offset_{0};  // where each utterance starts

  static std::vector<int64_t> copy(Address values, int64_t count) {
    const auto* first = reinterpret_cast<const int64_t*>(values);
    return count ? std::vector<int64_t>(first, first + count) : std::vector<int64_t>();
  }

  void check() const {
    const auto refuse = [](const std::string& problem) { throw nb::value_error(problem.c_str()); };
    const auto text = [](int64_t value) { return std::to_string(value); };
    if (!fits_memory({N_, T_, U_ + 1, C_}))
      refuse("logits of shape (" + text(N_) + ", " + text(T_) + ", " + text(U_ + 1) + ", " + text(C_) +
             ") are too large to be computed with");
    for (int64_t n = 0; n < N_; ++n) {
      const int64_t T = T_of_[size_t(n)], U = U_of_[size_t(n)];
      if (T < 1 || T > T_)
        refuse("logit_lengths[" + text(n) + "] is " + text(T) + ", expected 1 to " + text(T_) +
               ", the frames there are");
      if (U < 0 || U > U_)
        refuse("target_lengths[" + text(n) + "] is " + text(U) + ", expected 0 to " + text(U_) +
               ", the width of targets");
      for (int64_t u = 0; u < U; ++u) {
        const int64_t label = labels_[size_t(n * U_ + u)];
        if (label < 0 || label >= C_ || label == blank_)
          refuse("label " + text(u) + " of utterance " + text(n) + " is " + text(label) + ", " +
                 (label == blank_ ? "the blank" : "expected 0 to " + text(C_ - 1)));
      }
    }
  }

  size_t width() const { return is_double_ ? 8 : 4; }

  void* element(Address address, int64_t index) const {
    return reinterpret_cast<char*>(address) + index * int64_t(width());
  }

  static int64_t utterance_at(const std::vector<int64_t>& offsets, int64_t index) {
    return std::upper_bound(offsets.begin(), offsets.end(), index) - offsets.begin() - 1;
  }

  // Frame f, its rows counted from those of frame `first`.
  Place place(int64_t f, int64_t first) const {
    const Place at = place(f), base = place(first);
    return {f, at.n, at.t, at.U, at.row - base.row};
  }

  Place place(int64_t f) const {
    const int64_t n = utterance_at(frame_offset_, f);
    const int64_t t = f - frame_offset_[size_t(n)], U = U_of_[size_t(n)];
    return {f, n, t, U, row_offset_[size_t(n)] + t * (U + 1)};
  }

  Place behind(const Place& at) const {
    if (at.t + 1 < T_of_[size_t(at.n)]) return {at.frame + 1, at.n, at.t + 1, at.U, at.row + at.U + 1};
    const int64_t U = at.n + 1 < N_ ? U_of_[size_t(at.n + 1)] : 0;
    return {at.frame + 1, at.n + 1, 0, U, at.row + at.U + 1};
  }

  Frame frame(const Place& at, Address logits, int64_t offset, int64_t stride) const {
    return {element(logits, offset), stride, at.U, C_, labels_.data() + at.n * U_, blank_};
  }

  void gradient_frame(const Frame& rows, const Place& at, Address cells, Address weights, void* out,
                      int64_t stride) const {
    const double weight = reinterpret_cast<const double*>(weights)[at.n];
    kernels_.gradient_frame[is_double_](rows, element(cells, numbers_per_cell * at.row), weight, out, stride);
  }

  // Calls work(from, to) for parts of [0, count), on as many threads as `cells` of work deserve.
  template <class Work>
  void for_each_part(int64_t count, int64_t cells, Work work) const {
    const int threads = useful_threads(cells, threads_);
    if (threads <= 1) return work(0, count);
    const int64_t parts = 16 * threads;  // small parts, taken as they come
    for_each_utterance(parts, threads, [&](int64_t i, const Team&) {
      work(count * i / parts, count * (i + 1) / parts);
    });
  }

  template <class Work>
  void for_each_frame(int64_t first, int64_t last, int64_t cells_per_row, Work work) const {
    const int64_t rows = place(last - 1, first).row + U_ + 1;
    for_each_part(last - first, rows * (cells_per_row + 1), [&](int64_t from, int64_t to) {
      if (from == to) return;
      for (Place at = place(first + from, first); at.frame < first + to; at = behind(at)) work(at);
    });
  }

  template <class FrameOf>
  void read_frames(int64_t first, int64_t last, Address cells, FrameOf frame_of) const {
    std::atomic<int64_t> bad{last};  // the first frame that cannot be read
    {
      nb::gil_scoped_release free;
      for_each_frame(first, last, C_ / 4, [&](const Place& at) {
        void* own = element(cells, numbers_per_cell * at.row);
        if (kernels_.read_frame[is_double_](frame_of(at), own)) return;
        for (int64_t known = bad; at.frame < known && !bad.compare_exchange_weak(known, at.frame);) {
        }
      });
    }
    if (bad == last) return;
    const Place at = place(bad, first);
    throw nb::value_error(("logits hold NaN or +inf, or only -inf, at frame " + std::to_string(at.t) +
                           " of utterance " + std::to_string(at.n)).c_str());
  }
};

}  // namespace

void bind_transducer(nb::module_& m) {
  nb::class_<Transducer>(m, "Transducer")
      .def(nb::init<bool, int64_t, int64_t, int64_t, int64_t, Address, Address, Address, int64_t, int>())
      .def("first_frame", &Transducer::first_frame)
      .def("rows_before", &Transducer::rows_before)
      .def("end_of_part", &Transducer::end_of_part)
      .def("read", &Transducer::read)
      .def("read_packed", &Transducer::read_packed)
      .def("lattice", &Transducer::lattice)
      .def("gradient", &Transducer::gradient)
      .def("gradient_packed", &Transducer::gradient_packed)
      .def("join", &Transducer::join)
      .def("join_backward", &Transducer::join_backward);
}

}  // namespace brctc
