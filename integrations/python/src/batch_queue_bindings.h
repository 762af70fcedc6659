#pragma once
// `_ems.BatchQueue`: what the engines' connectors are made of. Submitting touches no network.
#include <pybind11/pybind11.h>

namespace ems::python {

void BindBatchQueue(pybind11::module_& module);

}  // namespace ems::python
