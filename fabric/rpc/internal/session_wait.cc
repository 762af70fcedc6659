#include "fabric/rpc/internal/session_wait.h"

#include <utility>

#include "common/check.h"
#include "common/guarded.h"

namespace ems::fabric::internal {

// Outlives its SessionWait. Threading: thread-safe.
class SessionWait::Waker final : public std::enable_shared_from_this<Waker> {
 public:
  explicit Waker(asio::steady_timer* timer) : timer_(std::in_place, timer) {}
  // Posting only queues; under the lock, so that the io_context is still there.
  void Wake() {
    auto timer = timer_.Lock();
    if (*timer == nullptr) return;
    asio::post((*timer)->get_executor(), [self = shared_from_this()] {
      auto waiting = self->timer_.Lock();
      if (*waiting != nullptr) (*waiting)->cancel();
    });
  }
  void Detach() {
    auto timer = timer_.Lock();
    *timer = nullptr;
  }

 private:
  Guarded<asio::steady_timer*> timer_;
};

SessionWait::SessionWait(StreamSocket* socket, Turns* turns)
    : socket_(socket),
      turns_(turns),
      timer_(socket->get_executor()),
      waker_(std::make_shared<Waker>(&timer_)) {}

std::function<void()> SessionWait::waker() const {
  return [waker = waker_] { waker->Wake(); };
}

void SessionWait::IgnoreWakes() { waker_->Detach(); }

void SessionWait::Begin(Duration deadline) {
  EMS_CHECK(deadline >= Duration::zero());
  allowed_ = deadline == Duration::zero() ? kWaitMax : std::min(kWaitMax, deadline);
  waited_ = Duration::zero();
}

asio::awaitable<void> SessionWait::Pause(Duration pause) {
  timer_.expires_after(pause);
  asio::error_code woken;
  co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
}

}  // namespace ems::fabric::internal
