// The Python module: both criteria, what they share, and the pitch of features.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "kernels.h"
#include "memory.h"
#include "tensors.h"

namespace nb = nanobind;

namespace brctc {
void bind_ctc(nb::module_&);         // ctc_bindings.cpp
void bind_transducer(nb::module_&);  // transducer_bindings.cpp
void bind_pitch(nb::module_&);       // pitch_bindings.cpp

// Whether it is a plain number that is 1: what autograd passes to a loss, nearly always.
static bool is_one(nb::handle tensor) {
  View v;
  if (!look(tensor, v) || v.ndim != 0 || !is_float(v)) return false;
  return v.dtype.bits == 64 ? *static_cast<double*>(v.data) == 1 : *static_cast<float*>(v.data) == 1;
}
}  // namespace brctc

NB_MODULE(_native, m) {
  using namespace brctc;
  bind_ctc(m);
  bind_transducer(m);
  bind_pitch(m);
  m.def("is_one", &is_one);
  m.def("learn_tensors", &learn_tensors, nb::arg().none(), nb::arg().none());
  m.def("instruction_set", [] { return std::string(instruction_set()); });
  m.def("poison_memory", &poison, "Fill every handed-out block with NaN (for tests).");
}
