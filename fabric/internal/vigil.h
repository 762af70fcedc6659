#pragma once
// Keeps an "ems-io" thread awake for a moment after it has answered a staged Put, if the one before
// came that soon: to a client that Puts one value after the other, waking the thread would cost as
// much as copying half a megabyte.
//
// Bound: kSoon of CPU time after an answer; a lone Put costs nothing.
#include "common/clock.h"

namespace ems::fabric::internal {

// Threading: one thread (its "ems-io").
class Vigil final {
 public:
  static constexpr Duration kSoon = std::chrono::microseconds(100);
  // A staged Put, from its arrival to its answer.
  class Put final {
   public:
    explicit Put(Vigil* vigil) : vigil_(vigil) { vigil_->OnRequest(Clock::System().Now()); }
    ~Put() { vigil_->OnAnswer(Clock::System().Now()); }
    Put(const Put&) = delete;
    Put& operator=(const Put&) = delete;

   private:
    Vigil* vigil_;
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
  const TimePoint until = Clock::System().Now() + Vigil::kSoon / 2;
  while (!holds()) {
    if (Clock::System().Now() >= until) return false;
  }
  return true;
}

}  // namespace ems::fabric::internal
