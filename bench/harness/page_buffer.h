#pragma once
// Memory of whole pages, all of them touched: what a copy is measured with must not pay for page
// faults, nor for an odd alignment.
#include <cstdint>
#include <utility>

#include "common/bytes.h"
#include "common/status.h"

namespace ems::bench {

// Sole owner of its mapping. Move-only. Threading: immutable; the bytes are the caller's matter.
class PageBuffer final {
 public:
  // All zero, in huge pages where the machine gives them.
  // Errors: kInvalidArgument  zero bytes    kResourceExhausted  no such memory
  static Result<PageBuffer> Make(uint64_t bytes);

  PageBuffer() = default;
  PageBuffer(PageBuffer&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  PageBuffer& operator=(PageBuffer&& other) noexcept;
  ~PageBuffer() { Release(); }

  MutableBytes bytes() const { return bytes_; }

 private:
  void Release();
  MutableBytes bytes_;
};

}  // namespace ems::bench
