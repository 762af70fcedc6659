#include "fabric/net/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include "common/bytes.h"
#include "common/check.h"
#include "common/hash.h"
#include "common/host_port.h"
#include "fabric/net/name_lookup.h"

namespace ems::fabric {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";
// A name server at hand answers within a few milliseconds; what is known already takes no time.
constexpr Duration kNamePatience = std::chrono::milliseconds(20);
constexpr Duration kListenNamePatience = std::chrono::seconds(30);

uint16_t PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

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

// The socket, and whether it is connected by now.
Result<std::pair<Fd, bool>> StartConnectTo(const sockaddr* address, socklen_t size,
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
  if (::connect(fd.get(), address, size) == 0) return std::pair(std::move(fd), true);
  // A Unix socket whose accept queue is full says EAGAIN instead of waiting.
  if (errno != EINPROGRESS) {
    return Error(StatusCode::kUnavailable, "connect to {}: {}", name, ErrnoText(errno));
  }
  return std::pair(std::move(fd), false);
}

Result<Fd> ConnectTo(const sockaddr* address, socklen_t size, Duration timeout,
                     const std::string& name) {
  EMS_ASSIGN_OR_RETURN(auto started, StartConnectTo(address, size, name));
  if (!started.second) EMS_RETURN_IF_ERROR(FinishConnect(started.first.get(), timeout, name));
  return std::move(started.first);
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

bool Address::is_literal() const {
  if (is_unix()) return true;
  std::array<std::byte, sizeof(in6_addr)> any;
  return ::inet_pton(AF_INET, host.c_str(), any.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), any.data()) == 1;
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
  const Deadline deadline = Deadline::After(timeout);
  EMS_ASSIGN_OR_RETURN(const SocketAddresses all,
                       NameLookup::Shared().Find(address.host, address.port, timeout));
  const std::string name = FormatHostPort(address.host, address.port);
  auto left = static_cast<int64_t>(all->size());
  Status last;
  for (const SocketAddress& one : *all) {
    // What is left of the time is for all that are left.
    Result<Fd> fd = ConnectTo(one.get(), one.bytes, deadline.Remaining() / left--, name);
    if (fd.ok()) return fd;
    last = fd.status();
  }
  return last;
}

Result<Fd> StartConnect(const Address& address, uint32_t attempt) {
  if (address.is_unix()) return ConnectUnix(address.unix_path, Duration::zero());
  EMS_ASSIGN_OR_RETURN(const SocketAddresses all,
                       NameLookup::Shared().Find(address.host, address.port, kNamePatience));
  const SocketAddress& one = (*all)[attempt % all->size()];
  EMS_ASSIGN_OR_RETURN(auto started, StartConnectTo(one.get(), one.bytes,
                                                    FormatHostPort(address.host, address.port)));
  return std::move(started.first);
}

Result<Fd> ListenTcp(const Address& address) {
  EMS_ASSIGN_OR_RETURN(const SocketAddresses all,
                       NameLookup::Shared().Find(address.host, address.port, kListenNamePatience));
  const SocketAddress& one = all->front();
  Fd fd(::socket(one.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (fd.valid() && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
      ::bind(fd.get(), one.get(), one.bytes) == 0 && ::listen(fd.get(), SOMAXCONN) == 0) {
    return fd;
  }
  return Error(StatusCode::kUnavailable, "cannot listen on {}: {}",
               FormatHostPort(address.host, address.port), ErrnoText(errno));
}

uint16_t BoundPort(int socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  EMS_CHECK(::getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &size) == 0, "{}",
            ErrnoText(errno));
  return PortOf(bound);
}

std::string ErrnoText(int error) { return std::generic_category().message(error); }

std::string PeerText(int socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return {};
  if (peer.ss_family == AF_UNIX) {
    ucred process{};
    size = sizeof(process);
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &process, &size) != 0) return {};
    return fmt::format("pid {}", process.pid);
  }
  char host[NI_MAXHOST] = {};
  if (::getnameinfo(reinterpret_cast<sockaddr*>(&peer), size, host, sizeof(host), nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return {};
  return FormatHostPort(host, PortOf(peer));
}

std::string HostId() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return fmt::format("{}/{}", name, boot_id);
}

uint64_t ListenerId(const std::string& bound) {
  const Result<HostPort> at = ParseHostPort(bound);
  in6_addr number{};
  const bool is_number = at.ok() && (::inet_pton(AF_INET, at->host.c_str(), &number) == 1 ||
                                     ::inet_pton(AF_INET6, at->host.c_str(), &number) == 1);
  char network[64] = {};
  const bool is_known = ::readlink("/proc/self/ns/net", network, sizeof(network) - 1) > 0;
  if (!is_number || !is_known) return 0;
  return Hash64(AsBytes(fmt::format("{}/{}/{}", HostId(), network, bound)), 0x6c697374656e0a) | 1;
}

}  // namespace ems::fabric
