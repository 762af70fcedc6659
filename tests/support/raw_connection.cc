#include "tests/support/raw_connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstring>
#include <utility>

#include "fabric/net/socket.h"

namespace ems::testing {
namespace {

bool WaitFor(int fd, int16_t events, const Deadline& deadline) {
  pollfd poll_fd{.fd = fd, .events = events, .revents = 0};
  return poll(&poll_fd, 1, deadline.RemainingMs()) > 0;
}

}  // namespace

Result<int> ConnectTcp(const std::string& address) {
  const size_t colon = address.rfind(':');
  uint16_t port = 0;
  std::from_chars(address.data() + colon + 1, address.data() + address.size(), port);
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(port);
  if (inet_pton(AF_INET, address.substr(0, colon).c_str(), &peer.sin_addr) != 1)
    return Error(StatusCode::kUnavailable, "connect to {}: no IPv4 address in digits", address);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return Error(StatusCode::kUnavailable, "socket: {}", fabric::ErrnoText(errno));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)) != 0) {
    const int error = errno;
    close(fd);
    return Error(StatusCode::kUnavailable, "connect to {}: {}", address, fabric::ErrnoText(error));
  }
  return fd;
}

Result<RawConnection> RawConnection::Open(const std::string& address) {
  EMS_ASSIGN_OR_RETURN(const int fd, ConnectTcp(address));
  return RawConnection(fd);
}

RawConnection::RawConnection(RawConnection&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

RawConnection& RawConnection::operator=(RawConnection&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

RawConnection::~RawConnection() {
  if (fd_ >= 0) close(fd_);
}

bool RawConnection::Send(std::string_view bytes, Duration timeout) {
  const Deadline deadline = Deadline::After(timeout);
  while (!bytes.empty()) {
    if (!WaitFor(fd_, POLLOUT, deadline)) return false;
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN) return false;
    if (sent > 0) bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

Result<std::string> RawConnection::Receive(size_t count, Duration timeout) {
  const Deadline deadline = Deadline::After(timeout);
  std::string bytes(count, '\0');
  size_t filled = 0;
  while (filled < count) {
    if (!WaitFor(fd_, POLLIN, deadline)) {
      return Error(StatusCode::kDeadlineExceeded, "{} of {} bytes came", filled, count);
    }
    const ssize_t got = recv(fd_, bytes.data() + filled, count - filled, 0);
    if (got <= 0)
      return Error(StatusCode::kUnavailable, "closed after {} of {} bytes", filled, count);
    filled += static_cast<size_t>(got);
  }
  return bytes;
}

bool RawConnection::WaitClosed(Duration timeout) {
  const Deadline deadline = Deadline::After(timeout);
  std::array<char, 65536> dropped;
  while (WaitFor(fd_, POLLIN, deadline)) {
    if (recv(fd_, dropped.data(), dropped.size(), 0) <= 0) return true;
  }
  return false;
}

namespace {

Result<std::string> HttpAsk(const std::string& address, std::string_view request) {
  EMS_ASSIGN_OR_RETURN(RawConnection connection, RawConnection::Open(address));
  connection.Send(request);
  std::string answer;
  for (Result<std::string> byte = connection.Receive(1, std::chrono::seconds(5)); byte.ok();
       byte = connection.Receive(1, std::chrono::seconds(5))) {
    answer += *byte;
  }
  const size_t code = answer.find(' ');
  const size_t body = answer.find("\r\n\r\n");
  if (code == std::string::npos || body == std::string::npos) {
    return Error(StatusCode::kInternal, "not an HTTP answer: {}", answer);
  }
  return answer.substr(code + 1, 3) + " " + answer.substr(body + 4);
}

}  // namespace

Result<std::string> HttpGet(const std::string& address, std::string_view path) {
  return HttpAsk(address, fmt::format("GET {} HTTP/1.0\r\n\r\n", path));
}

Result<std::string> HttpPost(const std::string& address, std::string_view path,
                             std::string_view body) {
  return HttpAsk(address, fmt::format("POST {} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}", path,
                                      body.size(), body));
}

}  // namespace ems::testing
