#include "pdc/prefill_port.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "common/thread_pool.h"

namespace ems::pdc {

struct PrefillPort::Impl {
  struct Entry {
    uint64_t worker_id = 0;
    Deadline deadline;
    PrefillEvents events;
    std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
  };
  struct State {
    std::map<uint64_t, Entry> entries;  // by hand-off
    std::deque<uint64_t> finished;      // to be handed over
    Status link;
    PrefillPortStats stats;
    bool stopping = false;
  };

  Impl(PrefillWorker* worker_in, std::unique_ptr<fabric::RingSender> ring_in,
       const PrefillPortOptions& options_in)
      : options(options_in), worker(worker_in), ring(std::move(ring_in)) {}

  void Computed(uint64_t id, Result<PrefillOutcome> outcome);
  void SendLoop();
  void Send(uint64_t id, uint64_t worker_id, Deadline deadline, const std::atomic<bool>* cancelled);
  void ProbeLoop();
  void Break(const Status& why);

  const PrefillPortOptions options;
  PrefillWorker* const worker;
  const std::unique_ptr<fabric::RingSender> ring;
  Guarded<State> state;
  std::condition_variable work, quiet;
  StopFlag stop;
  std::vector<Thread> threads;
};

// On a thread of the worker's.
void PrefillPort::Impl::Computed(uint64_t id, Result<PrefillOutcome> outcome) {
  std::function<void(Result<PrefillOutcome>)> on_done;
  const bool ok = outcome.ok();
  {
    auto locked = state.Lock();
    on_done = std::exchange(locked->entries.at(id).events.on_done, nullptr);
  }
  on_done(std::move(outcome));
  {
    auto locked = state.Lock();
    if (ok) {
      locked->finished.push_back(id);
    } else {
      locked->entries.erase(id);
    }
    // Under the lock: who waits for quiet may take all of this with it once he has it.
    work.notify_one();
    quiet.notify_all();
  }
}

void PrefillPort::Impl::SendLoop() {
  while (true) {
    uint64_t id = 0, worker_id = 0;
    Deadline deadline = Deadline::After(Duration(0));
    std::shared_ptr<const std::atomic<bool>> cancelled;
    {
      auto locked = state.Lock();
      locked.Wait(work, [](const State& s) {
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

void PrefillPort::Impl::Send(uint64_t id, uint64_t worker_id, Deadline deadline,
                             const std::atomic<bool>* cancelled) {
  Status sent = worker->HandOver(
      worker_id, ring.get(), id, deadline,
      {.path = options.path, .stop = cancelled, .stall_limit = options.stall_limit});
  std::function<void(Status)> on_sent;
  {
    auto locked = state.Lock();
    Entry& entry = locked->entries.at(id);
    on_sent = std::move(entry.events.on_sent);
    // It was let go before its turn came.
    if (!sent.ok() && cancelled->load()) sent = Error(StatusCode::kCancelled, "cancelled");
    ++(sent.ok() ? locked->stats.handed_over : locked->stats.failed);
  }
  on_sent(sent);
  auto locked = state.Lock();
  locked->entries.erase(id);
  work.notify_all();
  quiet.notify_all();
}

void PrefillPort::Impl::Break(const Status& why) {
  {
    auto locked = state.Lock();
    if (locked->link.ok()) locked->link = Prefixed(why, "the link for KV");
  }
  ring->HangUp();
}

void PrefillPort::Impl::ProbeLoop() {
  uint32_t lost = 0;
  while (!stop.WaitFor(options.probe_every)) {
    const auto answer = ring->Probe(options.probe_timeout);
    if (stop.IsSet()) return;
    {
      auto locked = state.Lock();
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
    if (gone || lost >= options.probes_lost_max)
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
  auto impl = std::make_unique<Impl>(worker, std::move(ring), options);
  for (uint32_t i = 0; i < options.senders; ++i)
    impl->threads.emplace_back(fmt::format("ems-psend-{}", i),
                               [parts = impl.get()] { parts->SendLoop(); });
  impl->threads.emplace_back("ems-pprobe", [parts = impl.get()] { parts->ProbeLoop(); });
  return std::unique_ptr<PrefillPort>(new PrefillPort(std::move(impl)));
}

PrefillPort::PrefillPort(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

PrefillPort::~PrefillPort() {
  impl_->stop.Set();
  std::vector<uint64_t> ids;
  {
    auto locked = impl_->state.Lock();
    locked->stopping = true;
    locked->link = Error(StatusCode::kUnavailable, "the link is being closed");
    for (const auto& [id, entry] : locked->entries) ids.push_back(id);
  }
  impl_->ring->HangUp();  // also what is being handed over ends
  for (const uint64_t id : ids) Cancel(id);
  {
    auto locked = impl_->state.Lock();
    locked.Wait(impl_->quiet, [](const Impl::State& s) { return s.entries.empty(); });
  }
  impl_->work.notify_all();
  impl_->threads.clear();
}

Status PrefillPort::Start(PrefillTask task, PrefillEvents events) {
  const uint64_t id = task.id;
  task.id = impl_->worker->NewId();
  {
    auto locked = impl_->state.Lock();
    EMS_RETURN_IF_ERROR(locked->link);
    const auto [at, added] = locked->entries.emplace(
        id,
        Impl::Entry{.worker_id = task.id, .deadline = task.deadline, .events = std::move(events)});
    if (!added) return Error(StatusCode::kAlreadyExists, "hand-off {} is under way", id);
  }
  const Status taken = impl_->worker->Submit(
      std::move(task), [impl = impl_.get(), id](Result<PrefillOutcome> outcome) {
        impl->Computed(id, std::move(outcome));
      });
  if (taken.ok()) return taken;
  auto locked = impl_->state.Lock();
  locked->entries.erase(id);
  impl_->quiet.notify_all();
  return taken;
}

void PrefillPort::Cancel(uint64_t id) {
  uint64_t worker_id = 0;
  {
    auto locked = impl_->state.Lock();
    const auto found = locked->entries.find(id);
    if (found == locked->entries.end()) return;
    found->second.cancelled->store(true, std::memory_order_release);
    worker_id = found->second.worker_id;
  }
  // Either it has not been handed over yet, or that ends early.
  if (!impl_->worker->Cancel(worker_id)) impl_->ring->Wake();
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
  auto locked = impl_->state.Lock();
  return locked->link;
}

PrefillPortStats PrefillPort::stats() {
  const uint64_t stalled = impl_->ring->stalled();
  auto locked = impl_->state.Lock();
  PrefillPortStats stats = locked->stats;
  stats.stalled = stalled;
  return stats;
}

}  // namespace ems::pdc
