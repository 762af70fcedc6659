#pragma once
// `_ems.BlockHasher`, `_ems.KvLayout` and `_ems.ContextCache`. The GIL is free while a call is
// under way.
#include <pybind11/pybind11.h>

#include <memory>

#include "ems_context/kv_layout.h"

namespace ems::python {

// A layout and the tensors that it speaks of. Threading: immutable; made and destroyed with the
// GIL.
struct PyLayout {
  std::shared_ptr<const context::KvLayout> layout;
  pybind11::object tensors;
};

void BindContext(pybind11::module_& module);

}  // namespace ems::python
