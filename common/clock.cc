#include "common/clock.h"

#include <ctime>

namespace ems {
namespace {

Duration Read(clockid_t id) {
  timespec ts{};
  clock_gettime(id, &ts);
  return std::chrono::seconds(ts.tv_sec) + Duration(ts.tv_nsec);
}

class SystemClock final : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(Read(CLOCK_BOOTTIME)); }
};

}  // namespace

const Clock& Clock::System() {
  static const SystemClock clock;
  return clock;
}

Duration ProcessCpuTime() { return Read(CLOCK_PROCESS_CPUTIME_ID); }

}  // namespace ems
