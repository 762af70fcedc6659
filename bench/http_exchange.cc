#include "bench/http_exchange.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <utility>

#include "common/bytes.h"

namespace ems::bench {
namespace {

constexpr size_t kHeadBytesMax = 16 * kKiB;
constexpr size_t kLineBytesMax = 256;
constexpr size_t kReadBytes = 16 * kKiB;
constexpr std::string_view kLineEnd = "\r\n";

Status WaitFor(int fd, int16_t events, Deadline deadline) {
  while (true) {
    pollfd wait{.fd = fd, .events = events, .revents = 0};
    const int ready = ::poll(&wait, 1, deadline.RemainingMs());
    if (ready > 0) return OkStatus();
    if (ready == 0) return Error(StatusCode::kDeadlineExceeded, "no answer in time");
    if (errno != EINTR) return Error(StatusCode::kInternal, "poll: {}", fabric::ErrnoText(errno));
  }
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool ParseNumber(std::string_view text, int base, uint64_t* value) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), *value, base);
  return !text.empty() && parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
}

std::string RequestText(const HttpAsk& ask) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", ask.method,
                                 ask.path, ask.address);
  if (ask.method == "POST") {
    text +=
        fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", ask.body.size());
  }
  return text.append(kLineEnd).append(ask.body);
}

}  // namespace

Result<HttpExchange> HttpExchange::Begin(const HttpAsk& ask, Deadline deadline) {
  EMS_ASSIGN_OR_RETURN(const fabric::Address address, fabric::ParseAddress(ask.address));
  EMS_ASSIGN_OR_RETURN(fabric::Fd fd, fabric::Connect(address, deadline.Remaining()));
  HttpExchange exchange(std::move(fd), deadline);
  EMS_RETURN_IF_ERROR(exchange.Send(RequestText(ask)));
  EMS_RETURN_IF_ERROR(exchange.ReadHead());
  return exchange;
}

Status HttpExchange::Send(std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      text.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      EMS_RETURN_IF_ERROR(WaitFor(fd_.get(), POLLOUT, deadline_));
    } else if (errno != EINTR) {
      return Error(StatusCode::kUnavailable, "cannot send: {}", fabric::ErrnoText(errno));
    }
  }
  return OkStatus();
}

Result<bool> HttpExchange::Fill() {
  std::array<char, kReadBytes> bytes;
  while (true) {
    const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
    if (got > 0) {
      buffer_.append(bytes.data(), static_cast<size_t>(got));
      return true;
    }
    if (got == 0) return false;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      EMS_RETURN_IF_ERROR(WaitFor(fd_.get(), POLLIN, deadline_));
    } else if (errno != EINTR) {
      return Error(StatusCode::kUnavailable, "cannot receive: {}", fabric::ErrnoText(errno));
    }
  }
}

Status HttpExchange::ReadHead() {
  size_t end = std::string::npos;
  while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
    if (buffer_.size() > kHeadBytesMax)
      return Error(StatusCode::kInternal, "the head of an answer is longer than {} B",
                   kHeadBytesMax);
    EMS_ASSIGN_OR_RETURN(const bool more, Fill());
    if (!more) return Error(StatusCode::kUnavailable, "the connection was closed unanswered");
  }
  const std::string head = buffer_.substr(0, end + kLineEnd.size());
  buffer_.erase(0, end + 2 * kLineEnd.size());
  return ReadFraming(head);
}

Status HttpExchange::ReadFraming(std::string_view head) {
  uint64_t status = 0;
  if (!head.starts_with("HTTP/1.1 ") || head.size() < 14 ||
      !ParseNumber(head.substr(9, 3), 10, &status)) {
    return Error(StatusCode::kInternal, "not an HTTP answer: {}", Printable(head));
  }
  status_ = static_cast<int>(status);
  for (size_t at = head.find(kLineEnd) + 2; at < head.size();) {
    const size_t end = head.find(kLineEnd, at);
    const std::string_view line = head.substr(at, end - at);
    at = end + 2;
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string name = Lower(line.substr(0, colon));
    const std::string_view value = Trimmed(line.substr(colon + 1));
    if (name == "transfer-encoding" && Lower(value) == "chunked") framing_ = Framing::kChunked;
    if (name != "content-length") continue;
    if (!ParseNumber(value, 10, &left_))
      return Error(StatusCode::kInternal, "Content-Length: {}", Printable(value));
    if (framing_ == Framing::kUntilClose) framing_ = Framing::kLength;
  }
  if (framing_ == Framing::kChunked) left_ = 0;
  return OkStatus();
}

Result<std::string> HttpExchange::TakeLine() {
  size_t end = std::string::npos;
  while ((end = buffer_.find(kLineEnd)) == std::string::npos) {
    if (buffer_.size() > kLineBytesMax)
      return Error(StatusCode::kInternal, "a chunk without a size: {}", Printable(buffer_));
    EMS_ASSIGN_OR_RETURN(const bool more, Fill());
    if (!more) return Error(StatusCode::kUnavailable, "the answer was cut");
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + kLineEnd.size());
  return line;
}

Status HttpExchange::NextChunk() {
  if (std::exchange(begun_, true)) {
    EMS_ASSIGN_OR_RETURN(const std::string end, TakeLine());
    if (!end.empty()) return Error(StatusCode::kInternal, "a chunk longer than announced");
  }
  EMS_ASSIGN_OR_RETURN(const std::string line, TakeLine());
  if (!ParseNumber(Trimmed(line.substr(0, line.find(';'))), 16, &left_))
    return Error(StatusCode::kInternal, "not the size of a chunk: {}", Printable(line));
  if (left_ > 0) return OkStatus();
  for (std::string trailer = "more"; !trailer.empty();) {
    EMS_ASSIGN_OR_RETURN(trailer, TakeLine());
  }
  ended_ = true;
  return OkStatus();
}

std::string HttpExchange::TakePiece() {
  if (framing_ == Framing::kUntilClose) return std::exchange(buffer_, {});
  const auto bytes = static_cast<size_t>(std::min<uint64_t>(left_, buffer_.size()));
  std::string piece = buffer_.substr(0, bytes);
  buffer_.erase(0, bytes);
  left_ -= bytes;
  return piece;
}

Result<std::string> HttpExchange::Read() {
  while (!ended_) {
    if (framing_ == Framing::kChunked && left_ == 0) {
      EMS_RETURN_IF_ERROR(NextChunk());
      continue;
    }
    if (framing_ == Framing::kLength && left_ == 0) break;
    std::string piece = TakePiece();
    if (!piece.empty()) return piece;
    EMS_ASSIGN_OR_RETURN(const bool more, Fill());
    if (more) continue;
    if (framing_ != Framing::kUntilClose)
      return Error(StatusCode::kUnavailable, "the answer was cut");
    break;
  }
  ended_ = true;
  return std::string();
}

Result<std::string> HttpExchange::ReadAll(size_t bytes_max) {
  std::string body;
  while (true) {
    EMS_ASSIGN_OR_RETURN(const std::string piece, Read());
    if (piece.empty()) return body;
    body += piece;
    if (body.size() > bytes_max)
      return Error(StatusCode::kResourceExhausted, "an answer of more than {} B", bytes_max);
  }
}

}  // namespace ems::bench
