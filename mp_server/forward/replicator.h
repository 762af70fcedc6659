#pragma once
// Brings copies of the objects that this server owns to the servers that hold them
// (DhtView::Copies), and takes them away again.
//
// What is put here is copied behind the answer: its key waits in a queue for each server, and its
// value is read when its turn comes. A Remove goes the same way, behind what was queued for its
// key. What a queue has no room for, what a server did not take, and what a change of view asks for
// (copy_plan.h) is found by a repair: a walk over the objects here that asks the other server which
// of them it has, a batch at a time, and sends what it lacks. It begins some time after the change,
// so that a server that is back soon costs nothing. Bound: `queue_max` keys, some 8,000 of a repair
// and kBatchBytes of values at a time, `bytes_per_s` of values; one call at a time.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/view_cache.h"
#include "common/clock.h"
#include "common/guarded.h"
#include "common/metrics.h"
#include "common/thread_pool.h"
#include "mp_server/forward/copy_calls.h"
#include "mp_server/forward/copy_plan.h"
#include "mp_server/index/object_index.h"
#include "mp_server/lease/ownership.h"
#include "mp_server/store/copies.h"
#include "mp_server/store/tiered_store.h"

namespace ems::server {

struct CopyMetrics {
  Counter copies, bytes;  // that others have taken
  Counter repaired;       // those of them that a repair found missing
  Counter removes;        // keys of which others have dropped their copies
  Counter refused;        // others had no room for, or not the slot
  Counter failed;         // not answered
  Counter overflows;      // keys that a queue had no room for
  Counter lost_removes;   // removes given up: those copies stay until they are evicted
  Counter repairs;        // walks that came to their end
  Gauge queued;
};

// Threading: Step, and what it calls, from one thread: "ems-replicate" once Start was called; the
// rest thread-safe.
class Replicator final : public CopySink {
 public:
  static constexpr size_t kBatchKeys = 64;
  static constexpr uint64_t kBatchBytes = 4 * kMiB;

  struct Options {
    TieredStore* store = nullptr;  // both must outlive it
    const Ownership* ownership = nullptr;
    CopyMetrics metrics{};
    size_t queue_max = 65536;
    uint64_t bytes_per_s = 512 * kMiB;
    Duration repair_after = std::chrono::seconds(10);
    Duration timeout = std::chrono::seconds(2);  // of a call
    const Clock* clock = &Clock::System();
  };
  explicit Replicator(const Options& options);
  ~Replicator() override;
  Replicator(const Replicator&) = delete;
  Replicator& operator=(const Replicator&) = delete;

  void Start();
  // Nothing is sent any more.
  void Stop();
  // Who holds what, from now on. Queues of servers that it does not show go.
  void SetView(ViewCache::View view);
  // Of the table's namespaces: one with more replicas than before is walked through.
  void SetNamespaces(const NamespaceTable& table);
  // CopySink
  void OnStored(NamespaceRef ns, uint32_t replicas, SlotId slot, std::string_view key,
                bool fresh) override;
  void OnRemoved(NamespaceRef ns, uint32_t replicas, SlotId slot, std::string_view key) override;
  // Sends a batch, or a page of a repair. How long the next step can wait; zero: not at all. Blocks
  // up to the timeout, twice.
  Duration Step();

 private:
  enum class Kind : uint8_t { kPush, kOffer, kRemove };
  struct Task {
    Kind kind = Kind::kPush;
    NamespaceRef ns;
    SlotId slot;
    std::string key;
    int tries = 0;
  };
  struct State {
    ViewCache::View view;
    // With copies that there was, until a repair begins: what came before is others'.
    ViewCache::View first;
    std::map<NodeId, std::deque<Task>> queues;
    size_t queued = 0;
    std::set<NodeId> missed;  // did not get all that they were to have
    std::map<NamespaceId, uint32_t> replicas;
    std::optional<TimePoint> repair_at;
    bool changed = false;  // the repair in hand is of an older view
    bool stop = false;
    bool poked = false;
  };
  // A walk over what is here.
  struct Repair {
    ViewCache::View view;
    CopyPlan::Targets targets;
    std::vector<std::shared_ptr<NamespaceStore>> stores{};
    std::set<NodeId> missed{};  // that it began for
    size_t store = 0;           // the one that is walked through
    ObjectIndex::SweepCursor cursor{};
    bool walked = false;                              // to its end
    std::map<NodeId, std::vector<CopyItem>> found{};  // of it, to be offered
    size_t found_keys = 0;
    bool whole = true;
  };

  void Loop();
  void Queue(Kind kind, NamespaceRef ns, uint32_t replicas, SlotId slot, std::string_view key);
  // Tasks of one kind and namespace for one server that may be called. False: there are none.
  bool TakeBatch(NodeId* node, std::vector<Task>* batch);
  void SendBatch(NodeId node, std::vector<Task> batch);
  void SendRemoves(NodeId node, std::vector<Task> batch);
  // Sends those that it lacks. False: not all that it is to have are there now.
  bool Offer(NodeId node, NamespaceRef ns, std::vector<CopyItem> items);
  bool Push(NodeId node, NamespaceRef ns, std::span<const CopyItem> items);
  void Miss(NodeId node, Duration after);
  // Begins a repair that is due, and makes its next step. False: none is in hand.
  bool StepRepair(TimePoint now);
  void BeginRepair(TimePoint now);
  bool OfferSome();
  void LookAtSome();
  bool MayCall(NodeId node);
  void EndRepair(TimePoint now);
  void Spend(uint64_t bytes);

  const Options options_;
  CopyCalls calls_;
  CopyPlan plan_;
  std::optional<Repair> repair_;
  Duration again_;         // after a repair that was not whole
  TimePoint ready_at_{};   // by the rate
  NodeId last_ = kNoNode;  // whose turn it was
  Guarded<State> state_;
  std::condition_variable wakeup_;
  Thread thread_;  // last: it uses all of the above
};

}  // namespace ems::server
