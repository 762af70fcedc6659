#include "common/sleep.h"

#include <sys/prctl.h>

#include <algorithm>
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

// A step up for each wake-up that was too late, a quarter of it down for each that was not: settles
// where one of five is too late, and a few that are very late do not move it.
void WakeupLead::Learn(Duration late) {
  constexpr Duration kUp = std::chrono::microseconds(2), kDown = kUp / 4;
  lead_ = late > lead_ ? std::min(lead_ + kUp, kSleepSpinMost)
                       : std::max<Duration>(lead_ - kDown, Duration::zero());
}

void SleepUntil(TimePoint at) {
  thread_local WakeupLead lead;
  const Clock& clock = Clock::System();
  if (const TimePoint wake_at = at - lead.value(); wake_at > clock.Now()) {
    MakeTimersExact();
    const Duration since_boot = wake_at.time_since_epoch();
    timespec until{};
    until.tv_sec = since_boot.count() / 1'000'000'000;
    until.tv_nsec = since_boot.count() % 1'000'000'000;
    while (clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &until, nullptr) == EINTR) {
    }
    lead.Learn(clock.Now() - wake_at);
  }
  while (clock.Now() < at) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

}  // namespace ems
