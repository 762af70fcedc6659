#pragma once
// The wait of a connection for its session: a step is repeated each time its waker is called or its
// wait has passed, until the step stops asking for a wait or the request's time to wait is used up.
// A step that works in turns is repeated after the other connections of the thread have had theirs.
//
// Bound: kWaitMax, the request's own deadline and the step's patience, over all steps of a request.
#include <algorithm>
#include <functional>
#include <memory>

#include "common/clock.h"
#include "fabric/net/io_threads.h"
#include "fabric/rpc/rpc_session.h"

namespace ems::fabric::internal {

// Threading: one thread (the io_context's); what waker() returns is thread-safe.
class SessionWait final {
 public:
  // Whatever sessions and clients say.
  static constexpr Duration kWaitMax = std::chrono::seconds(10);

  // `socket` and `turns` must outlive this; once it is closed nothing waits any more.
  SessionWait(StreamSocket* socket, Turns* turns);
  ~SessionWait() { IgnoreWakes(); }
  SessionWait(const SessionWait&) = delete;
  SessionWait& operator=(const SessionWait&) = delete;

  // What asks the step that waits at once. On any thread and at any time, also when this is gone.
  std::function<void()> waker() const;
  // From now on wakers do nothing.
  void IgnoreWakes();
  // Ends a Pause, and asks the step that waits.
  void Wake() { timer_.cancel(); }
  // A new request, which may wait so long; 0: it does not say.
  void Begin(Duration deadline);
  // Asks `step`, which returns an Outcome. The last one may still want to wait: it has waited
  // enough.
  template <typename Step>
  asio::awaitable<Outcome> Settle(Step step);
  // What the present request has waited so far.
  Duration waited() const { return waited_; }
  // Until `pause` has passed, or Wake.
  asio::awaitable<void> Pause(Duration pause);

 private:
  class Waker;

  StreamSocket* const socket_;
  Turns* const turns_;
  asio::steady_timer timer_;
  const std::shared_ptr<Waker> waker_;
  Duration allowed_{0};  // how long the present request may wait
  Duration waited_{0};   // how long it has
};

template <typename Step>
asio::awaitable<Outcome> SessionWait::Settle(Step step) {
  Outcome outcome = step();
  while (outcome.again || outcome.wait > Duration::zero()) {
    if (outcome.again) {
      co_await turns_->Next(&timer_);
      if (!socket_->is_open()) break;
      outcome = step();
      continue;
    }
    const Duration left = std::min(outcome.patience, allowed_) - waited_;
    if (left <= Duration::zero()) break;
    const TimePoint began = Clock::System().Now();
    co_await Pause(std::min(outcome.wait, left));
    if (!socket_->is_open()) break;  // otherwise a waker has cancelled the timer
    waited_ += Clock::System().Now() - began;
    outcome = step();
  }
  co_return outcome;
}

}  // namespace ems::fabric::internal
