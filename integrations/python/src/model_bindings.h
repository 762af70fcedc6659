#pragma once
// `_ems.ModelCache` and `_ems.ModelSession`: versions of models, as Python sees them. Short calls
// let the GIL go and return; long ones (add, wait, loads) return a ModelJob at once.
#include <pybind11/pybind11.h>

namespace ems::python {

void BindModels(pybind11::module_& module);

}  // namespace ems::python
