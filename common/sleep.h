#pragma once
// Sleeping until a moment, as exactly as the machine allows: for what emulates hardware in real
// time. Nothing waits for another thread this way: that is what a StopFlag is for.
#include "common/clock.h"

namespace ems {

// What SleepUntil spins at most, at the end of a sleep.
inline constexpr Duration kSleepSpinMost = std::chrono::microseconds(100);

// The time by which a thread asks to be woken early, learnt from how late it was: about what four
// of five wake-ups keep. A few microseconds on bare metal, 20 to 50 in a virtual machine, whose
// idle cores are woken through the hypervisor. Threading: one thread.
class WakeupLead final {
 public:
  Duration value() const { return lead_; }
  // A wake-up came `late` after the moment that was asked for.
  void Learn(Duration late);

 private:
  Duration lead_ = std::chrono::microseconds(20);
};

// Returns at `at` on Clock::System, at once if it has passed. Sleeps until the calling thread's
// lead before, then looks at the clock. Never early. Makes the timers of the calling thread exact
// (1 µs of slack instead of Linux's 50), and leaves them so.
void SleepUntil(TimePoint at);

}  // namespace ems
