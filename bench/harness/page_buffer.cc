#include "bench/harness/page_buffer.h"

#include <sys/mman.h>

#include <cstring>

namespace ems::bench {

Result<PageBuffer> PageBuffer::Make(uint64_t bytes) {
  if (bytes == 0) return Error(StatusCode::kInvalidArgument, "a buffer of 0 bytes");
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return Error(StatusCode::kResourceExhausted, "no memory for a buffer of {}",
                 FormatBytes(bytes));
  }
  (void)madvise(mapped, bytes, MADV_HUGEPAGE);  // small pages do as well
  PageBuffer made;
  made.bytes_ = {static_cast<std::byte*>(mapped), bytes};
  std::memset(mapped, 0, bytes);
  return made;
}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
  if (this != &other) {
    Release();
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

void PageBuffer::Release() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
  bytes_ = {};
}

}  // namespace ems::bench
