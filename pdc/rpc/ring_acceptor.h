#pragma once
// Takes rings that decode workers offer to this process, over a Unix socket.
//
// Invariant: a ring is passed on only after a greeting that fits. Bound: kPendingMax peers that
// have connected and not yet offered a ring, kPatience each; further ones are turned away.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "fabric/emulated/ring_sender.h"
#include "fabric/net/fd_message.h"
#include "fabric/net/unix_listener.h"
#include "pdc/rpc/ring_greeting.h"

namespace ems::pdc {

// Threading: thread-safe; one thread of its own, "ems-rings".
class RingAcceptor final {
 public:
  static constexpr size_t kPendingMax = 16;
  static constexpr Duration kPatience = std::chrono::seconds(2);

  // Called on the acceptor's thread.
  struct Hooks {
    // A ring has come. Not OK: it is refused, and closed.
    std::function<Status(uint64_t session, std::unique_ptr<fabric::RingSender> ring)> attach;
    std::function<void()> tick;  // every `tick_every` or so
  };
  struct Options {
    std::string path{};        // of the socket
    uint64_t incarnation = 0;  // that greetings must name
    Duration tick_every = std::chrono::seconds(1);
  };
  // Errors: those of fabric::UnixListener::Open
  static Result<std::unique_ptr<RingAcceptor>> Start(const Options& options, Hooks hooks);
  ~RingAcceptor();
  RingAcceptor(const RingAcceptor&) = delete;
  RingAcceptor& operator=(const RingAcceptor&) = delete;

 private:
  // One that has connected and has not offered its ring yet.
  struct Pending {
    fabric::Fd socket;
    Deadline deadline;
    fabric::MessageReceiver receiver{};
    RingGreeting greeting{};
    bool greeted = false;
  };
  RingAcceptor(fabric::UnixListener listener, const Options& options, Hooks hooks);
  void Run();
  void Welcome(fabric::Fd socket);
  // Whether `peer` is still to be waited for; an error when it is refused.
  Result<bool> Advance(Pending* peer);

  fabric::UnixListener listener_;
  const Options options_;
  const Hooks hooks_;
  StopFlag stop_;
  std::vector<Pending> pending_;  // of the thread alone
  Thread thread_;
};

}  // namespace ems::pdc
