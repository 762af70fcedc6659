#include "integrations/python/src/buffers.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "integrations/python/src/errors.h"

namespace ems::python {

namespace py = pybind11;

namespace {

// Ints of small size, as nearly all slots are, without a call.
inline bool SmallInt(PyObject* item, int64_t* value) {
  if (!PyLong_CheckExact(item)) return false;
  auto* const number = reinterpret_cast<PyLongObject*>(item);
#if PY_VERSION_HEX >= 0x030C0000
  if (PyUnstable_Long_IsCompact(number) == 0) return false;
  *value = PyUnstable_Long_CompactValue(number);
#else
  const Py_ssize_t digits = Py_SIZE(item);
  if (digits < -1 || digits > 1) return false;
  *value = digits == 0 ? 0 : digits * static_cast<int64_t>(number->ob_digit[0]);
#endif
  return true;
}

using TakeInts = std::function<void(std::span<const int64_t>)>;
constexpr size_t kIntsAtOnce = 1024;

// Releases a buffer, whatever is raised while it is held.
struct HeldBuffer {
  ~HeldBuffer() { PyBuffer_Release(&view); }
  Py_buffer view;
};

// True when `object` is a C-contiguous array of 8-byte ints, or of signed ones of 4 bytes.
bool VisitArray(py::handle object, const TakeInts& take) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) return false;
  HeldBuffer held;
  const Py_buffer& view = held.view;
  if (PyObject_GetBuffer(object.ptr(), &held.view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
    PyErr_Clear();
    held.view.obj = nullptr;
    return false;
  }
  if (view.format == nullptr || *view.format == '\0' || view.itemsize == 0) return false;
  const char kind = view.format[std::strlen(view.format) - 1];
  const bool swapped = *view.format == '>' || *view.format == '!';
  const auto count = static_cast<size_t>(view.len) / static_cast<size_t>(view.itemsize);
  if (view.itemsize == 8 && std::strchr("lqLQ", kind) != nullptr && !swapped) {
    if (count > 0) take({static_cast<const int64_t*>(view.buf), count});
    return true;
  }
  if (view.itemsize != 4 || std::strchr("il", kind) == nullptr || swapped) return false;
  const std::span<const int32_t> narrow(static_cast<const int32_t*>(view.buf), count);
  std::array<int64_t, kIntsAtOnce> wide;
  for (size_t at = 0; at < count; at += kIntsAtOnce) {
    const auto some = narrow.subspan(at, std::min(kIntsAtOnce, count - at));
    std::copy(some.begin(), some.end(), wide.begin());
    take(std::span(wide).first(some.size()));
  }
  return true;
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
    // A copy: what a tensor says of itself may take its list apart meanwhile.
    const py::tuple entries(py::reinterpret_borrow<py::object>(object));
    for (const py::handle one : entries) AddOne(one);
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

void VisitInts(py::handle object, const char* what, const TakeInts& take) {
  if (VisitArray(object, take)) return;
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
  std::array<int64_t, kIntsAtOnce> ints;
  size_t at = 0;
  // The list is asked each time: where an int is none yet, its __index__ may change it.
  for (size_t count; at < (count = static_cast<size_t>(PySequence_Fast_GET_SIZE(list.ptr())));) {
    PyObject** const items = PySequence_Fast_ITEMS(list.ptr()) + at;
    const size_t wanted = std::min(kIntsAtOnce, count - at);
    size_t taken = 0;
    while (taken < wanted && SmallInt(items[taken], &ints[taken])) ++taken;
    if (taken < wanted) {
      const auto kept = py::reinterpret_borrow<py::object>(items[taken]);
      ints[taken++] = IntOf(kept.ptr(), what);
    }
    take(std::span(ints).first(taken));
    at += taken;
  }
}

void AppendInts(py::handle object, const char* what, std::vector<int64_t>* ints) {
  VisitInts(object, what, [ints](std::span<const int64_t> some) {
    ints->insert(ints->end(), some.begin(), some.end());
  });
}

std::pair<int64_t, int64_t> IntPairOf(py::handle pair, const char* what) {
  if (PyTuple_CheckExact(pair.ptr()) && PyTuple_GET_SIZE(pair.ptr()) == 2) {
    return {IntOf(PyTuple_GET_ITEM(pair.ptr(), 0), what),
            IntOf(PyTuple_GET_ITEM(pair.ptr(), 1), what)};
  }
  std::vector<int64_t> ints;
  AppendInts(pair, what, &ints);
  if (ints.size() != 2) {
    Refuse(PyExc_ValueError, fmt::format("{} is (start slot, tokens)", what));
  }
  return {ints[0], ints[1]};
}

std::string TextOf(py::handle object, const char* what) {
  if (PyBytes_Check(object.ptr())) return object.cast<std::string>();
  if (!PyUnicode_Check(object.ptr())) {
    Refuse(PyExc_TypeError,
           fmt::format("{} must be str or bytes, not {}", what, Py_TYPE(object.ptr())->tp_name));
  }
  Py_ssize_t bytes = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object.ptr(), &bytes);
  if (text == nullptr) {
    PyErr_Clear();
    Raise(Error(StatusCode::kInvalidArgument, "{} has surrogates, which UTF-8 has not", what));
  }
  return {text, static_cast<size_t>(bytes)};
}

std::vector<std::string> TextsOf(const py::iterable& list, const char* what) {
  std::vector<std::string> texts;
  for (const py::handle one : list) texts.push_back(TextOf(one, what));
  return texts;
}

uint64_t CountOf(py::handle value, const char* what, uint64_t most) {
  const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!index) {
    PyErr_Clear();
    Refuse(PyExc_TypeError,
           fmt::format("{} must be an int, not {}", what, Py_TYPE(value.ptr())->tp_name));
  }
  const uint64_t count = PyLong_AsUnsignedLongLong(index.ptr());
  const bool fits = PyErr_Occurred() == nullptr;
  PyErr_Clear();
  if (!fits || count > most) {
    Raise(Error(StatusCode::kInvalidArgument, "{} is {}; it must be 0 to {}", what,
                std::string(py::str(index)), most));
  }
  return count;
}

}  // namespace ems::python
