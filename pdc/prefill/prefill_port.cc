#include "pdc/prefill/prefill_port.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace ems::pdc {

PrefillPort::PrefillPort(PrefillWorker* worker, std::unique_ptr<fabric::RingSender> ring,
                         const PrefillPortOptions& options)
    : options_(options), worker_(worker), ring_(std::move(ring)) {
  for (uint32_t i = 0; i < options.senders; ++i)
    threads_.emplace_back(fmt::format("ems-psend-{}", i), [this] { SendLoop(); });
  threads_.emplace_back("ems-pprobe", [this] { ProbeLoop(); });
}

// On a thread of the worker's.
void PrefillPort::Computed(uint64_t id, Result<PrefillOutcome> outcome) {
  std::function<void(Result<PrefillOutcome>)> on_done;
  const bool ok = outcome.ok();
  {
    auto locked = state_.Lock();
    on_done = std::exchange(locked->entries.at(id).events.on_done, nullptr);
    EMS_CHECK(on_done != nullptr, "prompt {} was computed twice", id);
  }
  on_done(std::move(outcome));
  {
    auto locked = state_.Lock();
    if (ok) {
      locked->finished.push_back(id);
    } else {
      locked->entries.erase(id);
    }
    // Under the lock: a thread that waits for quiet may destroy all of this once it has it.
    work_.notify_one();
    quiet_.notify_all();
  }
}

void PrefillPort::SendLoop() {
  while (true) {
    uint64_t id = 0, worker_id = 0;
    Deadline deadline = Deadline::After(Duration(0));
    std::shared_ptr<const std::atomic<bool>> cancelled;
    {
      auto locked = state_.Lock();
      locked.Wait(work_, [](const State& s) {
        return !s.finished.empty() || (s.stopping && s.entries.empty());
      });
      if (locked->finished.empty()) return;
      id = locked->finished.front();
      locked->finished.pop_front();
      const Entry& entry = locked->entries.at(id);
      worker_id = entry.worker_id;
      deadline = entry.deadline;
      cancelled = entry.cancelled;
    }
    Send(id, worker_id, deadline, cancelled.get());
  }
}

void PrefillPort::Send(uint64_t id, uint64_t worker_id, Deadline deadline,
                       const std::atomic<bool>* cancelled) {
  Status sent = worker_->HandOver(
      worker_id, ring_.get(), id, deadline,
      {.path = options_.path, .stop = cancelled, .stall_limit = options_.stall_limit});
  std::function<void(Status)> on_sent;
  {
    auto locked = state_.Lock();
    Entry& entry = locked->entries.at(id);
    on_sent = std::move(entry.events.on_sent);
    // It was cancelled before its turn came.
    if (!sent.ok() && cancelled->load()) sent = Error(StatusCode::kCancelled, "cancelled");
    ++(sent.ok() ? locked->stats.handed_over : locked->stats.failed);
  }
  on_sent(sent);
  auto locked = state_.Lock();
  locked->entries.erase(id);
  work_.notify_all();
  quiet_.notify_all();
}

void PrefillPort::Break(const Status& why) {
  {
    auto locked = state_.Lock();
    if (locked->link.ok()) locked->link = Prefixed(why, "the link for KV");
  }
  ring_->HangUp();
}

void PrefillPort::ProbeLoop() {
  uint32_t lost = 0;
  while (!stop_.WaitFor(options_.probe_every)) {
    const auto answer = ring_->Probe(options_.probe_timeout);
    if (stop_.IsSet()) return;
    {
      auto locked = state_.Lock();
      ++locked->stats.probes;
      if (answer.ok()) {
        locked->stats.round_trip = answer->round_trip;
        if (answer->saturated()) ++locked->stats.probes_saturated;
      } else {
        ++locked->stats.probes_lost;
      }
    }
    lost = answer.ok() ? 0 : lost + 1;
    const bool gone = !answer.ok() && answer.status().code() == StatusCode::kUnavailable;
    if (gone || lost >= options_.probes_lost_max)
      return Break(Error(StatusCode::kUnavailable, "{}", Message(answer.status())));
  }
}

Result<std::unique_ptr<PrefillPort>> PrefillPort::Create(PrefillWorker* worker,
                                                         std::unique_ptr<fabric::RingSender> ring,
                                                         const PrefillPortOptions& options) {
  if (options.senders < 1 || options.senders > 16)
    return Error(StatusCode::kInvalidArgument, "senders is {}: 1 to 16", options.senders);
  if (options.probes_lost_max == 0 || options.probe_timeout <= Duration(0))
    return Error(StatusCode::kInvalidArgument, "probes need a number and a time");
  if (options.stall_limit < std::chrono::milliseconds(1))
    return Error(StatusCode::kInvalidArgument, "stall_limit is at least 1 ms");
  return std::unique_ptr<PrefillPort>(new PrefillPort(worker, std::move(ring), options));
}

PrefillPort::~PrefillPort() {
  stop_.Set();
  std::vector<uint64_t> ids;
  {
    auto locked = state_.Lock();
    locked->stopping = true;
    locked->link = Error(StatusCode::kUnavailable, "the link is being closed");
    for (const auto& [id, entry] : locked->entries) ids.push_back(id);
  }
  ring_->HangUp();  // also what is being handed over ends
  for (const uint64_t id : ids) Cancel(id);
  {
    auto locked = state_.Lock();
    locked.Wait(quiet_, [](const State& s) { return s.entries.empty(); });
  }
  work_.notify_all();
  threads_.clear();
}

Status PrefillPort::Start(PrefillTask task, PrefillEvents events) {
  const uint64_t id = task.id;
  task.id = worker_->NewId();
  {
    auto locked = state_.Lock();
    EMS_RETURN_IF_ERROR(locked->link);
    const auto [at, added] = locked->entries.emplace(
        id, Entry{.worker_id = task.id, .deadline = task.deadline, .events = std::move(events)});
    if (!added) return Error(StatusCode::kAlreadyExists, "hand-off {} is under way", id);
  }
  const Status taken = worker_->Submit(std::move(task), [this, id](Result<PrefillOutcome> outcome) {
    Computed(id, std::move(outcome));
  });
  if (taken.ok()) return taken;
  auto locked = state_.Lock();
  locked->entries.erase(id);
  quiet_.notify_all();
  return taken;
}

void PrefillPort::Cancel(uint64_t id) {
  uint64_t worker_id = 0;
  {
    auto locked = state_.Lock();
    const auto found = locked->entries.find(id);
    if (found == locked->entries.end()) return;
    found->second.cancelled->store(true, std::memory_order_release);
    worker_id = found->second.worker_id;
  }
  // Either it has not been handed over yet, or that ends early.
  if (!worker_->Cancel(worker_id)) ring_->Wake();
}

PrefillPortStats& PrefillPortStats::operator+=(const PrefillPortStats& other) {
  handed_over += other.handed_over;
  failed += other.failed;
  stalled += other.stalled;
  probes += other.probes;
  probes_lost += other.probes_lost;
  probes_saturated += other.probes_saturated;
  round_trip = std::max(round_trip, other.round_trip);
  return *this;
}

Status PrefillPort::link() {
  auto locked = state_.Lock();
  return locked->link;
}

PrefillPortStats PrefillPort::stats() {
  const uint64_t stalled = ring_->stalled();
  auto locked = state_.Lock();
  PrefillPortStats stats = locked->stats;
  stats.stalled = stalled;
  return stats;
}

}  // namespace ems::pdc
