#pragma once
// Keeps a thread polling for a moment after it has answered a request, if this one came that soon
// after the answer before: to clients that send one request after the other, waking the thread
// costs more than a small request, or as much as copying half a megabyte. Whoever else wants the
// core meanwhile has it. Where several connections keep a thread busy there is no need: while one
// is served others ask.
//
// Bound: kSoon, kSoonStaged where values are copied between processes, of CPU time after an answer;
// a lone request costs nothing.
#include <algorithm>
#include <utility>

#include "common/clock.h"

namespace ems::fabric {

// Threading: one thread (the one that it keeps awake).
class BusyPoll final {
 public:
  static constexpr Duration kSoon = std::chrono::microseconds(50);  // what a wake-up costs at most
  static constexpr Duration kSoonStaged = std::chrono::microseconds(100);
  static constexpr Duration kLong = std::chrono::microseconds(500);
  static constexpr Duration kRest = std::chrono::milliseconds(200);
  // One of those requests, from its arrival to its answer.
  class Request final {
   public:
    Request(BusyPoll* poll, const void* connection, Duration soon) : poll_(poll) {
      poll_->OnRequest(Clock::System().Now(), connection, soon);
    }
    ~Request() { poll_->OnAnswer(Clock::System().Now()); }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

   private:
    BusyPoll* poll_;
  };

  void OnRequest(TimePoint now, const void* connection, Duration soon) {
    const bool alone = std::exchange(connection_, connection) == connection;
    keeps_ = alone && now - answered_ < soon ? soon : Duration::zero();
  }
  void OnAnswer(TimePoint now) {
    answered_ = now;
    until_ = std::max(until_, now + keeps_);
  }
  // Whether to look for work again instead of going to sleep.
  bool IsOn(TimePoint now) const { return now < until_ && now >= rests_until_; }
  // The thread let others have the core. Who computes keeps it for long, and a thread that sleeps
  // gets it back sooner than one that yields: for kRest nobody is kept awake.
  void OnYield(TimePoint before, TimePoint now) {
    if (now - before > kLong) rests_until_ = now + kRest;
  }

 private:
  TimePoint answered_{};
  TimePoint until_{};
  TimePoint rests_until_{};
  Duration keeps_{0};
  const void* connection_ = nullptr;  // of the request before
};

// Looks for 50 us whether `holds` comes true: what takes longer is worth sleeping.
template <typename Holds>
bool ComesTrueSoon(Holds holds) {
  const TimePoint until = Clock::System().Now() + BusyPoll::kSoon;
  while (!holds()) {
    if (Clock::System().Now() >= until) return false;
  }
  return true;
}

}  // namespace ems::fabric
