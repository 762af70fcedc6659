#pragma once
// Sessions with clients on this host: who may attach, which descriptors they get, what they have
// touched, and what happens when they go (docs/ONE_SIDED_READS.md).
//
// One thread ("ems-shm") owns all sessions: it answers their messages, and while there are any it
// takes over what they have touched (every 10 ms while there are any), and every 100 ms looks at
// segments and tables that are gone, and at namespaces that are closed. Bounds: sessions_max
// sessions; one message in hand each; one piece of registered memory each, registered_bytes_max of
// all of them together.
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/metrics.h"
#include "fabric/rpc_session.h"
#include "mp_server/object_store.h"
#include "proto/data_plane.h"

namespace ems::server {

struct ShmMetrics {
  Gauge sessions;
  Counter attached;
  Counter refused;                // credentials, bounds, no memory
  Counter revoked;                // pinned more than allowed
  Counter dismissed;              // broke the protocol, or their namespace is gone
  Counter registrations_refused;  // memory for Puts: registered_bytes_max, or not as it must be
  Gauge registered_bytes;         // memory that clients Put from
};

// Threading: thread-safe.
class ShmService final {
 public:
  struct Options {
    ObjectStore* store = nullptr;  // must outlive the service
    SegmentPool* pool = nullptr;   // that of the store
    uint32_t sessions_max = 256;
    uint64_t registered_bytes_max = 4 * kGiB;
    std::vector<uid_t> uids;  // who may attach; empty: whoever may connect
    std::string token_file;   // see AccessTokens; empty: nobody needs one
    // How long a client may take to unmap a segment that is gone before the pool counts it.
    Duration drop_patience = std::chrono::seconds(1);
    // Called when a session begins, from the thread: its namespace may want an index now. May be
    // empty.
    std::function<void()> on_session;
  };
  // Starts the thread. Errors: kFailedPrecondition  the kernel's sealing does not keep its promise:
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
  struct Impl;
  explicit ShmService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::server
