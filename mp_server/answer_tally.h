#pragma once
// Counts what the answers of one connection were: by status, by tier, as look-ups of a namespace,
// and by what they took; those that took long are logged. Puts are counted where they end
// (put_session.h).
#include <span>

#include "fabric/rpc/rpc_session.h"
#include "mp_server/server_metrics.h"
#include "mp_server/slow_requests.h"
#include "mp_server/store/lookup_counters.h"
#include "mp_server/store/tiered_store.h"
#include "proto/data_plane.h"

namespace ems::server {

// Threading: one thread (the connection's "ems-io").
class AnswerTally final {
 public:
  // Both must outlive it; `slow` null: nothing is logged.
  explicit AnswerTally(const ServerMetrics* metrics, const SlowRequests* slow = nullptr)
      : metrics_(metrics), slow_(slow) {}

  // The `results` of a request, one an item. `asked` may not be open: then nothing was looked up.
  void OnAnswer(wire::Op op, std::span<const wire::ItemResult> results,
                const TieredNamespace& asked);
  // The answer is with the kernel.
  void OnServed(const wire::FrameHeader& request, const fabric::Served& served);

 private:
  const ServerMetrics* const metrics_;
  const SlowRequests* const slow_;
  // The slowest one that the answer in hand came from.
  wire::ItemTier tier_ = wire::ItemTier::kUnknown;
  const NamespaceLookups* lookups_ = nullptr;  // of the namespace that was asked last
};

}  // namespace ems::server
