#pragma once
// Keeps up a connection to a peer, and knows how the peer is: connects, with back-off, for as long
// as it takes; asks for its pulse; says when it is to be used and when not. Two tiers of heartbeats
// (XDS §6): that the process answers, and that its threads count on.
#include <condition_variable>
#include <functional>
#include <string>

#include "common/guarded.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "pdc/rpc/peer_options.h"

namespace ems::pdc::rpc {

struct PulseNews {
  Status status;  // what the peer says of itself
  uint64_t ticks = 0;
  bool busy = false;
};

// Threading: thread-safe; one thread of its own, "ems-pulse", which calls the hooks.
class PeerWatch final {
 public:
  struct Hooks {
    // Blocks for a few call_timeout at most.
    std::function<Status()> connect;
    // Blocks up to call_timeout. kUnavailable: the connection is of no use any more.
    std::function<Result<PulseNews>()> pulse;
    // It may be used, from now on.
    std::function<void()> up;
    // It may not. `gone`: the connection is dropped, and connect comes next; else it stands still,
    // and comes up when it moves.
    std::function<void(const Status& why, bool gone)> down;
  };

  // `name` is how messages call the peer. Connects at once.
  PeerWatch(std::string name, const PeerWatchOptions& options, Hooks hooks);
  ~PeerWatch();  // Stop
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // No hook is called any more; waits for the one under way. Idempotent; one thread (the owner).
  void Stop();
  // Not OK: it is not to be used, and why. kDeadlineExceeded: pulses are missing, not yet for
  // dead_after.
  Status status();
  // A call to the peer broke: it is not to be used until it has answered a pulse, which is asked
  // for at once. A caller that retries at once goes elsewhere. Does not block.
  void Suspect(const Status& why);

 private:
  struct Wake {
    bool stopping = false, suspected = false;
  };
  void Run();
  // Why the connection was dropped; OK at the stop.
  Status Watch();
  void Set(const Status& status);
  bool IsStopping();
  // True: it is to stop. Earlier than `timeout` also when the peer is suspected.
  bool WaitForPulse(Duration timeout);

  const std::string name_;
  const PeerWatchOptions options_;
  const Hooks hooks_;
  Guarded<Wake> wake_;
  std::condition_variable wakeup_;
  Guarded<Status> status_;
  Thread thread_;
};

}  // namespace ems::pdc::rpc
