#pragma once
// Sleeping until a moment, as exactly as the machine allows: for what emulates hardware in real
// time. Nothing waits for another thread this way: that is what a StopFlag is for.
#include "common/clock.h"

namespace ems {

// What SleepUntil spins at most, at the end of a sleep.
inline constexpr Duration kSleepSpin = std::chrono::microseconds(20);

// Returns at `at` on Clock::System, at once if it has passed. Sleeps until kSleepSpin before, then
// looks at the clock. Never early. Makes the timers of the calling thread exact (1 µs of slack
// instead of Linux's 50), and leaves them so.
void SleepUntil(TimePoint at);

}  // namespace ems
