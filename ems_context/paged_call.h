#pragma once
// A handle on a call that runs later: shared, waited for with a bound, and taken back.
//
// Invariant: once Done() is true, or Cancel() has returned, the call touches no buffer any more.
// Bound: a call that has begun ends by its own deadline; one that still waits for a thread then is
// over for whoever waits for it.
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"
#include "ems_context/context_cache.h"

namespace ems::context {

// The outcome of a call of so many keys that failed as a whole, for `why`.
template <typename Outcome>
Outcome AllFailed(size_t keys, const Status& why);
template <>
LoadResult AllFailed<LoadResult>(size_t keys, const Status& why);
template <>
SaveResult AllFailed<SaveResult>(size_t keys, const Status& why);

// How many calls there are that are not over; its owner must outlive their work. Threading:
// thread-safe.
class CallCount final {
 public:
  void Begin() {
    auto calls = calls_.Lock();
    ++*calls;
  }
  void End() {
    auto calls = calls_.Lock();
    --*calls;
    none_.notify_all();
  }
  void WaitForNone() {
    auto calls = calls_.Lock();
    calls.Wait(none_, [](size_t count) { return count == 0; });
  }

 private:
  Guarded<size_t> calls_{std::in_place, size_t{0}};
  std::condition_variable none_;
};

// What the handle and the thread that does the work share. Threading: thread-safe.
template <typename Outcome>
class CallState final {
 public:
  using OnDone = std::function<void(const Outcome&)>;
  CallState(size_t keys, Deadline deadline, std::shared_ptr<CallCount> count, OnDone done)
      : keys_(keys), deadline_(deadline), count_(std::move(count)), done_(std::move(done)) {
    count_->Begin();
  }

  Deadline deadline() const { return deadline_; }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  // For the thread that does the work: false when there is none left to do.
  bool Start() {
    auto now = now_.Lock();
    if (now->phase != Phase::kQueued) return false;
    now->phase = Phase::kRunning;
    return true;
  }
  void Finish(Outcome outcome) { Settle(Phase::kRunning, std::move(outcome)); }
  // Ends a call that has not begun. False: it has.
  bool Withdraw(const Status& why) {
    return Settle(Phase::kQueued, AllFailed<Outcome>(keys_, why));
  }

  bool WaitUntil(Deadline deadline) {
    auto now = now_.Lock();
    return now.WaitFor(over_, deadline.Remaining(), IsOver);
  }
  Outcome WaitForOutcome() {
    auto now = now_.Lock();
    now.Wait(over_, IsOver);
    return now->outcome;
  }
  void Cancel() {
    cancelled_.store(true, std::memory_order_release);  // read by cancelled()
    if (!Withdraw(Error(StatusCode::kCancelled, "cancelled before it began"))) WaitForOutcome();
  }

 private:
  enum class Phase : uint8_t { kQueued, kRunning, kDone };
  struct Now {
    Phase phase = Phase::kQueued;
    Outcome outcome;
  };
  static bool IsOver(const Now& now) { return now.phase == Phase::kDone; }

  bool Settle(Phase from, Outcome outcome) {
    {
      auto now = now_.Lock();
      if (now->phase != from) return false;
      now->outcome = outcome;
      now->phase = Phase::kDone;
      over_.notify_all();
    }
    if (done_) done_(outcome);
    count_->End();
    return true;
  }

  const size_t keys_;
  const Deadline deadline_;
  const std::shared_ptr<CallCount> count_;
  const OnDone done_;
  std::atomic<bool> cancelled_{false};
  Guarded<Now> now_;
  std::condition_variable over_;
};

// Copies are handles on the same call. Dropping them all does not end it. Threading: thread-safe.
template <typename Outcome>
class PagedCall final {
 public:
  explicit PagedCall(std::shared_ptr<CallState<Outcome>> state) : state_(std::move(state)) {}

  Deadline deadline() const { return state_->deadline(); }  // of the call
  bool Done() const { return Wait(Deadline(TimePoint())); }
  // True when the call is over. A call whose own deadline passes before it has begun is over then:
  // kDeadlineExceeded for each key.
  bool Wait(Deadline deadline) const {
    const Deadline own = state_->deadline();
    if (state_->WaitUntil(std::min(deadline, own, Sooner))) return true;
    if (own.Passed() && state_->Withdraw(Error(StatusCode::kDeadlineExceeded,
                                               "the call's time passed while it was queued")))
      return true;
    return state_->WaitUntil(deadline);
  }
  // Waits until the call is over. Bound: its deadline, and the store's patience behind it.
  Outcome Result() const {
    (void)Wait(state_->deadline());
    return state_->WaitForOutcome();
  }
  // Ends the call: keys that it has not reached say kCancelled. Returns when nothing is touched any
  // more: at once when it has not begun or is over, otherwise behind the batch that is on its way
  // (ContextCacheOptions::batch). Must not be called under a lock that `done` takes.
  void Cancel() const { state_->Cancel(); }

 private:
  static bool Sooner(const Deadline& a, const Deadline& b) { return a.at() < b.at(); }
  std::shared_ptr<CallState<Outcome>> state_;
};

}  // namespace ems::context
