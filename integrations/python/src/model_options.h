#pragma once
// Options of model caching as Python gives them. An unknown or invalid one raises TypeError or
// ValueError, by name.
#include <pybind11/pybind11.h>

#include "ems_model/load_options.h"
#include "ems_model/manifest_maker.h"

namespace ems::python {

// "auto", "always", "never", or a boolean: whether.
model::SourceVerify SourceVerifyOf(const pybind11::object& verify);
// Of the names of model::LoadOptions.
model::LoadOptions LoadOptionsOf(const pybind11::dict& given);

}  // namespace ems::python
