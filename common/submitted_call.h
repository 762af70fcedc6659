#pragma once
// Asynchronous calls: submitted now, their outcome delivered later. All asynchronous APIs of EMS
// use this.
//
// A CallGate counts an owner's calls, refuses those that come too late, and closes in order. A
// CallState is one call, between the thread that submitted it and the one that does its work. A
// SubmittedCall is the submitter's handle on it; who listens to an eventfd or a callback instead
// has CallState::OnOver.
//
// Invariant: a call ends exactly once, by its work or by a refusal before that began; then, and
// once Cancel() or CallGate::Close() has returned, it touches no memory of its caller. Bound: work
// that has begun ends by its own deadline; a call that still waits for a thread then is over for
// the threads that wait for it. How many may wait is the bound of the threads that it is submitted
// to.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "common/check.h"
#include "common/clock.h"
#include "common/guarded.h"
#include "common/status.h"

namespace ems {

// The calls of one owner that are not over. It must outlive them. Threading: thread-safe.
class CallGate final {
 public:
  // What calls end with that come, or would begin, behind Close; and those that waited too long.
  explicit CallGate(Status closed = Error(StatusCode::kUnavailable, "calls are not taken any more"),
                    Status late = Error(StatusCode::kDeadlineExceeded,
                                        "the call's time passed while it waited for a thread"))
      : closed_(std::move(closed)), late_(std::move(late)) {}

  // Counts a call. False: it must not begin; it counts all the same.
  bool Enter() {
    auto state = state_.Lock();
    ++state->calls;
    return !state->closing;
  }
  void Leave() {
    auto state = state_.Lock();
    EMS_CHECK(state->calls > 0, "a call left that had not entered");
    // Under the lock: a waiting thread may destroy the gate as soon as it is released.
    if (--state->calls == 0) none_.notify_all();
  }
  // From now on no call begins; IsClosing() says so to those that wait for a thread.
  void Shut() {
    auto state = state_.Lock();
    state->closing = true;
  }
  bool IsClosing() {
    auto state = state_.Lock();
    return state->closing;
  }
  // Shuts it, and waits until no call is left. Again: does nothing.
  void Close() {
    auto state = state_.Lock();
    state->closing = true;
    state.Wait(none_, [](const State& now) { return now.calls == 0; });
  }

  const Status& closed() const { return closed_; }
  const Status& late() const { return late_; }

 private:
  struct State {
    size_t calls = 0;
    bool closing = false;
  };
  const Status closed_, late_;  // made here, so that ending a call allocates nothing
  Guarded<State> state_;
  std::condition_variable none_;
};

// The stay of a call that runs on its caller's thread.
class CallPass final {
 public:
  explicit CallPass(CallGate* gate) : gate_(gate), is_open_(gate->Enter()) {}
  ~CallPass() { gate_->Leave(); }
  CallPass(const CallPass&) = delete;
  CallPass& operator=(const CallPass&) = delete;
  bool is_open() const { return is_open_; }  // false: the call must not begin

 private:
  CallGate* const gate_;
  const bool is_open_;
};

// The state that the handle and the thread that does the work share. Threading: thread-safe.
template <typename Outcome>
class CallState final {
 public:
  // What a call ends with that did not begin, for `why`.
  using Refusal = std::function<Outcome(const Status& why)>;
  using OnOver = std::function<void(const Outcome&)>;
  // `on_over` runs when the outcome is there, before the gate lets its owner go, without a lock.
  CallState(Deadline deadline, CallGate* gate, Refusal refuse, OnOver on_over = {})
      : deadline_(deadline),
        gate_(gate),
        refuse_(std::move(refuse)),
        on_over_(std::move(on_over)),
        is_open_(gate->Enter()) {}
  // One that was never submitted leaves without a word.
  ~CallState() {
    if (Claim()) gate_->Leave();
  }
  CallState(const CallState&) = delete;
  CallState& operator=(const CallState&) = delete;

  Deadline deadline() const { return deadline_; }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  // Has a thread of `threads` do `work`, which must Finish() the call; it is over at once, with
  // `full`, when too much waits there. `threads`: a function that takes a std::function<void()>&&.
  template <typename Threads, typename Work>
  static void Submit(const std::shared_ptr<CallState>& state, const Threads& threads,
                     const Status& full, Work work) {
    if (!state->is_open_) {
      state->Withdraw(state->gate_->closed());
    } else if (!threads([state, work = std::move(work)] {
                 if (state->Begin()) work(state);
               })) {
      state->Withdraw(full);
    }
  }

