#include "fabric/net/unix_listener.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/check.h"

namespace ems::fabric {

Result<UnixListener> UnixListener::Open(const std::string& path, uint32_t mode) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path))
    return Error(StatusCode::kInvalidArgument, "the path of a Unix socket has 1 to {} bytes: {}",
                 sizeof(address.sun_path) - 1, path);
  std::memcpy(address.sun_path, path.data(), path.size());
  const auto failed = [&](std::string_view what) {
    return Error(StatusCode::kInternal, "{} {}: {}", what, path, ErrnoText(errno));
  };
  // A name without a listener refuses at once.
  const auto there = Connect({.host = {}, .port = 0, .unix_path = path}, std::chrono::seconds(1));
  if (there.ok() || there.status().code() == StatusCode::kDeadlineExceeded)
    return Error(StatusCode::kAlreadyExists, "a process listens on {} already", path);
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) return Error(StatusCode::kAlreadyExists, "{} is no socket", path);
    (void)::unlink(path.c_str());
  }
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return failed("socket for");
  // Before anybody can connect: nobody can until it listens.
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return failed("bind to");
  if (::chmod(path.c_str(), mode) != 0) return failed("mode of");
  if (::listen(fd.get(), SOMAXCONN) != 0) return failed("listen on");
  return UnixListener(std::move(fd), path);
}

UnixListener::~UnixListener() {
  if (!path_.empty()) (void)::unlink(path_.c_str());
}

Result<Fd> UnixListener::Accept(Duration timeout) {
  EMS_CHECK(fd_.valid(), "the socket of {} was given away", path_);
  const Deadline deadline = Deadline::After(timeout);
  while (true) {
    Fd peer(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (peer.valid()) return peer;
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ECONNABORTED)
      return Error(StatusCode::kInternal, "accept on {}: {}", path_, ErrnoText(errno));
    if (deadline.Passed())
      return Error(StatusCode::kDeadlineExceeded, "nobody connected to {}", path_);
    pollfd fd{fd_.get(), POLLIN, 0};
    (void)::poll(&fd, 1, deadline.RemainingMs());
  }
}

}  // namespace ems::fabric
