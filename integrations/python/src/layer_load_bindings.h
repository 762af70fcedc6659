#pragma once
// `_ems.LayerLoad`: a load that goes layer by layer, as Python holds it. The GIL is free while a
// call waits.
//
// Invariant: the cache and the tensors are kept until the load is over: dropping the object takes
// back what has not arrived, and waits for what is on its way. Bound: that wait ends with the
// load's deadline.
#include <pybind11/pybind11.h>

namespace ems::python {

void BindLayerLoad(pybind11::module_& module);

}  // namespace ems::python
