#pragma once
// Takes rings that decode workers offer to this process, over a Unix socket.
//
// Invariant: a ring is passed on only after a greeting that fits. Bound: kPendingMax peers that
// have connected and not yet offered a ring, kPatience each; further ones are turned away.
#include <functional>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/status.h"
#include "fabric/ring_sender.h"

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
  struct Impl;
  explicit RingAcceptor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::pdc
