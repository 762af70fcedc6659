#include "pdc/rpc/port_host.h"

#include <utility>

namespace ems::pdc {

PortHost::PortHost(PrefillWorker* worker, const PrefillPortOptions& options, size_t links_max)
    : worker_(worker),
      options_(options),
      links_max_(links_max),
      reaper_("ems-reap", 1, 4 * links_max) {}

Result<std::shared_ptr<PrefillLink>> PortHost::Attach(std::unique_ptr<fabric::RingSender> ring) {
  {
    auto state = state_.Lock();
    std::erase_if(state->ports, [](const auto& port) { return port.expired(); });
    if (state->ports.size() >= links_max_)
      return Error(StatusCode::kResourceExhausted, "{} decode workers are linked already",
                   state->ports.size());
  }
  EMS_ASSIGN_OR_RETURN(auto port, PrefillPort::Create(worker_, std::move(ring), options_));
  // A call may be the last to release it, on a thread that must not wait for its end.
  const std::shared_ptr<PrefillPort> shared(
      port.release(), [this](PrefillPort* last) { End(std::shared_ptr<PrefillPort>(last)); });
  auto state = state_.Lock();
  state->ports.push_back(shared);
  return shared;
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
  std::vector<std::weak_ptr<PrefillPort>> ports;
  {
    auto state = state_.Lock();
    ports = state->ports;
    sum = state->gone;
  }
  for (const auto& weak : ports) {
    if (const auto port = weak.lock()) sum += port->stats();
  }
  return sum;
}

}  // namespace ems::pdc
