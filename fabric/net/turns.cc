#include "fabric/net/turns.h"

#include <algorithm>
#include <utility>

namespace ems::fabric {

// In the queue for as long as it lives, also where a stopping server destroys the coroutine.
class Turns::Place final {
 public:
  Place(std::deque<asio::steady_timer*>* queue, asio::steady_timer* own)
      : queue_(*queue), own_(own) {
    queue_.push_back(own);
  }
  ~Place() {
    const auto at = std::ranges::find(queue_, own_);
    if (at != queue_.end()) queue_.erase(at);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

 private:
  std::deque<asio::steady_timer*>& queue_;
  asio::steady_timer* const own_;
};

asio::awaitable<void> Turns::Next(asio::steady_timer* own) {
  if (!AreShort(Clock::System().Now())) {
    co_await asio::post(own->get_executor(), asio::use_awaitable);
    co_return;
  }
  const Place place(&waiting_, own);
  own->expires_at(asio::steady_timer::time_point::max());
  if (!giving_) {
    gave_ = Clock::System().Now();
    Give(own->get_executor());
  }
  asio::error_code cancelled;
  co_await own->async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
}

// An io_context looks at its sockets each time that all handlers queued before have run, so it has
// when a handler that another one posted runs. What it found is served before the one whose timer
// is cancelled here, and that one before the next look.
void Turns::Give(const asio::any_io_executor& executor) {
  asio::post(executor, [this, executor] {
    asio::post(executor, [this, executor] {
      giving_ = false;
      if (waiting_.empty()) return;
      const TimePoint now = Clock::System().Now();
      const auto turns = std::max<int64_t>((now - std::exchange(gave_, now)) / time_per_turn_, 1);
      for (int64_t i = 0; i < turns && !waiting_.empty(); ++i) {
        asio::steady_timer* const first = waiting_.front();
        waiting_.pop_front();
        first->cancel();
      }
      Give(executor);
    });
  });
  giving_ = true;
}

}  // namespace ems::fabric
