#include "pdc/daemon/loop_metrics.h"

#include <utility>

namespace ems::pdc {

void LoopMetrics::Count(const std::string& name, const std::string& help, const Labels& labels,
                        uint64_t value) {
  uint64_t before = 0;
  {
    auto shown = shown_.Lock();
    uint64_t& last = (*shown)[{name, labels}];
    before = std::exchange(last, std::max(last, value));
  }
  const Counter counter = registry_->AddCounter(name, help, labels);
  if (value > before) counter.Add(static_cast<double>(value - before));
}

void LoopMetrics::Show(const std::string& name, const std::string& help, const Labels& labels,
                       double value) {
  registry_->AddGauge(name, help, labels).Set(value);
}

void LoopMetrics::ShowCache(const Labels& labels, const PrefixCacheStats& cache) {
  Count("ems_pdc_saved_blocks_total", "KV blocks stored in the pool", labels, cache.saved_blocks);
  Count("ems_pdc_existing_blocks_total", "KV blocks that the pool had already", labels,
        cache.existing_blocks);
  Count("ems_pdc_failed_saves_total", "KV blocks that could not be stored", labels,
        cache.failed_blocks);
  Count("ems_pdc_saves_left_out_total", "Saves left out because too many were under way", labels,
        cache.saves_left_out);
}

void LoopMetrics::ShowPrefill(const std::string& worker, const PrefillWorkerStats& stats,
                              const PrefixCacheStats& cache) {
  const Labels labels = {{"worker", worker}};
  Count("ems_pdc_prefill_prompts_total", "Prompts taken", labels, stats.tasks);
  Count("ems_pdc_prefill_failed_total", "Prompts that ended with an error", labels, stats.failed);
  Count("ems_pdc_prefill_cancelled_total", "Prompts that were cancelled", labels, stats.cancelled);
  Count("ems_pdc_prefill_tokens_total", "Tokens of prompts that were computed, cached ones too",
        labels, stats.prompt_tokens);
  Count("ems_pdc_prefill_cached_tokens_total", "Tokens of them whose KV came from the pool", labels,
        stats.cached_tokens);
  Count("ems_pdc_prefill_steps_total", "Steps of all groups", labels, stats.steps);
  Show("ems_pdc_prefill_prompts", "Prompts here, those that wait for their hand-over too", labels,
       stats.here);
  Show("ems_pdc_prefill_queued_tokens", "What waits to be computed", labels, stats.queued_cost);
  Show("ems_pdc_prefill_free_blocks", "KV blocks that are free", labels, stats.free_blocks);
  ShowCache(labels, cache);
}

void LoopMetrics::ShowDecode(const std::string& worker, const DecodeWorkerStats& stats,
                             const PrefixCacheStats& cache) {
  const Labels labels = {{"worker", worker}};
  Count("ems_pdc_decode_requests_total", "Requests taken", labels, stats.tasks);
  Count("ems_pdc_decode_failed_total", "Requests that ended with an error", labels, stats.failed);
  Count("ems_pdc_decode_cancelled_total", "Requests that were cancelled", labels, stats.cancelled);
  Count("ems_pdc_decode_tokens_total", "Tokens of answers", labels, stats.tokens);
  Count("ems_pdc_decode_steps_total", "Steps of the loop", labels, stats.steps);
  Count("ems_pdc_decode_preempted_total",
        "Times that a request gave its KV back for others and was computed again", labels,
        stats.preempted);
  Count("ems_pdc_decode_lost_prefills_total",
        "Prefills and hand-overs that failed and were asked again", labels, stats.lost);
  Count("ems_pdc_decode_drafts_total", "Guesses of the MTP head that were checked", labels,
        stats.drafts);
  Count("ems_pdc_decode_drafts_right_total", "Guesses that were right", labels, stats.drafts_right);
  Show("ems_pdc_decode_waiting", "Requests without room", labels, stats.waiting);
  Show("ems_pdc_decode_admitted", "Requests at prefill, arriving or decoding", labels,
       stats.admitted);
  Show("ems_pdc_decode_running", "Requests in the batch", labels, stats.running);
  Show("ems_pdc_decode_free_blocks", "KV blocks that are free", labels, stats.free_blocks);
  ShowCache(labels, cache);
}

void LoopMetrics::ShowLink(const std::string& link, const PrefillPortStats& stats) {
  const Labels labels = {{"link", link}};
  Count("ems_pdc_handovers_total", "KV hand-overs that arrived", labels, stats.handed_over);
  Count("ems_pdc_handovers_failed_total", "KV hand-overs that did not", labels, stats.failed);
  Count("ems_pdc_handovers_stalled_total",
        "KV hand-overs of which the decode worker took nothing in time", labels, stats.stalled);
  Count("ems_pdc_probes_total", "Probes of the link", labels, stats.probes);
  Count("ems_pdc_probes_lost_total", "Probes without an answer", labels, stats.probes_lost);
  Count("ems_pdc_probes_saturated_total", "Probes that found the decode worker without room",
        labels, stats.probes_saturated);
  Show("ems_pdc_probe_seconds", "Round trip of the last probe", labels,
       std::chrono::duration<double>(stats.round_trip).count());
}

void LoopMetrics::ShowPool(bool connected, uint64_t hangs, const ClientStats& stats) {
  Show("ems_pdc_pool_connected", "1 while the pool is connected and answers", {},
       connected ? 1 : 0);
  Count("ems_pdc_pool_hangs_total", "Times that reads of the pool were left out until it answered",
        {}, hangs);
  Count("ems_pdc_pool_checksum_mismatches_total", "Reads of blocks that were damaged: misses", {},
        stats.checksum_mismatches);
  Count("ems_pdc_pool_retries_total", "Calls to servers that were tried again", {}, stats.retries);
  Count("ems_pdc_pool_breakers_opened_total", "Times that a server was left alone for a while", {},
        stats.breaker_opened);
}

void LoopMetrics::ShowPeer(const std::string& peer, bool well) {
  Show("ems_pdc_decode_peer_healthy", "1 while prompts go to that prefill process",
       {{"peer", peer}}, well ? 1 : 0);
}

}  // namespace ems::pdc
