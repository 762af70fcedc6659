#pragma once
// A Unix socket that peers of this user connect to, for what passes descriptors between processes
// (rings: ring_receiver.h). Bound: kBacklog peers that wait to be accepted.
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/status.h"
#include "fabric/socket.h"

namespace ems::fabric {

// Sole owner of the socket and its name. Threading: thread-safe.
class UnixListener final {
 public:
  static constexpr int kBacklog = 128;

  // Takes over the name of a listener that is gone; refuses that of one that listens. Mode 0600.
  // Errors: kInvalidArgument  too long a path    kAlreadyExists  somebody listens there
  //   kInternal  a system call failed
  static Result<UnixListener> Open(const std::string& path);
  UnixListener(UnixListener&&) noexcept = default;
  UnixListener& operator=(UnixListener&&) = delete;
  ~UnixListener();

  const std::string& path() const { return path_; }
  // The next peer, blocking up to `timeout`. A peer connects by fabric::Connect.
  // Errors: kDeadlineExceeded    kInternal  out of descriptors
  Result<Fd> Accept(Duration timeout);

 private:
  UnixListener(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  Fd fd_;
  std::string path_;
};

}  // namespace ems::fabric
