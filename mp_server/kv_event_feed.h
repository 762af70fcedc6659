#pragma once
// The event stream of one namespace's blocks in DRAM and on the SSD: connects the indexes with the
// publisher.
//
// One namespace, named in the configuration: a subscriber learns which blocks there are, and
// namespaces must not learn that of each other.
#include <atomic>
#include <memory>
#include <string>

#include "cluster/view_cache.h"
#include "mp_server/kv_events/block_events.h"
#include "mp_server/kv_events/event_publisher.h"
#include "mp_server/ssd/ssd_tier.h"
#include "mp_server/store/object_store.h"

namespace ems::config {
class KvEventsConfig;
}

namespace ems::server {

// Must outlive the stores that it is given to; Stop before they go. Threading: the observer's calls
// are thread-safe; the rest from one thread.
class KvEventFeed final : public ssd::StoredObserver {
 public:
  // Null: the configuration names no address to publish on.
  static std::unique_ptr<KvEventFeed> Make(const config::KvEventsConfig& config);
  // Publishes nothing yet.
  explicit KvEventFeed(const config::KvEventsConfig& config);
  ~KvEventFeed() override;

  // Begins to publish what the stores have and hear. `ssd` may be null.
  // Errors: kInvalidArgument, kUnavailable  as EventSockets::Open, naming the option
  Status Start(ObjectStore* dram, ssd::SsdTier* ssd, const kv_events::EventMetrics& metrics);
  // The publisher ends; at once.
  void Stop() { publisher_.reset(); }

  kv_events::BlockEvents* events() { return &events_; }
  const std::string& name_space() const { return name_space_; }

  // Before the stores take `table` over. True: the namespace is another one than before, so what is
  // pushed while they do may be out of order: call Restate afterwards. A table that lacks the
  // namespace is warned of once, for nothing is published until it is made.
  bool SetNamespaces(const NamespaceTable& table);
  void Restate() { events_.Lose(); }
  // What was found on the SSD at the start may be shown from now on. Only the first call counts.
  void OnSsdTrusted();

  void OnStored(const ssd::ObjectName& name) override { Push(name, true); }
  void OnDropped(const ssd::ObjectName& name) override { Push(name, false); }

 private:
  void Push(const ssd::ObjectName& name, bool stored) {
    if (Packed(name.ns) == published_.load(std::memory_order_relaxed))
      events_.Push({name.hash, kv_events::Medium::kSsd, stored});
  }
  bool List(kv_events::ListCursor* cursor, std::vector<kv_events::BlockEvent>* out);
  static uint64_t Packed(NamespaceRef ns) { return uint64_t{ns.id.value()} << 32 | ns.generation; }
  static constexpr uint64_t kNone = UINT64_MAX;

  const std::unique_ptr<const config::KvEventsConfig> config_;
  const std::string name_space_;
  kv_events::BlockEvents events_;
  std::atomic<uint64_t> published_{kNone};
  bool announced_ = false;
  bool missing_ = false;  // and said so
  ObjectStore* dram_ = nullptr;
  ssd::SsdTier* ssd_ = nullptr;
  // The publisher's thread's own.
  std::vector<Hash128> hashes_;
  ssd::SsdIndex::Stored stored_;
  std::unique_ptr<kv_events::EventPublisher> publisher_;  // last: its thread uses the above
};

}  // namespace ems::server
