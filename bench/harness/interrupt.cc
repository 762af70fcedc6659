#include "bench/harness/interrupt.h"

#include <atomic>
#include <csignal>

namespace ems::bench {
namespace {

// A signal handler reaches nothing but globals.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void OnSignal(int /*signal*/) { interrupted.store(true, std::memory_order_relaxed); }

}  // namespace

void CatchInterrupts() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // the second one has its usual effect
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

Status Interruption() { return Error(StatusCode::kCancelled, "interrupted"); }

bool Interrupted() { return interrupted.load(std::memory_order_relaxed); }

}  // namespace ems::bench
