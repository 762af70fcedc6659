#pragma once
// A fixed number of named threads with a bounded queue. The only place where threads are made.
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/guarded.h"

namespace ems {

// Names the calling thread (15 characters at most are kept), for top, gdb and perf.
void NameThread(const std::string& name);

// A named thread that is joined on destruction. Move-only.
class Thread final {
 public:
  Thread() = default;
  Thread(std::string name, std::function<void()> body);
  Thread(Thread&&) = default;
  Thread& operator=(Thread&&) = default;
  ~Thread() { Join(); }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::thread thread_;
};

// What a thread does when it is woken while another one has the core.
enum class OnWake {
  kPreempt,  // the kernel's default: it may take the core from the thread that has woken it
  kWait,     // SCHED_BATCH: it runs elsewhere, or once that thread sleeps or its slice has ended
};

// Threading: thread-safe.
class ThreadPool final {
 public:
  // Threads are called "<name>-0", … Queue: at most `queue_max` tasks wait. kWait: for callers who
  // hand work over and must go on at once.
  ThreadPool(const std::string& name, size_t threads, size_t queue_max,
             OnWake on_wake = OnWake::kPreempt);
  // Runs what is queued, then joins.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // False, and `task` untouched, when the queue is full or the pool is shutting down. Never blocks.
  [[nodiscard]] bool TrySubmit(std::function<void()>&& task);

 private:
  struct State {
    std::deque<std::function<void()>> tasks;
    bool stopping = false;
  };
  void Run();

  const size_t queue_max_;
  Guarded<State> state_;
  std::condition_variable wakeup_;
  std::vector<Thread> threads_;
};

// A flag that threads sleep on: set once, wakes all. Threading: thread-safe.
class StopFlag final {
 public:
  void Set();
  bool IsSet();
  // Sleeps up to `timeout`; true as soon as the flag is set.
  bool WaitFor(std::chrono::nanoseconds timeout);

 private:
  Guarded<bool> set_{std::in_place, false};
  std::condition_variable wakeup_;
};

}  // namespace ems
