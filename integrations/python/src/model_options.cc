#include "integrations/python/src/model_options.h"

#include <string>

#include "integrations/python/src/buffers.h"
#include "integrations/python/src/client_bindings.h"
#include "integrations/python/src/errors.h"

namespace ems::python {

namespace py = pybind11;

using model::LoadOptions;

model::SourceVerify SourceVerifyOf(const py::object& verify) {
  // Booleans say whether, as they did before there was "auto".
  if (py::isinstance<py::bool_>(verify))
    return verify.cast<bool>() ? model::SourceVerify::kAlways : model::SourceVerify::kNever;
  const std::string word = py::isinstance<py::str>(verify) ? verify.cast<std::string>() : "";
  if (word == "auto") return model::SourceVerify::kAuto;
  if (word == "always") return model::SourceVerify::kAlways;
  if (word == "never") return model::SourceVerify::kNever;
  Refuse(PyExc_ValueError, fmt::format("verify is {}; it may be \"auto\", \"always\", \"never\"",
                                       std::string(py::repr(verify))));
}

LoadOptions LoadOptionsOf(const py::dict& given) {
  LoadOptions options;
  for (const auto& [key, value] : given) {
    const std::string name = TextOf(key, "an option");
    if (name == "threads")
      options.threads = static_cast<uint32_t>(CountOf(value, "threads", 64));
    else if (name == "batch_bytes")
      options.batch_bytes = CountOf(value, "batch_bytes", UINT32_MAX);
    else if (name == "verify_digests")
      options.verify_digests = value.cast<bool>();
    else if (name == "fallback_to_source")
      options.fallback_to_source = value.cast<bool>();
    else if (name == "pool_patience")
      options.pool_patience = DurationOf(value, options.pool_patience);
    else if (name == "priority")
      options.priority = static_cast<uint32_t>(CountOf(value, "priority", 1000));
    else
      Refuse(PyExc_TypeError, fmt::format("a load has no option {}", name));
  }
  if (options.threads == 0 || options.batch_bytes == 0)
    Raise(Error(StatusCode::kInvalidArgument, "threads and batch_bytes are 1 at least"));
  return options;
}

}  // namespace ems::python
