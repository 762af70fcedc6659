#pragma once
// A Unix socket that peers connect to: of an RpcServer (io_threads.h), and of what passes
// descriptors between processes of a user (rings: ring_receiver.h).
// Bound: SOMAXCONN peers that wait to be accepted.
#include <cstdint>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/status.h"
#include "fabric/net/socket.h"

namespace ems::fabric {

// Sole owner of the socket and its name. Threading: thread-safe.
class UnixListener final {
 public:
  // Takes over the name of a listener that is gone; refuses that of one that listens. `mode`
  // says who may connect.
  // Errors: kInvalidArgument  too long a path    kAlreadyExists  a process listens there
  //   kInternal  a system call failed
  static Result<UnixListener> Open(const std::string& path, uint32_t mode = 0600);
  UnixListener(UnixListener&& other) noexcept
      : fd_(std::move(other.fd_)), path_(std::exchange(other.path_, {})) {}
  UnixListener& operator=(UnixListener&&) = delete;
  ~UnixListener();

  const std::string& path() const { return path_; }
  // The listening socket, for another owner. The name still goes with this object.
  int Release() { return fd_.Release(); }
  // The next peer, blocking up to `timeout`. A peer connects by fabric::Connect.
  // Errors: kDeadlineExceeded    kInternal  out of descriptors
  Result<Fd> Accept(Duration timeout);

 private:
  UnixListener(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  Fd fd_;
  std::string path_;
};

}  // namespace ems::fabric
