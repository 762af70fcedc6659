#pragma once
// Memory of Python objects as spans: whatever has the buffer protocol (bytes, bytearray,
// memoryview, numpy), tensors with data_ptr() (torch on the CPU), or lists of them.
//
// Invariant: memory that is named here stays where it is until this ends, by the buffer protocol's
// lock or by a reference. Bound: none of its own; one Py_buffer an object.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <deque>
#include <span>
#include <string>
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

// Ints of a list, tuple, array or tensor; `what` names it in errors. An int above 2^63 - 1 wraps.
// Raises TypeError, OverflowError. Cost: about 5 ns an int.
void AppendInts(pybind11::handle object, const char* what, std::vector<int64_t>* ints);
// Raises TypeError unless text or bytes; text is encoded as UTF-8.
std::string TextOf(pybind11::handle object, const char* what);

}  // namespace ems::python
