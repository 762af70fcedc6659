#pragma once
// `_ems.CcPool`: the drop-in SDK's calls, with their arguments checked. Submitting touches no
// network.
#include <pybind11/pybind11.h>

namespace ems::python {

void BindCc(pybind11::module_& module);

}  // namespace ems::python
