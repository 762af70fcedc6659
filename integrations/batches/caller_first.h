#pragma once
// A thread that is woken for a batch shall not take the core from the engine's thread that has just
// woken it: it waits for another core, or for its turn.
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "common/clock.h"

namespace ems::batches {

// Of the calling thread, from now on. Cost: a system call the first time.
inline void YieldToCallers() {
  static thread_local const bool yields = [] {
    const sched_param none{};
    return ::sched_setscheduler(0, SCHED_BATCH, &none) == 0;
  }();
  (void)yields;
}

// The callers that are handing a batch over. Threading: thread-safe.
class Callers final {
 public:
  // The stay of one.
  class Stay final {
   public:
    explicit Stay(Callers* callers) : callers_(callers) {
      callers_->inside_.fetch_add(1, std::memory_order_relaxed);
    }
    ~Stay() { callers_->inside_.fetch_sub(1, std::memory_order_relaxed); }
    Stay(const Stay&) = delete;
    Stay& operator=(const Stay&) = delete;

   private:
    Callers* const callers_;
  };

  // Waits until nobody is inside, `most` at most: what a batch wakes, threads and servers of this
  // host, would take the core from that caller before the call has returned.
  void LetGo(Duration most = std::chrono::microseconds(100)) const {
    const TimePoint until = Clock::System().Now() + most;
    while (inside_.load(std::memory_order_relaxed) > 0 && Clock::System().Now() < until) {
      std::this_thread::yield();  // on the caller's core it goes on, on another one this is a look
    }
  }

 private:
  std::atomic<uint32_t> inside_{0};  // relaxed: a hint
};

}  // namespace ems::batches
