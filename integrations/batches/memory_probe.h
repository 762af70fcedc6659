#pragma once
// Checks that this process can access memory given by its address, so that the address of an
// accelerator's memory, or of memory that its owner has unmapped, is an error and does not crash
// the process.
#include <sys/uio.h>

#include <array>
#include <cstdint>

#include "common/bytes.h"
#include "common/status.h"

namespace ems::batches {

enum class MemoryUse : uint8_t { kRead, kWrite };

// Takes the parts of a call, tries many of them at once. Threading: one thread.
class MemoryProbe final {
 public:
  explicit MemoryProbe(MemoryUse use) : use_(use) {}
  // Whether this process can read, and for kWrite also write, the first and the last byte of each
  // part so far; yes where the kernel does not say. Written is what has just been read there:
  // nobody else may write these bytes meanwhile. It does not see holes, nor memory that is unmapped
  // later. Errors: kInternal  it cannot; of Add, that may be a part of before. Cost: a syscall for
  // 512 parts, two to write.
  Status Add(MutableBytes part);
  Status Finish();

 private:
  static constexpr size_t kAtOnce = 1024;  // as many as the kernel takes

  const MemoryUse use_;
  size_t count_ = 0;
  std::array<iovec, kAtOnce> ends_;
};

}  // namespace ems::batches
