#pragma once
// Requests that carry a view which this server has not: when it asks for that view, and whom.
//
// A view reaches servers and clients at different times, and some of them never from the controller
// that made it: it may die before all have it, and the next one listens for seconds first. So a
// server that is shown to be behind asks the controller, and if it is shown so again a moment later
// the servers of the view that it has.
//
// What a request says is believed by nobody: it makes this server ask, once in kEvery however many
// requests there are, and is forgotten if it does not come again.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "common/clock.h"

namespace ems::server {

// Threading: Note thread-safe; Take from one thread ("ems-ctl").
class NewerView final {
 public:
  static constexpr Duration kEvery = std::chrono::milliseconds(50);
  static constexpr Duration kForgotten = std::chrono::seconds(1);

  // A request, or another server, has a newer view than this server. True: Take is to be called
  // soon. Cost: a few atomic operations
  bool Note(TimePoint now) {
    int64_t next = next_at_.load(std::memory_order_relaxed);
    if (now.time_since_epoch().count() < next) return false;
    const int64_t after = (now + kEvery).time_since_epoch().count();
    if (!next_at_.compare_exchange_strong(next, after, std::memory_order_relaxed)) return false;
    noted_.store(true, std::memory_order_release);
    return true;
  }

  enum class Ask { kNobody, kController, kControllerAndPeers };
  Ask Take(TimePoint now) {
    if (!noted_.exchange(false, std::memory_order_acquire)) return Ask::kNobody;
    const bool again = taken_at_ && now - *taken_at_ < kForgotten;
    taken_at_ = now;
    return again ? Ask::kControllerAndPeers : Ask::kController;
  }
  // The view has come, or another one: the next one is asked for from the beginning.
  void OnInstalled() { taken_at_.reset(); }

 private:
  std::atomic<int64_t> next_at_{INT64_MIN};
  std::atomic<bool> noted_{false};
  std::optional<TimePoint> taken_at_;  // none: not since the last view
};

}  // namespace ems::server
