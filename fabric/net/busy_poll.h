#pragma once
// Keeps a thread polling for a moment after it has answered a request, if the request before came
// that soon: to a client that sends one staged Put after the other, waking the thread would cost as
// much as copying half a megabyte.
//
// Bound: kSoon of CPU time after an answer; a lone request costs nothing.
#include "common/clock.h"

namespace ems::fabric {

// Threading: one thread (the one that it keeps awake).
class BusyPoll final {
 public:
  static constexpr Duration kSoon = std::chrono::microseconds(100);
  // One of those requests, from its arrival to its answer.
  class Request final {
   public:
    explicit Request(BusyPoll* poll) : poll_(poll) { poll_->OnRequest(Clock::System().Now()); }
    ~Request() { poll_->OnAnswer(Clock::System().Now()); }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

   private:
    BusyPoll* poll_;
  };

  void OnRequest(TimePoint now) { keeps_ = now - answered_ < kSoon; }
  void OnAnswer(TimePoint now) {
    answered_ = now;
    if (keeps_) until_ = now + kSoon;
  }
  // Whether to look for work again instead of going to sleep.
  bool IsOn(TimePoint now) const { return now < until_; }

 private:
  TimePoint answered_{};
  TimePoint until_{};
  bool keeps_ = false;
};

// Looks for 50 us whether `holds` comes true: what takes longer is worth sleeping.
template <typename Holds>
bool ComesTrueSoon(Holds holds) {
  const TimePoint until = Clock::System().Now() + BusyPoll::kSoon / 2;
  while (!holds()) {
    if (Clock::System().Now() >= until) return false;
  }
  return true;
}

}  // namespace ems::fabric
