#include "bench/sides/reply_socket.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "common/check.h"

namespace ems::bench {
namespace {

constexpr Duration kConnectTimeout = std::chrono::seconds(5);
constexpr time_t kTimeoutSeconds = 30;
constexpr size_t kLineBytesMax = 512;
constexpr std::string_view kLineEnd = "\r\n";

Status MakeBlocking(int fd) {
  const timeval timeout{kTimeoutSeconds, 0};
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0 && fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) == 0 &&
      setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) == 0 &&
      setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) == 0) {
    return OkStatus();
  }
  return Error(StatusCode::kInternal, "a socket's options: {}", fabric::ErrnoText(errno));
}

// Drops the first `bytes` of the parts.
std::span<iovec> Advance(std::span<iovec> parts, size_t bytes) {
  while (!parts.empty() && bytes >= parts[0].iov_len) {
    bytes -= parts[0].iov_len;
    parts = parts.subspan(1);
  }
  if (!parts.empty()) {
    parts[0].iov_base = static_cast<char*>(parts[0].iov_base) + bytes;
    parts[0].iov_len -= bytes;
  }
  return parts;
}

}  // namespace

Result<ReplySocket> ReplySocket::Connect(const std::string& address) {
  EMS_ASSIGN_OR_RETURN(const fabric::Address parsed, fabric::ParseAddress(address));
  EMS_ASSIGN_OR_RETURN(fabric::Fd fd, fabric::Connect(parsed, kConnectTimeout));
  EMS_RETURN_IF_ERROR(MakeBlocking(fd.get()));
  return ReplySocket(std::move(fd));
}

Status ReplySocket::Broken(std::string_view why) {
  fd_.Close();
  return Error(StatusCode::kInternal, "{}; the connection is closed", why);
}

Status ReplySocket::Send(std::span<iovec> parts) {
  if (!fd_.valid()) return Error(StatusCode::kUnavailable, "the connection is closed");
  while (!parts.empty()) {
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      const std::string why = fabric::ErrnoText(errno);
      fd_.Close();
      return Error(StatusCode::kUnavailable, "cannot send: {}", why);
    }
    parts = Advance(parts, static_cast<size_t>(sent));
  }
  return OkStatus();
}

// At least one byte.
Result<size_t> ReplySocket::ReadSome(std::span<iovec> parts) {
  if (!fd_.valid()) return Error(StatusCode::kUnavailable, "the connection is closed");
  while (true) {
    const ssize_t got = readv(fd_.get(), parts.data(), static_cast<int>(parts.size()));
    if (got > 0) return static_cast<size_t>(got);
    if (got < 0 && errno == EINTR) continue;
    const std::string why = got == 0          ? "the other end closed the connection"
                            : errno == EAGAIN ? "no answer in time"
                                              : fabric::ErrnoText(errno);
    fd_.Close();
    return Error(StatusCode::kUnavailable, "{}", why);
  }
}

Result<std::string> ReplySocket::Read(std::string_view expected, MutableBytes value) {
  EMS_CHECK(expected.size() < kLineBytesMax && expected.ends_with(kLineEnd));
  std::array<char, kLineBytesMax> line;
  size_t line_got = 0, value_got = 0, tail_got = 0;
  while (line_got < expected.size()) {
    std::array<iovec, 3> parts{iovec{line.data() + line_got, expected.size() - line_got},
                               iovec{value.data(), value.size()},
                               iovec{tail_.data(), value.empty() ? 0 : tail_.size()}};
    EMS_ASSIGN_OR_RETURN(const size_t got, ReadSome(parts));
    const size_t of_line = std::min(got, expected.size() - line_got);
    line_got += of_line;
    value_got = std::min(got - of_line, value.size());
    tail_got = got - of_line - value_got;
    const std::string_view so_far(line.data(), line_got);
    if (expected.starts_with(so_far)) continue;
    // Twice a line is enough to see that more than a line has come.
    const std::string_view spilt = AsText(value.first(std::min(value_got, 2 * kLineBytesMax)));
    const std::string_view of_tail = AsText(ConstBytes(tail_).first(tail_got));
    return ReadOther(std::string(so_far).append(spilt).append(of_tail));
  }
  EMS_RETURN_IF_ERROR(ReadRest(value, value_got, tail_got));
  return std::string();
}

// What is still missing of value and tail.
Status ReplySocket::ReadRest(MutableBytes value, size_t value_got, size_t tail_got) {
  if (value.empty()) return OkStatus();
  while (value_got + tail_got < value.size() + tail_.size()) {
    const MutableBytes rest = value.subspan(value_got);
    std::array<iovec, 2> parts{iovec{rest.data(), rest.size()},
                               iovec{tail_.data() + tail_got, tail_.size() - tail_got}};
    EMS_ASSIGN_OR_RETURN(const size_t got, ReadSome(parts));
    const size_t of_value = std::min(got, rest.size());
    value_got += of_value;
    tail_got += got - of_value;
  }
  if (AsText(tail_) == kLineEnd) return OkStatus();
  return Broken("a value that is longer than announced");
}

// `line`: what has come of another line than the expected one.
Result<std::string> ReplySocket::ReadOther(std::string line) {
  size_t end = line.find(kLineEnd);
  while (end == std::string::npos && line.size() < kLineBytesMax) {
    std::array<char, kLineBytesMax> more;
    std::array<iovec, 1> parts{iovec{more.data(), kLineBytesMax - line.size()}};
    EMS_ASSIGN_OR_RETURN(const size_t got, ReadSome(parts));
    line.append(more.data(), got);
    end = line.find(kLineEnd);
  }
  if (end == std::string::npos || end == 0 || end > kLineBytesMax) {
    return Broken(fmt::format("not a reply: {}", Printable(line)));
  }
  if (end + kLineEnd.size() < line.size()) fd_.Close();  // more than the line: what, nobody knows
  line.resize(end);
  return line;
}

}  // namespace ems::bench
