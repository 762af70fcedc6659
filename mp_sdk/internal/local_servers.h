#pragma once
// The servers of this host that a client reads without asking: which slots are theirs by the
// client's view, and its sessions with them. Of this host is who runs on its kernel and can be
// reached by its Unix socket, from another container, too.
//
// One thread, "ems-shm", attaches, serves the sessions' sockets and gives back what no reader can
// be in. A server that cannot be attached to is tried again after a second, then less and less
// often, up to a minute; calls pay nothing meanwhile. Invariant: reads go by a view that is not
// older than any that this client has sent a request under (the router calls Follow first), so that
// a client reads what it has written.
// Bound: kServersMax servers on one host.
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/view_cache.h"
#include "common/clock.h"
#include "common/guarded.h"
#include "common/ids.h"
#include "common/thread_pool.h"
#include "fabric/net/socket.h"
#include "mp_sdk/internal/reader_gate.h"
#include "mp_sdk/internal/shm_session.h"
#include "mp_sdk/internal/staging_memory.h"

namespace ems::internal {

// A server process on this host. Threading: as said.
struct LocalServer {
  LocalServer(NodeInfo info, ClusterId of_cluster) : node(std::move(info)), cluster(of_cluster) {}
  const NodeInfo node;
  const ClusterId cluster;
  std::atomic<ShmSession*> session{nullptr};  // load with seq_cst, inside the gate
  // Of ems-shm.
  std::shared_ptr<ShmSession> owner;
  TimePoint attach_at{};
  int failures = 0;
  std::string reason;          // logged last
  uint64_t offered_bytes = 0;  // of the staging memory
};

// By slot: which local server owns it. Threading: immutable.
struct LocalRoutes {
  static constexpr size_t kServersMax = 64;
  uint64_t view = 0;                         // ViewVersion::packed()
  std::array<uint8_t, kSlotCount> server{};  // 1 + index into `servers`; 0: not on this host
  std::vector<std::shared_ptr<LocalServer>> servers;

  // Of its owner in `servers`; nullopt: it is not on this host.
  std::optional<size_t> IndexOf(SlotId slot) const {
    const uint8_t index = server[slot.value() % kSlotCount];
    return index == 0 ? std::nullopt : std::optional<size_t>(index - 1U);
  }
  const LocalServer* Of(SlotId slot) const {
    const std::optional<size_t> index = IndexOf(slot);
    return index ? servers[*index].get() : nullptr;
  }
};

// Threading: thread-safe. Must outlive all calls; views may outlive it.
class LocalServers final {
 public:
  static constexpr Duration kAttachAgain = std::chrono::seconds(1);
  static constexpr Duration kAttachAgainMax = std::chrono::seconds(60);

  struct Options {
    NamespaceRef ns;
    // How long the thread waits for one server's Welcome; the other sessions wait as long.
    Duration attach_timeout{};
    std::string host_id;  // of this process
    std::string token;    // shown to servers that ask for one
  };
  explicit LocalServers(Options options);
  ~LocalServers();
  LocalServers(const LocalServers&) = delete;
  LocalServers& operator=(const LocalServers&) = delete;

  // Reads go by `view` when it returns, unless by a newer one. Cost: two loads when it is not new.
  void Follow(const ViewCache::View& view);
  // Memory that is registered with each server, those of later, too, as far as it has pages. Once.
  void Offer(std::shared_ptr<StagingMemory> staging);
  // More of it is wanted, or has been made. Cost: a system call.
  void OnStagingChanged() { Wake(); }
  // How to name staged values to `node`; nullopt: it has not taken the memory.
  std::optional<StagedSession> StagedFor(NodeId node);
  // The server does not take staged Puts after all.
  void StopStaging(NodeId node);

  ReaderGate& gate() { return gate_; }
  // Inside the gate; nullptr before the first view. Valid as long as the pass.
  const LocalRoutes* routes() const { return routes_.load(std::memory_order_seq_cst); }

 private:
  struct State {
    std::shared_ptr<const LocalRoutes> routes;  // what routes_ points to
    // Out of sight, but a reader may be in them.
    std::vector<std::shared_ptr<const void>> retired;
    std::shared_ptr<StagingMemory> staging;
    bool stopping = false;
  };
  // Of ems-shm: what waits for the end of a grace period.
  struct Retired {
    uint64_t grace = 0;
    std::shared_ptr<const void> what;
  };

  std::shared_ptr<LocalRoutes> MakeRoutes(const DhtView& view, const LocalRoutes* old) const;
  void Wake();
  void Run();
  // Takes over what others have left for the thread; false: stop.
  bool Collect();
  void AttachDue();
  void Attach(LocalServer* server);
  void Detach(LocalServer* server);
  void Serve(LocalServer* server, short events);
  // A step of making the pages of staging memory that are wanted, if a server is there that could
  // use them, and the offer of them once there are all. In between sessions are served: reads go
  // over sockets until their segments are mapped. True: there is more to make.
  bool MakeStaging();
  void OfferStaging();
  int PollTimeoutMs() const;
  void Retire(std::shared_ptr<const void> what);
  ShmSession* SessionOf(NodeId node) const;

  const Options options_;
  const fabric::Fd wakeup_;  // an eventfd
  ReaderGate gate_;
  std::atomic<const LocalRoutes*> routes_{nullptr};
  std::atomic<uint64_t> followed_{0};
  Guarded<State> state_;

  // Of ems-shm.
  std::vector<std::shared_ptr<LocalServer>> servers_;
  std::shared_ptr<StagingMemory> staging_;
  bool staging_failed_ = false;  // there was no memory for it
  std::vector<Retired> retired_;
  Thread thread_;  // last
};

}  // namespace ems::internal
