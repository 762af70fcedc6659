#include "integrations/python/src/buffers.h"

#include <fmt/core.h>

#include <cstring>
#include <limits>

#include "integrations/python/src/errors.h"

namespace ems::python {

namespace py = pybind11;

namespace {

// True when `object` is a C-contiguous array of 8-byte ints, which are then appended.
bool AppendArray(py::handle object, std::vector<int64_t>* ints) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) return false;
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
    PyErr_Clear();
    return false;
  }
  const bool fits = view.itemsize == 8 && view.format != nullptr &&
                    std::strchr("lqLQ", view.format[std::strlen(view.format) - 1]) != nullptr;
  if (fits) {
    const size_t before = ints->size();
    ints->resize(before + static_cast<size_t>(view.len) / 8);
    if (view.len > 0) std::memcpy(ints->data() + before, view.buf, static_cast<size_t>(view.len));
  }
  PyBuffer_Release(&view);
  return fits;
}

int64_t IntOf(PyObject* item, const char* what) {
  py::object index;
  if (!PyLong_Check(item)) {
    index = py::reinterpret_steal<py::object>(PyNumber_Index(item));
    if (!index) {
      PyErr_Clear();
      Refuse(PyExc_TypeError,
             fmt::format("{} must hold ints, not {}", what, Py_TYPE(item)->tp_name));
    }
    item = index.ptr();
  }
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(item, &overflow);
  if (overflow == 0) return value;
  if (overflow > 0) {
    const uint64_t large = PyLong_AsUnsignedLongLong(item);
    if (PyErr_Occurred() == nullptr) return static_cast<int64_t>(large);
    PyErr_Clear();
  }
  Refuse(PyExc_OverflowError, fmt::format("an int of {} does not fit 64 bits", what));
}

// Whether elements of a struct-module format are, or have, references to Python objects.
bool HasObjects(const char* format) {
  bool in_name = false;  // ":name:" follows a field of a struct
  for (; format != nullptr && *format != '\0'; ++format) {
    if (*format == ':') in_name = !in_name;
    if (*format == 'O' && !in_name) return true;
  }
  return false;
}

[[noreturn]] void RefuseObjects() {
  Refuse(PyExc_TypeError, "memory of Python objects has no bytes to move, but addresses");
}

}  // namespace

BufferSet::~BufferSet() {
  for (Py_buffer& view : held_) PyBuffer_Release(&view);
}

void BufferSet::AddValue(py::handle object) {
  if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
    for (const py::handle one : py::reinterpret_borrow<py::sequence>(object)) AddOne(one);
  } else {
    AddOne(object);
  }
  value_ends_.push_back(parts_.size());
}

void BufferSet::AddOne(py::handle object) {
  if (PyObject_CheckBuffer(object.ptr()) != 0) {
    Py_buffer view;
    const int flags =
        PyBUF_C_CONTIGUOUS | (access_ == Access::kWrite ? PyBUF_WRITABLE : PyBUF_SIMPLE);
    if (PyObject_GetBuffer(object.ptr(), &view, flags | PyBUF_FORMAT) != 0) {
      // numpy has no format for some elements (times, bfloat16): their bytes are to be had without.
      PyErr_Clear();
      if (PyObject_GetBuffer(object.ptr(), &view, flags) != 0) PassOn();
      held_.push_back(view);
      const py::object dtype = py::getattr(object, "dtype", py::none());
      if (py::getattr(dtype, "hasobject", py::none()).ptr() == Py_True) RefuseObjects();
    } else {
      held_.push_back(view);
      if (HasObjects(view.format)) RefuseObjects();
    }
    parts_.emplace_back(static_cast<std::byte*>(view.buf), static_cast<size_t>(view.len));
    return;
  }
  const py::tuple span = py::module_::import("ems.tensors").attr("contiguous_span")(object);
  kept_.push_back(py::reinterpret_borrow<py::object>(object));
  const auto address = span[0].cast<uintptr_t>();
  // NOLINTNEXTLINE(performance-no-int-to-ptr): Python tells addresses as ints
  parts_.emplace_back(reinterpret_cast<std::byte*>(address), span[1].cast<size_t>());
}

std::span<const MutableBytes> BufferSet::value(size_t index) const {
  const size_t begin = index == 0 ? 0 : value_ends_[index - 1];
  return std::span(parts_).subspan(begin, value_ends_[index] - begin);
}

void AppendInts(py::handle object, const char* what, std::vector<int64_t>* ints) {
  if (AppendArray(object, ints)) return;
  py::object list = py::reinterpret_borrow<py::object>(object);
  if (PyRange_Check(list.ptr())) {
    list = py::list(list);
  } else if (!PyList_Check(list.ptr()) && !PyTuple_Check(list.ptr()) &&
             py::hasattr(list, "tolist")) {
    list = list.attr("tolist")();
  }
  if (!PyList_Check(list.ptr()) && !PyTuple_Check(list.ptr())) {
    Refuse(PyExc_TypeError,
           fmt::format("{} must be a list of ints, not {}", what, Py_TYPE(object.ptr())->tp_name));
  }
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(list.ptr());
  ints->reserve(ints->size() + static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    ints->push_back(IntOf(PySequence_Fast_GET_ITEM(list.ptr(), i), what));
  }
}

std::string TextOf(py::handle object, const char* what) {
  if (!PyUnicode_Check(object.ptr()) && !PyBytes_Check(object.ptr())) {
    Refuse(PyExc_TypeError,
           fmt::format("{} must be str or bytes, not {}", what, Py_TYPE(object.ptr())->tp_name));
  }
  return object.cast<std::string>();
}

}  // namespace ems::python
