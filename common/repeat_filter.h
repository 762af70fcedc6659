#pragma once
// Which lines of a log are written, and which are held back because the same has been said again
// and again. The first ones of a kind are written at once. What is held back is counted, and said
// with the last of them once the window has passed.
//
// Bound: kKindsMax kinds are remembered, of each its last line, up to kLineBytesMax and without
// fields where it is longer; where more are at work the one that began first is said, and
// forgotten.
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/log_line.h"

namespace ems::log {

// A line that is to be written.
struct LineOut {
  int level = 0;  // the caller's
  std::string component;
  LogLine line;
  uint64_t repeated = 0;  // so many were held back, of which this is the last; 0: as it came
  Duration within{};      // how long that took
};

// Threading: caller locks.
class RepeatFilter final {
 public:
  static constexpr Duration kWindow = std::chrono::seconds(15);
  static constexpr size_t kKindsMax = 256;
  static constexpr size_t kLineBytesMax = 2048;

  // A line, of whose kind `most` are written within a window. Appends to `out` what is to be
  // written now: that lines were held back whose window has passed, and then this one.
  void Take(uint64_t most, LineOut line, TimePoint now, std::vector<LineOut>* out);
  // The former alone. Cost: O(1) while none is due.
  void TakeDue(TimePoint now, std::vector<LineOut>* out);
  // All that was held back, and forgets it.
  void TakeAll(std::vector<LineOut>* out);

 private:
  struct Kind {
    TimePoint begun_at;
    TimePoint last_at;
    uint64_t written = 0;  // within the window
    LineOut held{};        // the last one, if repeated > 0
  };
  static void Say(Kind* kind, std::vector<LineOut>* out);
  void MakeRoom(std::vector<LineOut>* out);

  std::unordered_map<uint64_t, Kind> kinds_;
  TimePoint due_at_ = TimePoint::max();  // nothing is before
};

}  // namespace ems::log
