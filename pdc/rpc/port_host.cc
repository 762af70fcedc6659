#include "pdc/rpc/port_host.h"

#include <utility>

namespace ems::pdc {
namespace {

Status NoLink(PrefillLinkId link) {
  return Error(StatusCode::kUnavailable, "there is no link {}", link);
}

}  // namespace

PortHost::PortHost(PrefillWorker* worker, const PrefillPortOptions& options, size_t links_max)
    : worker_(worker),
      options_(options),
      links_max_(links_max),
      reaper_("ems-reap", 1, 4 * links_max) {}

PortHost::~PortHost() {
  std::map<PrefillLinkId, std::shared_ptr<PrefillPort>> ports;
  auto state = state_.Lock();
  ports.swap(state->ports);
  state.Unlock();
}

std::shared_ptr<PrefillPort> PortHost::Find(PrefillLinkId link) {
  auto state = state_.Lock();
  const auto found = state->ports.find(link);
  return found == state->ports.end() ? nullptr : found->second;
}

Result<PrefillLinkId> PortHost::AttachRing(std::unique_ptr<fabric::RingSender> ring) {
  {
    auto state = state_.Lock();
    if (state->ports.size() >= links_max_)
      return Error(StatusCode::kResourceExhausted, "{} decode workers are linked already",
                   state->ports.size());
  }
  EMS_ASSIGN_OR_RETURN(auto port, PrefillPort::Create(worker_, std::move(ring), options_));
  // A call may be the last to let go of it, on a thread that must not wait for its end.
  std::shared_ptr<PrefillPort> shared(
      port.release(), [this](PrefillPort* last) { End(std::shared_ptr<PrefillPort>(last)); });
  auto state = state_.Lock();
  state->ports.emplace(++state->links, std::move(shared));
  return state->links;
}

void PortHost::DetachRing(PrefillLinkId link) {
  std::shared_ptr<PrefillPort> port;
  {
    auto state = state_.Lock();
    const auto found = state->ports.find(link);
    if (found == state->ports.end()) return;
    port = std::move(found->second);
    state->ports.erase(found);
  }
}

void PortHost::End(std::shared_ptr<PrefillPort> port) {
  PrefillPortStats stats = port->stats();
  stats.round_trip = Duration(0);
  {
    auto state = state_.Lock();
    state->gone += stats;
  }
  // It waits for what is under way.
  (void)reaper_.TrySubmit([port = std::move(port)]() mutable { port.reset(); });
}

Status PortHost::LinkStatus(PrefillLinkId link) {
  const auto port = Find(link);
  return port == nullptr ? NoLink(link) : port->link();
}

Status PortHost::Start(PrefillLinkId link, PrefillTask task, PrefillEvents events) {
  const auto port = Find(link);
  return port == nullptr ? NoLink(link) : port->Start(std::move(task), std::move(events));
}

void PortHost::Cancel(PrefillLinkId link, uint64_t id) {
  if (const auto port = Find(link)) port->Cancel(id);
}

PrefillPulse PortHost::Pulse() {
  const PrefillWorkerStats stats = worker_->stats();
  return {.status = OkStatus(),
          .ticks = stats.ticks,
          .busy = stats.busy,
          .queued_cost = stats.queued_cost,
          .kv_tokens_free = uint64_t{stats.free_blocks} * worker_->block_tokens(),
          .tasks = stats.here};
}

PrefillPortStats PortHost::stats() {
  PrefillPortStats sum;
  std::map<PrefillLinkId, std::shared_ptr<PrefillPort>> ports;
  {
    auto state = state_.Lock();
    ports = state->ports;
    sum = state->gone;
  }
  for (const auto& [link, port] : ports) sum += port->stats();
  return sum;
}

}  // namespace ems::pdc
