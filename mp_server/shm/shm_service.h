#pragma once
// Sessions with clients on this host: admits them, hands out descriptors, reads their touches, and
// cleans up after them (docs/ONE_SIDED_READS.md).
//
// One thread ("ems-shm") owns all sessions: it has them answer their messages, takes over what
// their clients have touched (every 10 ms while there are any), and every 100 ms has them count
// what their clients have read and look at segments and tables that are gone, and at namespaces
// that are closed. Bounds: sessions_max sessions; one piece of registered memory each,
// registered_bytes_max of all of them together.
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/guarded.h"
#include "common/ids.h"
#include "common/thread_pool.h"
#include "fabric/net/fd_message.h"
#include "fabric/rpc/rpc_session.h"
#include "mp_server/shm/registered_memory.h"
#include "mp_server/shm/shm_session.h"
#include "mp_server/store/object_store.h"
#include "proto/data_plane.h"

namespace ems::server {

// Threading: thread-safe.
class ShmService final {
 public:
  struct Options {
    ObjectStore* store = nullptr;  // must outlive the service
    SegmentPool* pool = nullptr;   // that of the store
    uint32_t sessions_max = 256;
    uint64_t registered_bytes_max = 4 * kGiB;
    std::vector<uid_t> uids;  // users that may attach; empty: all that may connect
    std::string token_file;   // see AccessTokens; empty: nobody needs one
    fabric::Writers writers = fabric::Writers::kThisProcess;  // of the pool's segments
    // How long a client may take to unmap a segment that is gone before the pool counts it.
    Duration drop_patience = std::chrono::seconds(1);
    // Called when a session begins, from the thread: its namespace may want an index now. May be
    // empty.
    std::function<void()> on_session;
  };
  // Starts the thread. Errors: kFailedPrecondition  the kernel does not enforce seals:
  // nothing may be shared    kNotFound, kInvalidArgument  what is wrong with token_file
  static Result<std::unique_ptr<ShmService>> Start(const Options& options,
                                                   const ShmMetrics& metrics);
  // Ends all sessions and joins.
  ~ShmService();
  ShmService(const ShmService&) = delete;
  ShmService& operator=(const ShmService&) = delete;

  // Takes over a connection whose client wants to attach to `ns`: its first message, a Welcome or a
  // refusal, is sent from the thread. Never blocks.
  void Adopt(fabric::Fd socket, NamespaceRef ns, std::string token);

  // The bytes of a staged Put. Errors: kInvalidArgument  no such session, wrong secret, or outside
  // of what it has registered
  Result<fabric::StagedBytes> Staged(const wire::StagedValue& value);

 private:
  struct Incoming {
    fabric::Fd socket;
    NamespaceRef ns;
    std::string token;
  };
  ShmService(const Options& options, const ShmMetrics& metrics);
  Status Open();
  void Run();
  void Wake() const;
  void AdoptIncoming();
  void Welcome(Incoming arrived);
  Status CheckPeer(const fabric::PeerCredentials& peer) const;
  Status CheckToken(std::string_view name_space, std::string_view token) const;
  Status Begin(const Incoming& arrived, int socket, ShmSession* session);
  // Whether a session is over, by what epoll says of its socket and by what arrives there.
  bool HasHungUp(uint64_t id, uint32_t events);
  void End(uint64_t id, std::string_view why);
  void Tick();
  void ListStores();
  void CountKept(TimePoint now);

  const Options options_;
  const ShmMetrics metrics_;
  fabric::Fd poll_;
  fabric::Fd wake_;
  std::atomic<bool> stopping_{false};
  Guarded<std::vector<Incoming>> incoming_;
  RegisteredMemories memories_;
  // The thread's own.
  std::map<uint64_t, std::unique_ptr<ShmSession>> sessions_;
  std::vector<NamespaceStore*> stores_;  // of the sessions, each once
  uint64_t next_id_ = 1;
  Thread thread_;
};

}  // namespace ems::server
