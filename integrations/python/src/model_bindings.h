#pragma once
// `_ems.ModelCache`: versions of models, as Python sees them. Short calls let the GIL go and
// return; long ones (add, wait, loads) return a ModelJob at once.
#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "common/clock.h"
#include "ems_model/model_cache.h"
#include "integrations/python/src/buffers.h"
#include "integrations/python/src/closable.h"

namespace ems::python {

// Threading: as ModelCache, beside what Closable says.
class PyModels final : public Closable<model::ModelCache> {
 public:
  using Closable::Closable;
  std::shared_ptr<model::ModelCache> Use() const { return UseOr("the model cache"); }
};

// `version` may be empty: then `model` may have one behind an @. Raises InvalidArgument
model::ModelName NameOf(const Text& model, const Text& version);
// In so many seconds; None: as late as there is. Raises ValueError
Deadline DeadlineOf(const pybind11::object& timeout);
void BindModels(pybind11::module_& module);

}  // namespace ems::python
