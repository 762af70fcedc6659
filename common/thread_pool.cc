#include "common/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <utility>

namespace ems {

void NameThread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

Thread::Thread(std::string name, std::function<void()> body)
    : thread_([name = std::move(name), body = std::move(body)] {
        NameThread(name);
        body();
      }) {}

ThreadPool::ThreadPool(const std::string& name, size_t threads, size_t queue_max, OnWake on_wake)
    : queue_max_(queue_max) {
  threads_.reserve(threads);
  for (size_t i = 0; i < threads; ++i) {
    threads_.emplace_back(name + "-" + std::to_string(i), [this, on_wake] {
      if (on_wake == OnWake::kWait) {
        const sched_param no_priority{};
        // Where a sandbox forbids it the pool works all the same.
        (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &no_priority);
      }
      Run();
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    auto state = state_.Lock();
    state->stopping = true;
  }
  wakeup_.notify_all();
  threads_.clear();
}

bool ThreadPool::TrySubmit(std::function<void()>&& task) {
  {
    auto state = state_.Lock();
    if (state->stopping || state->tasks.size() >= queue_max_) return false;
    state->tasks.push_back(std::move(task));
  }
  wakeup_.notify_one();
  return true;
}

void ThreadPool::Run() {
  while (true) {
    std::function<void()> task;
    {
      auto state = state_.Lock();
      state.Wait(wakeup_, [](const State& s) { return s.stopping || !s.tasks.empty(); });
      if (state->tasks.empty()) return;
      task = std::move(state->tasks.front());
      state->tasks.pop_front();
    }
    task();
  }
}

// Notifies under the lock: a waiting thread may destroy the flag as soon as it sees it set.
void StopFlag::Set() {
  auto set = set_.Lock();
  *set = true;
  wakeup_.notify_all();
}

bool StopFlag::IsSet() {
  auto set = set_.Lock();
  return *set;
}

bool StopFlag::WaitFor(std::chrono::nanoseconds timeout) {
  auto set = set_.Lock();
  return set.WaitFor(wakeup_, timeout, [](bool value) { return value; });
}

}  // namespace ems
