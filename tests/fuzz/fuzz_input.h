#pragma once
// The bytes of an input, taken from its front: numbers as they lie in memory, and the rest. Behind
// the end there are zeros.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "common/bytes.h"

namespace ems::testing {

// Threading: one thread.
class FuzzInput final {
 public:
  FuzzInput(const uint8_t* data, size_t size) : left_(std::as_bytes(std::span(data, size))) {}

  bool empty() const { return left_.empty(); }
  template <typename T>
  T Take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const ConstBytes bytes = TakeBytes(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  // 0 to `most`.
  uint64_t TakeUpTo(uint64_t most) { return Take<uint16_t>() % (most + 1); }
  // So many of them, or what there is.
  ConstBytes TakeBytes(size_t count) {
    const ConstBytes taken = left_.first(std::min(count, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  std::string_view TakeText(size_t count) { return AsText(TakeBytes(count)); }
  ConstBytes TakeRest() { return TakeBytes(left_.size()); }

 private:
  ConstBytes left_;
};

}  // namespace ems::testing
