#include "common/sleep.h"

#include <sys/prctl.h>

#include <cerrno>
#include <ctime>

namespace ems {
namespace {

void MakeTimersExact() {
  thread_local bool done = false;
  if (done) return;
  done = true;
  constexpr unsigned long kSlackNs = 1000;  // prctl takes it so
  (void)prctl(PR_SET_TIMERSLACK, kSlackNs, 0, 0, 0);
}

}  // namespace

void SleepUntil(TimePoint at) {
  const Clock& clock = Clock::System();
  if (at - clock.Now() > kSleepSpin) {
    MakeTimersExact();
    const Duration since_boot = (at - kSleepSpin).time_since_epoch();
    timespec until{};
    until.tv_sec = since_boot.count() / 1'000'000'000;
    until.tv_nsec = since_boot.count() % 1'000'000'000;
    while (clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &until, nullptr) == EINTR) {
    }
  }
  while (clock.Now() < at) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

}  // namespace ems
