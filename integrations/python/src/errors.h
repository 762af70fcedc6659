#pragma once
// The one place where C++ of ours raises: a Status, or a refused argument, becomes a Python
// exception. pybind11 carries it over C++ frames, so callers hold nothing that does not clean up
// after itself.
#include <pybind11/pybind11.h>

#include <string>
#include <utility>
#include <vector>

#include "common/status.h"

namespace ems::python {

// The exception object for `status`, of the class in ems.errors for its code. The GIL is held.
pybind11::object ErrorOf(const Status& status);
// Raises it. The GIL is held.
[[noreturn]] void Raise(const Status& status);
// Raises `type`, e.g. PyExc_TypeError. The GIL is held.
[[noreturn]] void Refuse(PyObject* type, const std::string& text);
// Passes on what Python has set already.
[[noreturn]] void PassOn();

inline void RaiseIfError(const Status& status) {
  if (!status.ok()) Raise(status);
}
template <typename T>
T ValueOrRaise(Result<T>&& result) {
  if (!result.ok()) Raise(result.status());
  return std::move(result).value();
}

// [length, None for a miss, or the error]
pybind11::list LengthsOf(const std::vector<Result<uint64_t>>& results);
// True, or false for a miss; raises what else went wrong.
inline bool IsThere(const Status& status) {
  if (!status.ok() && status.code() != StatusCode::kNotFound) Raise(status);
  return status.ok();
}

}  // namespace ems::python
