#pragma once
// Options of model caching as Python gives them. What is not understood raises TypeError or
// ValueError, by name.
#include <pybind11/pybind11.h>

#include "ems_model/manifest_maker.h"
#include "ems_model/model_loader.h"

namespace ems::python {

// "auto", "always", "never", or a boolean: whether.
model::SourceVerify VerifyOf(const pybind11::object& verify);
// Of the names of model::LoadOptions.
model::LoadOptions LoadOptionsOf(const pybind11::dict& given);

}  // namespace ems::python
