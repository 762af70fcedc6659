#pragma once
// How soon the server looks again at what its clients of this host have used.
//
// Few uses wait for each other: taken over together their cache misses overlap, and each shard of
// the index is locked once. Who evicts does not depend on it: a RoomMaker takes them over itself.
#include <algorithm>
#include <cstdint>

namespace ems::server {

// Threading: one thread.
class TouchTick final {
 public:
  static constexpr int kMinMs = 20;  // many uses: a ring that is more than half full is sampled
  static constexpr int kMaxMs = 80;
  static constexpr uint64_t kGoal = 768;  // uses of a namespace at a visit; a ring has 4,096

  int ms() const { return ms_; }
  // After a visit that found this many uses in the namespace that had most. The time to the next.
  int After(uint64_t uses) {
    const uint64_t due = static_cast<uint64_t>(ms_) * kGoal / std::max<uint64_t>(uses, 1);
    ms_ = static_cast<int>(std::clamp<uint64_t>(due, kMinMs, kMaxMs));
    return ms_;
  }

 private:
  int ms_ = kMinMs;
};

}  // namespace ems::server
