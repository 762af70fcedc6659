#pragma once
// Changes that a controller puts off because it has just started: it listens for some seconds
// before it decides anything, and waits for leases of its earlier lives to end where it has to. Of
// several controllers those that do not lead say the same.
// Nothing was done then, and it says so: the same call may go again, which no other kUnavailable
// allows.
#include <chrono>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "common/clock.h"
#include "common/retry.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "proto/cluster_metadata.h"

namespace ems {

// The controller's answer begins with kStarting. A client puts the controller's address in front.
inline bool IsStarting(const Status& status) {
  return status.code() == StatusCode::kUnavailable &&
         Message(status).find(kStarting) != std::string_view::npos;
}
template <typename T>
bool IsStarting(const Result<T>& result) {
  return IsStarting(result.status());
}

// The answer of change(deadline), a Status or a Result, which is asked for again while the
// controller has just started; the last one when `deadline` is near. Any other answer ends it.
// Cost: blocks; pauses of 100 to 500 ms between calls.
template <typename Change>
std::invoke_result_t<const Change&, Deadline> WhileStarting(Deadline deadline,
                                                            const Change& change) {
  using std::chrono::milliseconds;
  Backoff backoff(reinterpret_cast<uintptr_t>(&change), milliseconds(200), milliseconds(330));
  StopFlag pause;
  while (true) {
    auto answer = change(deadline);
    const Duration next = backoff.Next();
    if (!IsStarting(answer) || deadline.Remaining() <= next) return answer;
    pause.WaitFor(next);
  }
}

}  // namespace ems
