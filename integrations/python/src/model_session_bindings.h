#pragma once
// `_ems.ModelSession`: an open version whose tensors are read by name, or in the order in which
// they arrive.
#include <pybind11/pybind11.h>

namespace ems::python {

void BindModelSession(pybind11::module_& module);

}  // namespace ems::python
