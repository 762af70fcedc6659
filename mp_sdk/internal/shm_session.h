#pragma once
// A client's session with one server on its host: the memories that the server shares, the page
// through which the client tells it what must stay, and the socket that both hang on.
//
// Readers find memories without a lock; one that is not here is asked for and the read takes the
// socket meanwhile. The session's own messages are read and written by one thread ("ems-shm", see
// local_servers.h). Invariant: a memory that a reader or a view may be in stays mapped.
// Bound: kHazardsMax views and the pin limit of the Welcome; MemoryMap::kMost memories of a kind;
// kAsksMax questions.
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/cluster_id.h"
#include "common/guarded.h"
#include "common/ids.h"
#include "common/status.h"
#include "fabric/net/fd_message.h"
#include "fabric/net/socket.h"
#include "fabric/shm/shm_transport.h"
#include "mp_sdk/internal/fork_mark.h"
#include "mp_sdk/internal/hazard_pointers.h"
#include "mp_sdk/internal/memory_map.h"
#include "mp_sdk/internal/object_reader.h"
#include "mp_sdk/internal/reader_gate.h"
#include "mp_sdk/object_view.h"
#include "proto/shm_layout.h"

namespace ems::internal {

// What a call has read of one server, as in shm::ReadCell.
struct ReadTally {
  uint64_t hits = 0, misses = 0, bytes = 0, found = 0, absent = 0;
};

// The identity of the session in a staged Put.
struct StagedSession {
  uint64_t session = 0;
  uint64_t secret = 0;
  uint64_t bytes = 0;  // of the staging memory, that the server can read
  bool Has(uint64_t offset, uint64_t size) const {
    return offset <= bytes && size <= bytes - offset;
  }
};

// Threading: as each part below says. After fork() a child finds a session that reads nothing and
// writes nothing.
class ShmSession final : public PoolMemory,
                         public ViewHolder,
                         public std::enable_shared_from_this<ShmSession> {
 public:
  static constexpr size_t kAsksMax = 1024;
  static constexpr Duration kAskAgain = std::chrono::seconds(1);

  struct Terms {
    NamespaceRef ns;
    std::string token;               // empty: none
    ClusterId cluster = kNoCluster;  // as RpcChannel::Open's
    uint64_t boot_id = 0;            // of the server that is meant; 0: any
  };
  // Connects, attaches and maps what the Welcome brings. `wake` is called when the session's thread
  // has something to send; from any thread. Blocks up to `timeout`.
  // Errors: kUnimplemented, kPermissionDenied, kFailedPrecondition, …  the server's reason
  //   kUnavailable, kDeadlineExceeded  no answer, or another server's    kInvalidArgument  a
  //   Welcome that makes no sense
  static Result<std::shared_ptr<ShmSession>> Attach(const fabric::Address& address,
                                                    const Terms& terms, Duration timeout,
                                                    std::function<void()> wake);
  ~ShmSession() override;
  ShmSession(const ShmSession&) = delete;
  ShmSession& operator=(const ShmSession&) = delete;

  // --- Any thread, inside the gate.
  const fabric::RemoteMemory& control() const override { return *control_; }
  const fabric::RemoteMemory* table(uint64_t id) const override { return tables_.Find(id); }
  const fabric::RemoteMemory* segment(uint32_t id) const override { return segments_.Find(id); }
  const PoolIdentity& identity() const { return identity_; }
  bool usable() const { return alive_.load(std::memory_order_acquire) && fork_mark_.here(); }
  // Has a table (kTable) or segment (kSegment) asked for, unless it was within kAskAgain. Cost: a
  // lock; never blocks.
  void Want(shm::SessionOp op, uint64_t id);
  // Tells the server of uses, in their order. Lossy. Cost: one atomic operation, and two stores a
  // use.
  void Touch(std::span<const Hash128> hashes);
  // Keys whose hash.lo is below it are sampled: Sample is due for each look-up that is settled
  // here.
  uint64_t sample_below() const;
  void Sample(Hash128 hash);
  // Has the server count what was read without it. Cost: no atomic read-modify-write, but in
  // processes of more than kSharedCell threads.
  void Count(const ReadTally& tally);
  enum class Pinned : uint8_t { kYes, kChanged, kFull };
  // Holds what was found in place for as long as `view` lives. kChanged: it was gone already.
  // kFull: no slot, or more bytes than this client's views may pin. Cost: no lock.
  Pinned Pin(const FoundObject& found, const ObjectReader& reader, ObjectView* view);
  // Set once the server has taken some of the staging memory.
  std::optional<StagedSession> staged() const;
  // No further staged Puts: the server does not know how.
  void StopStaging() { staging_stopped_.store(true, std::memory_order_relaxed); }

  // --- Any thread.
  // Ends a view of an object of `payload_bytes`.
  void Unpin(uint32_t hazard, uint64_t payload_bytes) override;
  uint64_t pin_bytes_max() const { return pin_bytes_max_; }
  uint64_t pinned_bytes() const { return pinned_bytes_.load(std::memory_order_relaxed); }

  // --- One thread (the one that serves it).
  int fd() const { return socket_.get(); }
  bool has_more_to_send() const { return unsent_ < outbox_.size(); }
  // Offers the first `bytes` of memory for staged Puts, all of which have pages; instead of what
  // was offered before, which stays where the server takes no more. `memory` must outlive the
  // session's service.
  void Offer(const fabric::SharedMemory& memory, uint64_t bytes);
  // Sends what is waiting, as far as the socket takes it. False: the session has ended.
  bool Send();
  // Handles the messages that are there. False: the session has ended.
  bool Receive(ReaderGate* gate);
  // Gives back what nobody can be in: `ended` is the last grace period that has ended.
  void DropGone(uint64_t ended);
  // From now on nobody reads here, and nothing is sent or received. The socket stays open as long
  // as there are views: its end would tell the server that their hazards no longer count.
  void End();

 private:
  using Key = std::pair<shm::SessionOp, uint64_t>;
  struct Asks {
    std::map<Key, TimePoint> again_at;  // asked for: not again before
    std::vector<Key> queue;
  };
  struct Outgoing {
    shm::SessionMessage message;
    int fd = -1;  // borrowed
  };
  struct Gone {
    uint64_t grace = 0;
    bool viewed = false;  // a view may be in it, too
    std::shared_ptr<const void> what;
  };
  using Memories = std::map<uint64_t, std::shared_ptr<fabric::MappedMemory>>;

  ShmSession(NamespaceRef ns, std::function<void()> wake) : wake_(std::move(wake)) {
    identity_.ns = ns;
  }
  Status Greet(const fabric::Address& address, const Terms& terms, Deadline deadline);
  Status AwaitWelcome(Deadline deadline);
  Status TakeWelcome(const shm::SessionMessage& welcome);
  void OnMemory(const shm::SessionMessage& message, ReaderGate* gate);
  Status MapMemory(const shm::SessionMessage& message, ReaderGate* gate);
  void OnGone(shm::SessionOp op, uint64_t id, ReaderGate* gate);
  MemoryMap& MapOf(shm::SessionOp op) { return op == shm::SessionOp::kTable ? tables_ : segments_; }

  const std::function<void()> wake_;
  const ForkMark fork_mark_;
  PoolIdentity identity_;
  uint64_t session_id_ = 0;
  uint64_t secret_ = 0;
  uint64_t pin_bytes_max_ = 0;
  std::unique_ptr<fabric::MappedMemory> control_;
  std::unique_ptr<fabric::SharedPage> page_memory_;
  shm::SessionPage* page_ = nullptr;  // in it
  std::atomic<bool> alive_{true};
  std::atomic<uint64_t> staged_bytes_{0};
  std::atomic<bool> staging_stopped_{false};
  MemoryMap tables_, segments_;
  Guarded<Asks> asks_;

  HazardPointers hazards_;
  alignas(64) std::atomic<uint64_t> pinned_bytes_{0};
  std::atomic<uint64_t> views_{0};

  // Of the thread that serves it.
  fabric::Fd socket_;
  std::vector<Outgoing> outbox_;
  size_t unsent_ = 0;  // first of outbox_ that was not sent
  fabric::MessageReceiver receiver_;
  std::vector<fabric::Fd> descriptors_;  // that came with the message being read
  std::map<shm::SessionOp, Memories> memories_;
  std::vector<Gone> gone_;
};

}  // namespace ems::internal
