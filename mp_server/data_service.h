#pragma once
// Frames ⇄ object store: what each op of the data plane does.
//
// A session belongs to one connection. It checks namespace and ownership, finds or reserves, pins
// what is being sent and lets it go when the transport has handed it to the kernel.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fabric/rpc_session.h"
#include "mp_server/ownership.h"
#include "mp_server/server_metrics.h"
#include "mp_server/shm_service.h"
#include "mp_server/tiered_store.h"

namespace ems::server {

// Threading: thread-safe.
class DataService final : public fabric::SessionFactory {
 public:
  // `stats_json` renders the answer to Stats. All must outlive the service and its sessions.
  DataService(TieredStore* store, const Ownership* ownership, const ServerMetrics* metrics,
              uint64_t boot_id, uint64_t value_bytes_max, std::function<std::string()> stats_json)
      : store_(store),
        ownership_(ownership),
        metrics_(metrics),
        boot_id_(boot_id),
        value_bytes_max_(value_bytes_max),
        stats_json_(std::move(stats_json)) {}

  // From now on clients on this host may attach; null: they may not, because of `why`. Before the
  // first session.
  void SetShm(ShmService* shm, std::string why) {
    shm_ = shm;
    no_shm_text_ = std::move(why);
  }
  std::unique_ptr<fabric::Session> NewSession() override;
  // From now on every request is answered with kRetryLater: the server is about to stop.
  void Drain() { draining_.store(true, std::memory_order_release); }

 private:
  friend class DataSession;
  TieredStore* store_;
  const Ownership* ownership_;
  const ServerMetrics* metrics_;
  const uint64_t boot_id_;
  const uint64_t value_bytes_max_;
  const std::function<std::string()> stats_json_;
  ShmService* shm_ = nullptr;
  std::string no_shm_text_ = "this server does not share its memory";
  std::atomic<bool> draining_{false};
};

}  // namespace ems::server
