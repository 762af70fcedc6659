#include "mp_controller/event_loop.h"

#include <utility>

#include "common/check.h"

namespace ems::controller {

EventLoop::EventLoop(const std::string& name, Duration tick, std::function<void()> on_tick)
    : tick_(tick), on_tick_(std::move(on_tick)), thread_(name, [this] { Run(); }) {}

EventLoop::~EventLoop() {
  {
    auto state = state_.Lock();
    state->stopping = true;
  }
  wakeup_.notify_all();
  thread_.Join();
}

bool EventLoop::TryPost(std::function<void()>&& task) {
  EMS_CHECK(task != nullptr);
  {
    auto state = state_.Lock();
    if (state->stopping || state->tasks.size() >= kQueueMax) return false;
    state->tasks.push_back(std::move(task));
  }
  wakeup_.notify_one();
  return true;
}

bool EventLoop::Take(TimePoint until, std::deque<std::function<void()>>* tasks) {
  auto state = state_.Lock();
  state.WaitFor(wakeup_, Deadline(until).Remaining(),
                [](const State& s) { return s.stopping || !s.tasks.empty(); });
  tasks->swap(state->tasks);
  return !state->stopping || !tasks->empty();
}

void EventLoop::Run() {
  TimePoint next_tick = Clock::System().Now();
  std::deque<std::function<void()>> tasks;
  while (Take(next_tick, &tasks)) {
    for (const auto& task : tasks) task();
    tasks.clear();
    const TimePoint now = Clock::System().Now();
    if (now < next_tick) continue;
    on_tick_();
    next_tick = now + tick_;
  }
}

}  // namespace ems::controller