  // The caller that gets true, once, ends the call.
  bool Claim() {
    auto now = now_.Lock();
    if (now->phase != Phase::kQueued) return false;
    now->phase = Phase::kRunning;
    return true;
  }
  // For the thread that is to do the work. False: there is none left to do.
  bool Begin() {
    if (!Claim()) return false;
    const bool closed = gate_->IsClosing();
    if (!closed && !deadline_.Passed()) return true;
    Finish(refuse_(closed ? gate_->closed() : gate_->late()));
    return false;
  }
  // For the caller that claimed it.
  void Finish(Outcome outcome) {
    Settle(outcome);
    if (on_over_) on_over_(outcome);
    gate_->Leave();
  }
  // The same for a call that was not accepted after all: nobody is told.
  void Abandon() { gate_->Leave(); }
  // Ends a call that has not begun. False: it has.
  bool Withdraw(const Status& why) {
    if (!Claim()) return false;
    Finish(refuse_(why));
    return true;
  }
  // The same for one whose time has passed. While it is not over its gate is there.
  bool WithdrawIfLate() {
    if (!deadline_.Passed() || !Claim()) return false;
    Finish(refuse_(gate_->late()));
    return true;
  }

  bool WaitUntil(Deadline deadline) {
    auto now = now_.Lock();
    return now.WaitFor(over_, deadline.Remaining(), IsOver);
  }
  Outcome WaitForOutcome() {
    auto now = now_.Lock();
    now.Wait(over_, IsOver);
    return *now->outcome;
  }
  void Cancel() {
    cancelled_.store(true, std::memory_order_release);  // read by cancelled()
    if (!Withdraw(Error(StatusCode::kCancelled, "cancelled before it began"))) WaitForOutcome();
  }

 private:
  enum class Phase : uint8_t { kQueued, kRunning, kDone };
  struct Now {
    Phase phase = Phase::kQueued;
    std::optional<Outcome> outcome{};  // once it is over
  };
  static bool IsOver(const Now& now) { return now.phase == Phase::kDone; }

  void Settle(const Outcome& outcome) {
    auto now = now_.Lock();
    EMS_CHECK(now->phase == Phase::kRunning, "a call ends once, by who claimed it");
    now->outcome = outcome;
    now->phase = Phase::kDone;
    over_.notify_all();
  }

  const Deadline deadline_;
  CallGate* const gate_;
  const Refusal refuse_;
  const OnOver on_over_;
  const bool is_open_;
  std::atomic<bool> cancelled_{false};
  Guarded<Now> now_;
  std::condition_variable over_;
};

// Copies are handles on the same call. Dropping them all does not end it. Threading: thread-safe.
template <typename Outcome>
class SubmittedCall final {
 public:
  explicit SubmittedCall(std::shared_ptr<CallState<Outcome>> state) : state_(std::move(state)) {}

  Deadline deadline() const { return state_->deadline(); }  // of the call
  bool Done() const { return Wait(Deadline(TimePoint())); }
  // True when the call is over. A call whose own deadline passes before it has begun is over then:
  // kDeadlineExceeded.
  bool Wait(Deadline deadline) const {
    const Deadline own = state_->deadline();
    if (state_->WaitUntil(std::min(deadline, own, Sooner))) return true;
    return state_->WithdrawIfLate() || state_->WaitUntil(deadline);
  }
  // Waits until the call is over. Bound: its deadline, and the patience of its work behind it.
  Outcome Result() const {
    (void)Wait(state_->deadline());
    return state_->WaitForOutcome();
  }
  // Ends the call: what it has not reached says kCancelled. Returns when nothing is touched any
  // more: at once when it has not begun or is over, otherwise behind what is on its way. Must not
  // be called under a lock that OnOver takes.
  void Cancel() const { state_->Cancel(); }

 private:
  static bool Sooner(const Deadline& a, const Deadline& b) { return a.at() < b.at(); }
  std::shared_ptr<CallState<Outcome>> state_;
};

}  // namespace ems
