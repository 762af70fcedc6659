#pragma once
// The session of one client on this host that has attached to a namespace: the segments and tables
// that it was given and has not yet dropped, the messages to it, and its revocation
// (docs/ONE_SIDED_READS.md).
//
// From Begin until the session ends, objects that the client's hazards name stay. A client that has
// to go is told so, and its views stay valid until it hangs up. Bounds: one message in hand; while
// that does not fit into the socket nothing is read.
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "fabric/net/fd_message.h"
#include "mp_server/shm/read_cells.h"
#include "mp_server/shm/registered_memory.h"
#include "mp_server/store/namespace_store.h"
#include "proto/shm_layout.h"

namespace ems::server {

struct ShmMetrics {
  Gauge sessions;
  Counter attached;
  Counter refused;                // credentials, bounds, no memory
  Counter revoked;                // pinned more than allowed
  Counter dismissed;              // broke the protocol, or their namespace is gone
  Counter registrations_refused;  // memory for Puts: registered_bytes_max, or not as it must be
  Gauge registered_bytes;         // memory that clients Put from
  Gauge round_seconds;            // what the last look at all sessions took
  const LookupCounters* lookups = nullptr;  // of what clients read themselves
};

// Threading: one thread ("ems-shm").
class ShmSession final {
 public:
  // What epoll reports: of the socket, and at the end of the client's process.
  static uint64_t SocketTag(uint64_t id) { return id << 1; }
  static uint64_t ProcessTag(uint64_t id) { return id << 1 | 1; }

  // `poll` is the epoll descriptor of the service. All must outlive it.
  ShmSession(uint64_t id, fabric::Fd socket, const fabric::Fd* poll, RegisteredMemories* memories,
             const ShmMetrics* metrics)
      : id_(id),
        socket_(std::move(socket)),
        poll_(*poll),
        memories_(*memories),
        metrics_(*metrics) {}
  // Its hazards no longer count: what it alone held back is freed.
  ~ShmSession();
  ShmSession(const ShmSession&) = delete;
  ShmSession& operator=(const ShmSession&) = delete;

  // Welcomes the client of process `pid`, with the descriptors of the namespace. `store` is ready
  // to be shared. Errors: kResourceExhausted, kInternal  no descriptors or memory    kUnavailable
  // it is gone
  Status Begin(std::shared_ptr<NamespaceStore> store, int64_t pid);
  // Tells the client why it may not attach.
  void Refuse(const Status& why);

  uint64_t id() const { return id_; }
  NamespaceStore& store() { return *store_; }
  // Answers some messages. False: it hung up.
  bool OnReadable();
  bool has_unsent() const { return unsent_.has_value(); }
  void SendUnsent();

  // Tells the client about what it was given and is gone by now. What does not fit waits for the
  // next time. Cost: O(what is gone since the last time, or not yet dropped by the client).
  void CallBack(TimePoint now);
  // Counts what the client has read without the server since the last time, as its end does.
  void CountReads();
  // Whether clients of its namespace hold back so much that it alone may be above what its Welcome
  // allowed; then, whether it is, by Sharing::HeldBytes.
  bool MayPinTooMuch() const;
  bool PinsTooMuch(const std::map<uint64_t, uint64_t>& held_bytes) const;
  // Its hazards no longer count. What it has mapped does, until it hangs up.
  void Revoke();
  // Adds the segments, with their sizes, that it has kept for longer than `patience` though they
  // are gone.
  void AddKept(TimePoint now, Duration patience, std::map<uint32_t, uint64_t>* kept);

 private:
  struct GoneSegment {
    uint32_t id = 0;
    uint64_t bytes = 0;
    TimePoint gone_at{};  // when it was seen that the segment is gone
    bool told = false;
  };
  using SharedFd = std::shared_ptr<const fabric::Fd>;
  struct Unsent {
    shm::SessionMessage message;
    SharedFd fd;
  };
  // False: the client broke the protocol, or is gone.
  bool Answer(const shm::SessionMessage& request, std::vector<fabric::Fd>* fds);
  Result<SlabPool::Opened> Open(const shm::SessionMessage& request);
  Status Register(const shm::SessionMessage& request, const std::vector<fabric::Fd>& fds);
  // False: the client is gone, or out of its mind.
  bool Send(const shm::SessionMessage& message, SharedFd given);
  void NoteGone(TimePoint now);
  bool Notify(shm::SessionOp op, uint64_t id);
  void Dismiss(std::string_view why);
  void SetEvents(uint32_t events);

  const uint64_t id_;
  const fabric::Fd socket_;
  const fabric::Fd& poll_;
  RegisteredMemories& memories_;
  const ShmMetrics& metrics_;
  std::shared_ptr<NamespaceStore> store_;  // null until Begin
  HazardBoard::Page page_;
  const NamespaceLookups* lookups_ = nullptr;  // of its namespace
  ReadCells reads_;
  TimePoint counted_at_ = Clock::System().Now();  // them
  fabric::Fd process_;  // pidfd; invalid where the peer's process cannot be seen
  int64_t pid_ = 0;
  uint64_t secret_ = 0;
  uint64_t pin_bytes_max_ = 0;  // as its Welcome said
  fabric::MessageReceiver receiver_;
  std::unordered_map<uint32_t, uint64_t> segments_;  // given to the client, and there: their bytes
  std::vector<GoneSegment> gone_;                    // given, gone, and not dropped by the client
  uint64_t left_seen_ = 0;                           // of the store's segments_left
  std::vector<uint64_t> tables_;                     // given to the client and not called back
  std::optional<Unsent> unsent_;
  bool leaving_ = false;  // told to go
  bool warned_ = false;   // of what it keeps
};

}  // namespace ems::server
