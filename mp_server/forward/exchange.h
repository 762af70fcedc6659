#pragma once
// What goes between this server and the others: what they keep of slots that came here, and copies.
#include <memory>

#include "cluster/view_cache.h"
#include "mp_server/forward/copy_sources.h"
#include "mp_server/forward/forwarder.h"
#include "mp_server/forward/migrator.h"
#include "mp_server/forward/replicator.h"

namespace ems::config {
class ServerConfig;
}

namespace ems::server {

struct ExchangeMetrics {
  ForwardMetrics forward;
  MigrateMetrics migrate;
  CopyMetrics copies;
};

// Threading: SetView, SetNamespaces and Stop from one thread at a time; Poke thread-safe.
class Exchange final {
 public:
  // All must outlive it; `moved` may be null: what moves is lost.
  Exchange(const config::ServerConfig& config, TieredStore* store, const Ownership* ownership,
           MovedSlots* moved, const ExchangeMetrics& metrics);
  // Before requests are judged by the view.
  void SetView(const DhtView& view);
  // The view is installed.
  void OnInstalled(ViewCache::View view);
  void SetNamespaces(const NamespaceTable& table) { replicator_->SetNamespaces(table); }
  Forwarder* forwarder() { return forwarder_.get(); }
  CopySink* copy_sink() { return replicator_.get(); }
  // Begins to bring and to copy.
  void Start();
  // Nobody is asked any more, and nobody hears of copies.
  void Stop();

 private:
  TieredStore* const store_;
  const Ownership* const ownership_;
  CopySources sources_;
  std::unique_ptr<Forwarder> forwarder_;  // null without `moved`
  std::unique_ptr<Migrator> migrator_;    // null: only what is asked for comes
  std::unique_ptr<Replicator> replicator_;
};

}  // namespace ems::server
