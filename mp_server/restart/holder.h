#pragma once
// A process that keeps descriptors while a server restarts, where there is no systemd to do so:
// `mp-server --hold SOCKET`.
//
// Invariant: a set of descriptors is given out once, whole, to a process of this very user. Bound:
// one set of kFdsHeldMax; one peer at a time, for kStorePatience; what nobody takes for `keep`
// goes.
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "fabric/net/unix_listener.h"

namespace ems::server {

// Threading: one thread.
class FdHolder final {
 public:
  static constexpr Duration kKeep = std::chrono::minutes(10);
  // Errors: those of UnixListener::Open
  static Result<FdHolder> Open(const std::string& path, Duration keep = kKeep);
  // Serves one peer, if one comes within `timeout`; drops what was kept for too long.
  void Step(Duration timeout);
  size_t held() const { return held_.size(); }

 private:
  FdHolder(fabric::UnixListener listener, Duration keep)
      : listener_(std::move(listener)), keep_(keep) {}
  Status Serve(int socket);

  fabric::UnixListener listener_;
  Duration keep_;
  std::vector<fabric::Fd> held_;
  TimePoint until_{};
};

// Until SIGTERM. `ready_file`, unless it is empty, says once that it listens. Returns the exit code
// of the program.
int RunHolder(const std::string& path, const std::string& ready_file);

}  // namespace ems::server
