#include "common/copy_crew.h"

#include <algorithm>
#include <thread>

#include "common/clock.h"

namespace ems {

size_t CopyCrew::UsualHelpers() {
  constexpr size_t kHelpersMax = 4;
  return std::min<size_t>(std::thread::hardware_concurrency() / 4, kHelpersMax);
}

CopyCrew::CopyCrew(const std::string& name, size_t helpers) {
  auto state = state_.Lock();
  state->jobs.reserve(kJobsMax);
  state.Unlock();
  helpers_.reserve(helpers);
  for (size_t i = 0; i < helpers; ++i)
    helpers_.emplace_back(name + "-" + std::to_string(i), [this] { Help(); });
}

CopyCrew::~CopyCrew() {
  {
    auto state = state_.Lock();
    state->stopping = true;
  }
  work_.notify_all();
  helpers_.clear();
}

void CopyCrew::Run(Job* job) {
  bool is_helped = false;
  if (!helpers_.empty() && job->count > 1) {
    auto state = state_.Lock();
    is_helped = state->jobs.size() < kJobsMax;
    if (is_helped) state->jobs.push_back(job);
  }
  if (!is_helped) return job->Work();
  given_.fetch_add(1, std::memory_order_relaxed);
  work_.notify_all();
  job->Work();
  auto state = state_.Lock();
  std::erase(state->jobs, job);
  state.Wait(left_, [job](const State&) { return job->helpers == 0; });
}

void CopyCrew::AwaitNext(uint64_t seen) const {
  constexpr Duration kMoment = std::chrono::microseconds(50);
  const TimePoint until = Clock::System().Now() + kMoment;
  while (given_.load(std::memory_order_relaxed) == seen && Clock::System().Now() < until)
    std::this_thread::yield();
}

CopyCrew::Job* CopyCrew::TakeJob() {
  Job* job = nullptr;
  auto state = state_.Lock();
  state.Wait(work_, [&job](const State& now) {
    const auto open = std::ranges::find_if_not(now.jobs, &Job::IsTaken);
    job = open == now.jobs.end() ? nullptr : *open;
    return job != nullptr || now.stopping;
  });
  if (job != nullptr) ++job->helpers;
  return job;
}

bool CopyCrew::Leave(Job* job) {
  auto state = state_.Lock();
  if (--job->helpers == 0) left_.notify_all();
  return std::ranges::all_of(state->jobs, &Job::IsTaken);
}

void CopyCrew::Help() {
  while (Job* const job = TakeJob()) {
    const uint64_t given = given_.load(std::memory_order_relaxed);
    job->Work();
    if (Leave(job)) AwaitNext(given);
  }
}

}  // namespace ems
