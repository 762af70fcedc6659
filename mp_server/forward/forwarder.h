#pragma once
// Asks the servers that had a slot before for what it had, key by key, when a Get misses here, and
// stores what comes as if it had been put. In namespaces with replicas those that hold copies of a
// slot that has come here are asked, too.
//
// What makes it safe is in store/moved_slots.h. A Get waits for it as for the SSD: its thread goes
// on with other connections. Bound: `pending_max` keys a peer are asked for at the same time, each
// for `timeout` at most; what is beyond, and what a peer with an open breaker would be asked for,
// is a miss at once. Two peers for a key at most. A connection to each peer and thread.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/dht_view.h"
#include "common/clock.h"
#include "common/guarded.h"
#include "common/metrics.h"
#include "common/thread_pool.h"
#include "fabric/rpc/rpc_channel.h"
#include "mp_server/forward/copy_sources.h"
#include "mp_server/forward/peer_calls.h"
#include "mp_server/lease/ownership.h"
#include "mp_server/store/moved_slots.h"
#include "mp_server/store/tiered_store.h"

namespace ems::server {

struct ForwardMetrics {
  Counter hits;     // came, and are stored here
  Counter misses;   // the peers keep nothing of it
  Counter refused;  // not asked for: too many under way, or the peer does not answer
  Counter failed;   // asked for in vain: no answer in time, damaged, or no room here
  Counter bytes;    // of hits
};

// Which of some keys of a namespace other servers keep. Threading: thread-safe; items() once it is
// done.
class Lookup final {
 public:
  struct Item {
    uint32_t index = 0;  // as who asks likes
    SlotId slot;
    std::string key;
    bool found = false;
    uint64_t value_bytes = 0;  // when it is found
    // Of the Forwarder: whom to ask next; none: it is known. Then who may have a copy.
    std::optional<Origin> next = {};
    std::vector<NodeId> copies = {};
  };
  bool done() const { return done_.load(std::memory_order_acquire); }
  const std::vector<Item>& items() const { return items_; }

 private:
  friend class Forwarder;
  NamespaceRef ns_;
  std::vector<Item> items_;
  Wake wake_;
  Deadline deadline_ = Deadline::After(Duration::zero());
  std::atomic<bool> done_{false};
};
using LookupPtr = std::shared_ptr<Lookup>;

// How it went with a key that other servers may keep.
enum class Brought : uint8_t {
  kStored,
  kThere,    // it, or a newer value, was here
  kGone,     // they keep nothing of it that could be true still
  kChanged,  // it was changed here, or the slot or the namespace is lost or closed
  kRefused,  // one of them cannot be asked, or did not say
  kFailed,   // no answer, or a damaged one
  kNoRoom,
};

// Threading: thread-safe.
class Forwarder final {
 public:
  struct Options {
    TieredStore* store = nullptr;  // all must outlive it
    const Ownership* ownership = nullptr;
    MovedSlots* moved = nullptr;
    CopySources* copies = nullptr;  // null: nobody holds copies
    ForwardMetrics metrics{};
    Duration timeout = std::chrono::milliseconds(20);
    size_t pending_max = 256;
    size_t threads = 4;
  };
  struct Wanted {
    NamespaceRef ns;
    SlotId slot;
    std::string_view key;
  };
  explicit Forwarder(const Options& options);
  // What is under way ends as a miss.
  ~Forwarder();
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  // Where nodes are reached, from now on. Those that the view does not have keep nothing any more.
  void SetNodes(const DhtView& view) { peers_.SetNodes(view); }
  PeerCalls& peers() { return peers_; }

  // Whether another server may have what is not here of this slot.
  bool MayHave(SlotId slot) const { return options_.moved->IsOpen(slot); }
  bool MayHaveAny() const {
    return options_.moved->AnyOpen() ||
           (options_.copies != nullptr && options_.copies->MaySeekAny());
  }
  // The same of a namespace with so many replicas.
  bool MayHave(SlotId slot, uint32_t replicas) const {
    return MayHave(slot) ||
           (replicas > 1 && options_.copies != nullptr && options_.copies->MaySeek(slot));
  }
  // The key is not here. Null: a miss. Else it is asked for, and `wake` is called, on another
  // thread, when the fetch has ended. Cost: two leaf locks where the slot is open, else one load.
  FetchPtr Start(NamespaceRef ns, SlotId slot, std::string_view key, Hash128 hash, const Wake& wake,
                 uint32_t replicas = 1);
  // The same for who has time: blocks up to the deadline, and counts in no metric. `channels` are
  // of the calling thread. Says how many value bytes have come.
  Brought Bring(const Wanted& wanted, Deadline deadline, PeerCalls::Channels* channels,
                uint64_t* bytes);
  // Of keys that are not here: `wake` is called, on another thread, when it is done. Null: there is
  // nothing to ask, or too much under way.
  LookupPtr Look(NamespaceRef ns, std::vector<Lookup::Item> items, const Wake& wake,
                 uint32_t replicas = 1);

 private:
  struct Task {
    NamespaceRef ns;
    SlotId slot;
    std::string key;
    Origin origin;                 // that keeps what it had
    bool kept = true;              // or who is asked first for a copy
    std::vector<NodeId> copies{};  // who may have one
    FetchPtr fetch;
    Deadline deadline;
    std::vector<Wake> waiting;  // under the lock
  };
  using TaskPtr = std::shared_ptr<Task>;
  struct State {
    std::deque<TaskPtr> queue;
    std::deque<LookupPtr> lookups;
    std::map<std::pair<NamespaceRef, std::string>, TaskPtr> flights;
    std::map<NodeId, size_t> pending;  // keys that it is asked for
    bool stopping = false;
  };
  struct Asked;

  void Run();
  void Serve(Lookup* lookup, PeerCalls::Channels* channels);
  void TakeOwn(const TieredNamespace& objects, std::span<Lookup::Item* const> items);
  void AskMany(const Lookup& lookup, NodeId node, std::span<Lookup::Item* const> items,
               PeerCalls::Channels* channels);
  std::vector<NodeId> SourcesOf(SlotId slot, uint32_t replicas) const {
    if (replicas <= 1 || options_.copies == nullptr) return {};
    return options_.copies->Of(slot, replicas);
  }
  void AskForCopies(Lookup* lookup, PeerCalls::Channels* channels);
  Fetch::State Serve(const Task& task, PeerCalls::Channels* channels);
  Brought BringCopy(const Task& task, PeerCalls::Channels* channels, ObjectPin* pin,
                    uint64_t* bytes);
  // The pin is on what was stored, and `bytes` what came.
  Brought BringOne(const Task& task, PeerCalls::Channels* channels, ObjectPin* pin,
                   uint64_t* bytes);
  // What this server has kept itself, before another one had the slot in between.
  void TakeOwn(const Task& task, const TieredNamespace& objects, Era era, Asked* asked);
  Status Ask(const Task& task, const TieredNamespace& objects, Origin origin,
             PeerCalls::Channels* channels, Asked* asked);
  Status AskOn(const Task& task, const TieredNamespace& objects, Era era,
               fabric::RpcChannel* channel, Asked* asked);
  void End(const TaskPtr& task, Fetch::State state);

  const Options options_;
  PeerCalls peers_;
  Guarded<State> state_;
  std::condition_variable wakeup_;
  std::vector<Thread> threads_;
};

}  // namespace ems::server
