#pragma once
// Waits for what another thread or process does.
#include <poll.h>

#include "common/clock.h"

namespace ems::testing {

// Polls until `ready` holds; false after `timeout`.
template <typename Ready>
bool Eventually(Ready ready, Duration timeout = std::chrono::seconds(20)) {
  const Deadline deadline = Deadline::After(timeout);
  while (!ready()) {
    if (deadline.Passed()) return false;
    ::poll(nullptr, 0, 1);
  }
  return true;
}

}  // namespace ems::testing
