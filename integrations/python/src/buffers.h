#pragma once
// Memory of Python objects as spans: whatever has the buffer protocol (bytes, bytearray,
// memoryview, numpy), tensors with data_ptr() (torch on the CPU), or lists of them.
//
// Invariant: memory that is named here stays where it is until this ends, by the buffer protocol's
// lock or by a reference. Bound: none of its own; one Py_buffer an object.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/bytes.h"

namespace ems::python {

// Made, filled and destroyed with the GIL held; the spans may be used without it. Move-free.
class BufferSet final {
 public:
  enum class Access : uint8_t { kRead, kWrite };
  explicit BufferSet(Access access) : access_(access) {}
  ~BufferSet();
  BufferSet(const BufferSet&) = delete;
  BufferSet& operator=(const BufferSet&) = delete;

  // Appends the memory of one value: `object`, or each entry of it when it is a list or tuple.
  // Raises TypeError, BufferError  no memory to be had, or of Python objects, read-only for kWrite,
  // or not contiguous
  void AddValue(pybind11::handle object);

  size_t values() const { return value_ends_.size(); }
  std::span<const MutableBytes> value(size_t index) const;

 private:
  void AddOne(pybind11::handle object);

  const Access access_;
  std::deque<Py_buffer> held_;
  std::vector<pybind11::object> kept_;
  std::vector<MutableBytes> parts_;
  std::vector<size_t> value_ends_;
};

// One int; `what` names it in errors. Above 2^63 - 1 it wraps. Raises TypeError, OverflowError.
int64_t IntOf(PyObject* item, const char* what);
// Calls `take` with the ints of a list, tuple, array or tensor, in their order and in pieces.
// `take` may raise. Raises as IntOf. Cost: about a nanosecond an int, of arrays of 4 or 8 bytes
// less.
void VisitInts(pybind11::handle object, const char* what,
               const std::function<void(std::span<const int64_t>)>& take);
void AppendInts(pybind11::handle object, const char* what, std::vector<int64_t>* ints);
// Two ints: start and length of something. Raises as IntOf, and ValueError  not two.
std::pair<int64_t, int64_t> IntPairOf(pybind11::handle pair, const char* what);
// Raises TypeError unless text or bytes; text is encoded as UTF-8. Raises InvalidArgument for text
// with surrogates, which UTF-8 has not.
std::string TextOf(pybind11::handle object, const char* what);
// Of each entry of a list; raises as TextOf.
std::vector<std::string> TextsOf(const pybind11::iterable& list, const char* what);
// An int of a dict of options. Raises TypeError, InvalidArgument  outside of 0 to `most`
uint64_t CountOf(pybind11::handle value, const char* what, uint64_t most);

// An argument that is str or bytes, in UTF-8; raises as TextOf.
struct Text {
  std::string text;
  operator std::string_view() const { return text; }  // NOLINT(google-explicit-constructor)
};

}  // namespace ems::python

namespace pybind11::detail {
template <>
struct type_caster<ems::python::Text> {
  PYBIND11_TYPE_CASTER(ems::python::Text, const_name("str | bytes"));
  bool load(handle from, bool /*convert*/) {
    value.text = ems::python::TextOf(from, "a key or name");
    return true;
  }
};
}  // namespace pybind11::detail
