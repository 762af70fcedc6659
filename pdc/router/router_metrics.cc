#include "pdc/router/router_metrics.h"

#include "common/check.h"

namespace ems::pdc {

RouterMetrics::RouterMetrics(MetricsRegistry* registry, const std::vector<std::string>& peers)
    : registry_(registry) {
  const std::string p = "ems_pdc_router_";
  requests_ = registry->AddCounter(p + "requests_total", "Requests taken");
  attempts_ = registry->AddCounter(p + "attempts_total", "Requests given to a decode worker");
  failovers_ = registry->AddCounter(
      p + "failovers_total", "Attempts lost with their worker; the requests continued elsewhere");
  recomputed_tokens_ =
      registry->AddCounter(p + "recomputed_tokens_total",
                           "Tokens of prompts and answers asked for again after a failover");
  waiting_ = registry->AddGauge(p + "waiting", "Requests without a decode worker");
  running_ = registry->AddGauge(p + "running", "Requests with a decode worker");
  for (const std::string& name : peers) {
    const Labels labels = {{"peer", name}};
    peers_.push_back(
        {.healthy = registry->AddGauge(p + "peer_healthy",
                                       "1: requests are given to this decode worker", labels),
         .requests = registry->AddGauge(p + "peer_requests", "Requests that it has", labels),
         .kv_tokens = registry->AddGauge(p + "peer_kv_tokens",
                                         "KV charged to it, reserve included, in tokens", labels)});
  }
}

void RouterMetrics::Show(const RequestRouterStats& stats) const {
  waiting_.Set(stats.waiting);
  running_.Set(stats.running);
}

bool RouterMetrics::TryTake(uint32_t waiting_max) {
  auto stats = stats_.Lock();
  if (stats->waiting >= waiting_max) return false;
  ++stats->requests;
  ++stats->waiting;
  Show(*stats);
  requests_.Add();
  return true;
}

void RouterMetrics::OnRefused(StatusCode code) {
  registry_
      ->AddCounter("ems_pdc_router_refused_total", "Requests not taken, by why",
                   {{"code", std::string(CodeName(code))}})
      .Add();
  auto stats = stats_.Lock();
  ++stats->refused;
}

void RouterMetrics::OnAttempt() {
  auto stats = stats_.Lock();
  EMS_CHECK(stats->waiting > 0, "an attempt, and no request waits");
  ++stats->attempts;
  --stats->waiting;
  ++stats->running;
  Show(*stats);
  attempts_.Add();
}

void RouterMetrics::OnFailover(uint64_t tokens) {
  auto stats = stats_.Lock();
  EMS_CHECK(stats->running > 0, "a failover, and no request runs");
  ++stats->failovers;
  stats->recomputed_tokens += tokens;
  --stats->running;
  ++stats->waiting;
  Show(*stats);
  failovers_.Add();
  recomputed_tokens_.Add(static_cast<double>(tokens));
}

void RouterMetrics::OnEnded(bool was_waiting, StatusCode code) {
  registry_
      ->AddCounter("ems_pdc_router_ended_total", "Requests that have ended, by how",
                   {{"code", std::string(CodeName(code))}})
      .Add();
  auto stats = stats_.Lock();
  uint32_t& where = was_waiting ? stats->waiting : stats->running;
  EMS_CHECK(where > 0, "one more request has ended than there were");
  --where;
  ++(code == StatusCode::kOk          ? stats->finished
     : code == StatusCode::kCancelled ? stats->cancelled
                                      : stats->failed);
  Show(*stats);
}

void RouterMetrics::OnPeer(int peer, bool healthy, uint64_t requests, uint64_t kv_tokens) {
  const PeerGauges& gauges = peers_[static_cast<size_t>(peer)];
  gauges.healthy.Set(healthy ? 1 : 0);
  gauges.requests.Set(static_cast<double>(requests));
  gauges.kv_tokens.Set(static_cast<double>(kv_tokens));
}

RequestRouterStats RouterMetrics::stats() const {
  auto stats = stats_.Lock();
  return *stats;
}

}  // namespace ems::pdc
