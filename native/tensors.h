// Tensors by the table of C functions that torch hands out for DLPack (from 2.10 on): what they are made
// of, without a call into Python. Two dozen such calls took 40 us of a step, and 150 where the step had
// driven Python's code out of the caches. Without the table, Python asks and passes addresses.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <vector>

#include "memory.h"

namespace brctc {

namespace nb = nanobind;
using View = nb::dlpack::dltensor;

// DLPack 1: a tensor with its owner, and the table.
struct Managed {
  uint32_t major, minor;
  void* owner;
  void (*release)(Managed*);
  uint64_t flags;
  View view;
};
struct Exchange {
  uint32_t major, minor;
  const Exchange* older;
  void *allocate, *share;
  int (*to_python)(Managed*, void** tensor);
  int (*look)(void* tensor, View*);
};

// Named: a variable of an unnamed type would be another one in every file.
struct TorchTensors {
  const Exchange* table = nullptr;
  PyObject *tensor = nullptr, *parameter = nullptr;  // the classes; others may have changed what they say
};
inline TorchTensors torch_tensors;

// Takes the table from torch.Tensor, if it has one that we can read; None takes it away, for tests.
inline bool learn_tensors(nb::handle tensor, nb::handle parameter) {
  torch_tensors = {};
  nb::object capsule = nb::getattr(tensor, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return false;
  auto* table = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (table && table->major > 1) table = table->older;
  if (!table || table->major != 1) return false;
  torch_tensors = {table, tensor.inc_ref().ptr(), parameter.inc_ref().ptr()};
  return true;
}

// False for anything but a plain tensor in this machine's memory.
inline bool look(nb::handle tensor, View& view) {
  const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr()));
  if (!torch_tensors.table || (type != torch_tensors.tensor && type != torch_tensors.parameter)) return false;
  if (torch_tensors.table->look(tensor.ptr(), &view) != 0) {  // torch.func's wrappers hold no memory
    PyErr_Clear();
    return false;
  }
  view.data = static_cast<char*>(view.data) + view.byte_offset;
  return view.data && view.device.device_type == nb::device::cpu::value && view.dtype.lanes == 1;
}

inline bool is_float(const View& view) {
  return view.dtype.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float) &&
         (view.dtype.bits == 32 || view.dtype.bits == 64);
}

// int64 values without gaps
inline bool is_integers(const View& view) {
  const bool rows = view.ndim == 2 && view.strides[1] == 1 && view.strides[0] == view.shape[1];
  return view.dtype.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Int) && view.dtype.bits == 64 &&
         (rows || (view.ndim == 1 && view.strides[0] == 1));
}

// A block as a tensor, whose end gives it back to the pool.
struct Lent {
  Block block;
  std::vector<int64_t> shape, strides;
  Managed managed{};
};

inline void end(Lent* lent) noexcept {
  release(lent->block);
  delete lent;
}

inline nb::object lend(Block block, std::vector<int64_t> shape, std::vector<int64_t> strides, bool is_double) {
  auto* lent = new Lent{block, std::move(shape), std::move(strides), {}};
  const auto dtype = is_double ? nb::dtype<double>() : nb::dtype<float>();
  const size_t ndim = lent->shape.size();
  if (!torch_tensors.table) {
    nb::capsule owner(lent, [](void* self) noexcept { end(static_cast<Lent*>(self)); });
    const std::vector<size_t> sizes(lent->shape.begin(), lent->shape.end());
    return nb::cast(nb::ndarray<nb::pytorch>(block.data, ndim, sizes.data(), owner, lent->strides.data(), dtype));
  }
  const View view{block.data, {nb::device::cpu::value, 0}, static_cast<int32_t>(ndim), dtype,
                  lent->shape.data(), lent->strides.data()};
  lent->managed = {1, 0, lent, [](Managed* self) { end(static_cast<Lent*>(self->owner)); }, 0, view};
  void* made = nullptr;
  if (torch_tensors.table->to_python(&lent->managed, &made) != 0) {
    end(lent);
    throw nb::python_error();
  }
  return nb::steal(static_cast<PyObject*>(made));
}

}  // namespace brctc
