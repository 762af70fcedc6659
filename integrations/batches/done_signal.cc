#include "integrations/batches/done_signal.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "common/check.h"

namespace ems::batches {

Result<DoneSignal> DoneSignal::Open() {
  fabric::Fd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!fd.valid()) {
    return Error(StatusCode::kResourceExhausted, "no eventfd: {}", fabric::ErrnoText(errno));
  }
  return DoneSignal(std::move(fd));
}

void DoneSignal::Set() const {
  EMS_CHECK(fd_.valid(), "a signal that was moved from");
  const uint64_t one = 1;
  // It fails only when 2^64 - 2 signals were not read: it is readable then.
  while (::write(fd_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

void DoneSignal::Reset() const {
  uint64_t signals = 0;
  while (::read(fd_.get(), &signals, sizeof(signals)) < 0 && errno == EINTR) {
  }
}

}  // namespace ems::batches
