#pragma once
// What clients did to a few keys, and whether what they read can be true: a value that an
// acknowledged Put or Remove has replaced before the read began must not come back. A miss is
// always legal.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"

namespace ems::simulation {

// Threading: one thread.
class KeyLog final {
 public:
  // A Put of a value that no other Put has, or, with value 0, a Remove. Returns its number.
  size_t Begin(int key, uint64_t value, TimePoint now);
  void Acknowledge(int key, size_t number, TimePoint now);
  // What is wrong with reading `value` (0: a miss) in a read that began at `begun`; empty: nothing.
  std::string Check(int key, uint64_t value, TimePoint begun) const;
  // From now on nothing is wrong with any value.
  void StopChecking() { checks_ = false; }

 private:
  struct Change {
    uint64_t value = 0;
    TimePoint begun;
    std::optional<TimePoint> acknowledged;
  };
  std::map<int, std::vector<Change>> changes_;
  bool checks_ = true;
};

}  // namespace ems::simulation
