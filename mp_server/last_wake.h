#pragma once
// Wakes a connection once for all that its request waits for: when the last of them has come.
#include <atomic>
#include <functional>
#include <memory>
#include <utility>

namespace ems::server {

// Threading: one thread (the connection's "ems-io"); what Next returns is thread-safe, and may be
// called when this is gone.
class LastWake final {
 public:
  void SetWaker(std::function<void()> waker) { waker_ = std::move(waker); }
  // To be called when one more has come.
  std::function<void()> Next() {
    coming_->fetch_add(1, std::memory_order_relaxed);
    return [coming = coming_, waker = waker_] {
      if (coming->fetch_sub(1, std::memory_order_acq_rel) == 1) waker();
    };
  }
  // The last Next is not called after all.
  void TakeBack() { coming_->fetch_sub(1, std::memory_order_acq_rel); }
  // The request has ended, though some may never come.
  void Reset() {
    if (coming_->load(std::memory_order_relaxed) != 0)
      coming_ = std::make_shared<std::atomic<int>>(0);
  }

 private:
  std::function<void()> waker_;
  std::shared_ptr<std::atomic<int>> coming_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace ems::server
