#pragma once
// Metrics of a process's prefill and decode workers.
#include <cstdint>
#include <map>
#include <string>

#include "common/guarded.h"
#include "common/metrics.h"
#include "mp_sdk/client.h"
#include "pdc/decode/decode_worker.h"
#include "pdc/prefill/prefill_port.h"
#include "pdc/prefill/prefill_worker.h"

namespace ems::pdc {

// Threading: thread-safe. `registry` must outlive it.
class LoopMetrics final {
 public:
  explicit LoopMetrics(MetricsRegistry* registry) : registry_(registry) {}

  // What stands in their statistics now; `worker` is one of a few names.
  void ShowPrefill(const std::string& worker, const PrefillWorkerStats& stats,
                   const PrefixCacheStats& cache);
  void ShowDecode(const std::string& worker, const DecodeWorkerStats& stats,
                  const PrefixCacheStats& cache);
  void ShowLink(const std::string& link, const PrefillPortStats& stats);
  void ShowPool(bool connected, uint64_t hangs, const ClientStats& stats);
  // A prefill process, as a decode process sees it.
  void ShowPeer(const std::string& peer, bool well);

 private:
  // A counter goes on from what it was shown last.
  void Count(const std::string& name, const std::string& help, const Labels& labels,
             uint64_t value);
  void Show(const std::string& name, const std::string& help, const Labels& labels, double value);
  void ShowCache(const Labels& labels, const PrefixCacheStats& cache);

  MetricsRegistry* const registry_;
  Guarded<std::map<std::pair<std::string, Labels>, uint64_t>> shown_;
};

}  // namespace ems::pdc
