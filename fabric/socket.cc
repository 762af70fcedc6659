#include "fabric/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <system_error>

#include "common/host_port.h"

namespace ems::fabric {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";

// Waits for a pending connect to end.
Status FinishConnect(int fd, Duration timeout, const std::string& name) {
  pollfd entry{.fd = fd, .events = POLLOUT, .revents = 0};
  const Deadline deadline = Deadline::After(timeout);
  int ready = 0;
  do {
    ready = ::poll(&entry, 1, deadline.RemainingMs());
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) return Error(StatusCode::kDeadlineExceeded, "connect to {}: no answer", name);
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0)
    return Error(StatusCode::kUnavailable, "connect to {}: {}", name, ErrnoText(error));
  return OkStatus();
}

Result<Fd> ConnectTo(const sockaddr* address, socklen_t size, Duration timeout,
                     const std::string& name) {
  Fd fd(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Error(StatusCode::kUnavailable, "socket: {}", ErrnoText(errno));
  if (address->sa_family != AF_UNIX) {
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    const unsigned user_timeout_ms = 10'000;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms,
                 sizeof(user_timeout_ms));
  }
  if (::connect(fd.get(), address, size) == 0) return fd;
  // A Unix socket whose accept queue is full says EAGAIN instead of waiting.
  if (errno != EINPROGRESS) {
    return Error(StatusCode::kUnavailable, "connect to {}: {}", name, ErrnoText(errno));
  }
  EMS_RETURN_IF_ERROR(FinishConnect(fd.get(), timeout, name));
  return fd;
}

Status CheckUnixPath(const std::string& path) {
  constexpr size_t kPathMax = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() <= kPathMax) return OkStatus();
  return Error(StatusCode::kInvalidArgument, "Unix socket path of {} bytes: {} at most",
               path.size(), kPathMax);
}

Result<Fd> ConnectUnix(const std::string& path, Duration timeout) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  EMS_RETURN_IF_ERROR(CheckUnixPath(path));
  std::memcpy(address.sun_path, path.data(), path.size());
  return ConnectTo(reinterpret_cast<const sockaddr*>(&address), sizeof(address), timeout, path);
}

}  // namespace

void Fd::Close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Result<Address> ParseAddress(std::string_view text) {
  Address address;
  if (text.starts_with(kUnixPrefix)) {
    address.unix_path = text.substr(kUnixPrefix.size());
    if (address.unix_path.empty()) {
      return Error(StatusCode::kInvalidArgument, "address \"unix:\" has no path");
    }
    EMS_RETURN_IF_ERROR(CheckUnixPath(address.unix_path));
    return address;
  }
  EMS_ASSIGN_OR_RETURN(HostPort parsed, ParseHostPort(text));
  address.host = std::move(parsed.host);
  address.port = parsed.port;
  return address;
}

std::string FormatHostPort(std::string_view host, uint16_t port) {
  return host.find(':') == std::string_view::npos ? fmt::format("{}:{}", host, port)
                                                  : fmt::format("[{}]:{}", host, port);
}

Result<Fd> Connect(const Address& address, Duration timeout) {
  if (address.is_unix()) return ConnectUnix(address.unix_path, timeout);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const std::string name = FormatHostPort(address.host, address.port);
  const int error =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (error != 0) {
    return Error(StatusCode::kUnavailable, "cannot resolve {}: {}", name, ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  Status last = Error(StatusCode::kUnavailable, "no address for {}", name);
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    Result<Fd> fd = ConnectTo(at->ai_addr, at->ai_addrlen, timeout, name);
    if (fd.ok()) return fd;
    last = fd.status();
  }
  return last;
}

std::string ErrnoText(int error) { return std::generic_category().message(error); }

std::string HostId() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return fmt::format("{}/{}", name, boot_id);
}

}  // namespace ems::fabric
