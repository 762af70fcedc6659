#include "mp_server/ssd/held_back.h"

#include <algorithm>

namespace ems::ssd {

WriteJob HeldBack::Remove(State* state, Jobs::iterator at) {
  if (at->second.due != kNow)
    bytes_.fetch_sub(at->second.job.value_bytes, std::memory_order_relaxed);
  WriteJob job = std::move(at->second.job);
  state->by_due.erase({at->second.due, job.name});
  state->jobs.erase(at);
  count_.store(state->jobs.size(), std::memory_order_relaxed);
  return job;
}

void HeldBack::MakeDue(State* state, Jobs::iterator at) {
  if (at->second.due == kNow) return;
  state->by_due.erase({at->second.due, at->first});
  at->second.due = kNow;
  state->by_due.emplace(kNow, at->first);
  bytes_.fetch_sub(at->second.job.value_bytes, std::memory_order_relaxed);
}

void HeldBack::Add(State* state, WriteJob job, TimePoint first) {
  const ObjectName name = job.name;
  const TimePoint due = std::min(options_.clock->Now() + options_.quiet, first + options_.longest);
  bytes_.fetch_add(job.value_bytes, std::memory_order_relaxed);
  state->by_due.emplace(due, name);
  state->jobs.emplace(name, Waiting{std::move(job), first, due});
  count_.store(state->jobs.size(), std::memory_order_relaxed);
  while (bytes() > options_.bytes_max) {
    const auto next = state->by_due.lower_bound({kNow + Duration(1), ObjectName()});
    MakeDue(state, state->jobs.find(next->second));
    overdue_.store(true, std::memory_order_relaxed);
  }
}

// What it was to replace is owed a delete of its own, which its caller has asked for.
void HeldBack::Supersede(WriteJob job) {
  options_.index->AbandonWrite(job.name, job.sequence);
  options_.dirty_bytes->fetch_sub(job.value_bytes, std::memory_order_relaxed);
  options_.counts->Add(&WriterStats::spared_objects);
}

bool HeldBack::Hold(WriteJob* job) {
  const TimePoint now = options_.clock->Now();
  std::optional<WriteJob> over;
  bool held = true;
  {
    auto state = state_.Lock();
    const auto at = state->jobs.find(job->name);
    const bool another = at != state->jobs.end();
    const TimePoint first = another ? at->second.first : now;
    if (another && at->second.job.sequence > job->sequence) {
      over = std::move(*job);  // overtaken on its way here
    } else {
      if (another) over = Remove(&*state, at);
      held = !state->ended && options_.quiet > Duration::zero() && state->jobs.size() < kHeldMax &&
             job->value_bytes <= options_.bytes_max;
      if (held) Add(&*state, std::move(*job), first);
    }
  }
  if (over) Supersede(*std::move(over));
  if (!held) options_.index->EndHold(job->name, job->sequence);
  return held;
}

void HeldBack::Drop(const ObjectName& name, uint64_t sequence) {
  if (empty()) return;
  std::optional<WriteJob> over;
  {
    auto state = state_.Lock();
    const auto at = state->jobs.find(name);
    if (at == state->jobs.end() || at->second.job.sequence >= sequence) return;
    over = Remove(&*state, at);
  }
  Supersede(*std::move(over));
}

void HeldBack::Hurry(const ObjectName& name) {
  if (empty()) return;
  auto state = state_.Lock();
  const auto at = state->jobs.find(name);
  if (at != state->jobs.end()) MakeDue(&*state, at);
}

bool HeldBack::HurryAll() {
  if (empty()) return false;
  auto state = state_.Lock();
  state->hurry = !state->jobs.empty();
  if (state->hurry) overdue_.store(true, std::memory_order_relaxed);
  return state->hurry;
}

std::vector<WriteJob> HeldBack::TakeDue(bool end) {
  std::vector<WriteJob> due;
  if (empty() && !overdue() && !end) return due;
  const TimePoint now = options_.clock->Now();
  {
    auto state = state_.Lock();
    state->ended = state->ended || end;
    const bool all = std::exchange(state->hurry, false) || end;
    overdue_.store(false, std::memory_order_relaxed);
    auto& order = state->by_due;
    while (!order.empty() && (all || order.begin()->first <= now)) {
      const TimePoint at = order.begin()->first;
      due.push_back(Remove(&*state, state->jobs.find(order.begin()->second)));
      due.back().quiet = at != kNow && at <= now;
    }
  }
  for (const WriteJob& job : due) options_.index->EndHold(job.name, job.sequence);
  return due;
}

}  // namespace ems::ssd
