#include "integrations/batches/memory_probe.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/check.h"

namespace ems::batches {
namespace {

// Whether all bytes went, as far as the kernel says.
bool AllWent(ssize_t moved, size_t bytes) {
  return moved < 0 ? errno != EFAULT : moved == static_cast<ssize_t>(bytes);
}

}  // namespace

Status MemoryProbe::Add(MutableBytes part) {
  if (part.empty()) return OkStatus();
  EMS_CHECK(count_ + 2 <= kAtOnce, "{} ends wait already", count_);
  ends_[count_++] = {part.data(), 1};
  ends_[count_++] = {&part.back(), 1};
  return count_ == kAtOnce ? Finish() : OkStatus();
}

Status MemoryProbe::Finish() {
  const size_t count = std::exchange(count_, 0);
  if (count == 0) return OkStatus();
  std::array<std::byte, kAtOnce> seen;
  const iovec here{seen.data(), count};
  const pid_t self = ::getpid();
  if (!AllWent(::process_vm_readv(self, &here, 1, ends_.data(), count, 0), count)) {
    return Error(StatusCode::kInternal,
                 "memory of a buffer or tensor is not mapped into this process (any more)");
  }
  if (use_ == MemoryUse::kRead) return OkStatus();
  if (!AllWent(::process_vm_writev(self, &here, 1, ends_.data(), count, 0), count)) {
    return Error(StatusCode::kInternal, "memory to load into cannot be written");
  }
  return OkStatus();
}

}  // namespace ems::batches
