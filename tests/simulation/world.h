#pragma once
// Virtual time: what happens next, at what time, by what chance. The same seed gives the same run.
#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "common/clock.h"

namespace ems::simulation {

// Threading: one thread.
class World final {
 public:
  explicit World(uint64_t seed) : random_(seed) {}

  TimePoint now() const { return now_; }
  // `event` happens after `delay`; those of one moment in the order in which they were given.
  void After(Duration delay, std::function<void()> event) {
    events_.push({now_ + delay, next_++, std::move(event)});
  }
  // Lets things happen until `until`, or until `stop()` says so after an event.
  void RunUntil(TimePoint until, const std::function<bool()>& stop);

  uint64_t Below(uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }
  bool Chance(double probability) {
    return static_cast<double>(Below(1'000'000)) < probability * 1e6;
  }
  Duration Between(Duration least, Duration most) {
    return least +
           Duration(static_cast<int64_t>(Below(static_cast<uint64_t>((most - least).count()) + 1)));
  }
  uint64_t Number() { return random_(); }

 private:
  struct Event {
    TimePoint at;
    uint64_t order = 0;
    std::function<void()> run;
    friend bool operator>(const Event& a, const Event& b) {
      return a.at != b.at ? a.at > b.at : a.order > b.order;
    }
  };
  TimePoint now_{std::chrono::seconds(1000)};
  uint64_t next_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::mt19937_64 random_;
};

// The clock of one machine: it goes a little faster or slower than the world's.
class DriftingClock final : public Clock {
 public:
  // `drift`: seconds a second.
  DriftingClock(const World* world, double drift)
      : world_(*world), start_(world->now()), drift_(drift) {}
  TimePoint Now() const override {
    const Duration passed = world_.now() - start_;
    return start_ + passed +
           Duration(static_cast<int64_t>(static_cast<double>(passed.count()) * drift_));
  }

 private:
  const World& world_;
  const TimePoint start_;
  const double drift_;
};

}  // namespace ems::simulation
