#pragma once
// One named thread that runs posted tasks in order and a tick at a fixed pace: all of the
// controller's state lives on it, so no lock is ever held across a write to the store. Bound:
// kQueueMax tasks wait.
#include <condition_variable>
#include <deque>
#include <functional>
#include <string>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/thread_pool.h"

namespace ems::controller {

// Threading: thread-safe.
class EventLoop final {
 public:
  static constexpr size_t kQueueMax = 4096;

  // `on_tick` runs each `tick` (later when a task takes longer), and once at the start.
  EventLoop(const std::string& name, Duration tick, std::function<void()> on_tick);
  // Runs what is queued, then ends.
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // False, and `task` untouched, when the queue is full. Never blocks.
  [[nodiscard]] bool TryPost(std::function<void()>&& task);

 private:
  struct State {
    std::deque<std::function<void()>> tasks;
    bool stopping = false;
  };
  void Run();
  // Waits for tasks until `until`; false when there is nothing left to do for ever.
  bool Take(TimePoint until, std::deque<std::function<void()>>* tasks);

  const Duration tick_;
  const std::function<void()> on_tick_;
  Guarded<State> state_;
  std::condition_variable wakeup_;
  Thread thread_;
};

}  // namespace ems::controller
