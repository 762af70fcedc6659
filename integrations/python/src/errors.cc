#include "integrations/python/src/errors.h"

namespace ems::python {

namespace py = pybind11;

py::object ErrorOf(const Status& status) {
  return py::module_::import("ems.errors")
      .attr("of")(std::string(CodeName(status.code())), std::string(Message(status)));
}

py::list LengthsOf(const std::vector<Result<uint64_t>>& results) {
  py::list list;
  for (const auto& result : results) {
    if (result.ok()) {
      list.append(*result);
    } else if (result.status().code() == StatusCode::kNotFound) {
      list.append(py::none());
    } else {
      list.append(ErrorOf(result.status()));
    }
  }
  return list;
}

void Raise(const Status& status) {
  const py::object error = ErrorOf(status);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  PassOn();
}

void Refuse(PyObject* type, const std::string& text) {
  PyErr_SetString(type, text.c_str());
  PassOn();
}

void PassOn() {
  // check_layers: allow throw: how pybind11 is told that Python has an exception set
  throw py::error_already_set();
}

}  // namespace ems::python
