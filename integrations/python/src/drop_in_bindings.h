#pragma once
// `_ems.DropInPool`: the drop-in SDK's calls, with their arguments checked. Submitting touches no
// network.
#include <pybind11/pybind11.h>

namespace ems::python {

void BindDropIn(pybind11::module_& module);

}  // namespace ems::python
