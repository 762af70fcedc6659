#pragma once
// How much of a value a thread sends in one call. Whoever asks for little waits for what is being
// sent just then, so while such requests come the calls are short; to large Gets among themselves
// short calls cost a tenth of their speed.
//
// Bound: the first small request of a while waits for a long call of each connection at most, those
// of the next kQuiet for short ones.
#include <cstddef>
#include <cstdint>

#include "common/bytes.h"
#include "common/clock.h"

namespace ems::fabric {

// Threading: one thread (the one that sends).
class SendPace final {
 public:
  static constexpr uint64_t kSmallBytes = 64 * kKiB;  // of a request and its answer together
  static constexpr size_t kShortBytes = 256 * kKiB;   // some 60 us of copying
  static constexpr size_t kLongBytes = kMiB;
  static constexpr Duration kQuiet = std::chrono::seconds(1);

  void OnServed(TimePoint now, uint64_t bytes) {
    if (bytes <= kSmallBytes) short_until_ = now + kQuiet;
  }
  size_t BytesOfCall(TimePoint now) const { return now < short_until_ ? kShortBytes : kLongBytes; }

 private:
  TimePoint short_until_{};
};

}  // namespace ems::fabric
