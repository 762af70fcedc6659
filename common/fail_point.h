#pragma once
// Places where a test makes the program die, wait or fail. Off, a place costs one relaxed load.
//
//   EMS_FAIL_POINT("ssd.before_commit");                       dies or sleeps here when armed so
//   EMS_RETURN_IF_ERROR(FailPointError("ssd.write"));          fails here when armed so
//
// Armed by a text, name=action[@hit] separated by blanks: kill, sleep(MS) or error; with @N only at
// the Nth time a thread passes. An example: "ssd.before_commit=kill@3
// put.after_publish=sleep(20)". Bound: 64 places.
#include <atomic>
#include <string_view>

#include "common/status.h"

namespace ems {

// Replaces what was armed before. An empty text disarms all.
// Errors: kInvalidArgument  naming what cannot be read
Status ArmFailPoints(std::string_view text);

namespace internal {
extern std::atomic<bool> fail_points_armed;
Status HitFailPoint(std::string_view name);
}  // namespace internal

// Errors: kUnavailable  "error" is armed here
inline Status FailPointError(std::string_view name) {
  if (!internal::fail_points_armed.load(std::memory_order_relaxed)) [[likely]]
    return OkStatus();
  return internal::HitFailPoint(name);
}

}  // namespace ems

#define EMS_FAIL_POINT(name)                                                             \
  do {                                                                                   \
    if (::ems::internal::fail_points_armed.load(std::memory_order_relaxed)) [[unlikely]] \
      (void)::ems::internal::HitFailPoint(name);                                         \
  } while (false)
