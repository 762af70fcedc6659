#include "bench/model/paced_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

namespace ems::bench {
namespace {

constexpr uint64_t kPieceBytes = 64 * kKiB;
constexpr size_t kRequestBytesMax = 16 * kKiB;
constexpr int kPollMs = 100;

bool SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool SameWord(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b,
                            [](char x, char y) { return std::tolower(x) == std::tolower(y); });
}

std::optional<uint64_t> Number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

struct PacedSource::Request {
  std::string method;
  std::string path;   // below the folder
  std::string range;  // as it came; empty: none
  std::string match;  // If-Match

  // False: not one that makes sense.
  static bool Parse(std::string_view head, Request* request) {
    const auto line = [&head] {
      const size_t end = std::min(head.find("\r\n"), head.size());
      const std::string_view one = head.substr(0, end);
      head.remove_prefix(std::min(end + 2, head.size()));
      return one;
    };
    const std::string_view first = line();
    const size_t space = first.find(' ');
    const size_t end = first.rfind(' ');
    if (space == std::string_view::npos || end <= space + 1) return false;
    request->method = first.substr(0, space);
    request->path = first.substr(space + 2, end - space - 2);
    while (!head.empty()) {
      const std::string_view field = line();
      const size_t colon = field.find(':');
      if (colon == std::string_view::npos) continue;
      std::string_view value = field.substr(colon + 1);
      while (value.starts_with(' ')) value.remove_prefix(1);
      if (SameWord(field.substr(0, colon), "range")) request->range = value;
      if (SameWord(field.substr(0, colon), "if-match")) request->match = value;
    }
    return request->path.find("..") == std::string::npos && !request->path.starts_with('/');
  }

  // The bytes asked for of a file of `size`; nothing: a range outside of it.
  std::optional<std::pair<uint64_t, uint64_t>> Bytes(uint64_t size) const {
    if (range.empty()) return std::pair(uint64_t{0}, size);
    const std::string_view text = range;
    const size_t dash = text.find('-');
    if (!text.starts_with("bytes=") || dash == std::string_view::npos) return std::nullopt;
    const auto first = Number(text.substr(6, dash - 6));
    const auto last =
        dash + 1 == text.size() ? std::optional(size - 1) : Number(text.substr(dash + 1));
    if (!first || !last || *first > *last || *first >= size) return std::nullopt;
    return std::pair(*first, std::min(*last, size - 1) - *first + 1);
  }
};

Result<std::unique_ptr<PacedSource>> PacedSource::Start(const std::string& folder,
                                                        uint64_t bytes_per_s) {
  EMS_ASSIGN_OR_RETURN(fabric::Fd listener, fabric::ListenTcp({"127.0.0.1", 0, ""}));
  const int port = fabric::BoundPort(listener.get());
  return std::make_unique<PacedSource>(Passkey(), folder, bytes_per_s, std::move(listener), port);
}

PacedSource::PacedSource(Passkey, std::string folder, uint64_t bytes_per_s, fabric::Fd listener,
                         int port)
    : folder_(std::move(folder)), listener_(std::move(listener)), port_(port), cap_(bytes_per_s) {
  acceptor_ = Thread("source-accept", [this] { Accept(); });
}

PacedSource::~PacedSource() {
  stop_.Set();
  acceptor_.Join();
  std::list<Connection> all;
  {
    auto connections = connections_.Lock();
    all.swap(*connections);
  }
  for (Connection& one : all) ::shutdown(one.fd.get(), SHUT_RDWR);
}

std::string PacedSource::url() const { return fmt::format("http://127.0.0.1:{}/", port_); }

void PacedSource::Accept() {
  while (!stop_.IsSet()) {
    pollfd wait{.fd = listener_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&wait, 1, kPollMs) <= 0) continue;
    fabric::Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd.valid()) continue;
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    std::list<Connection> gone;  // joined without the lock
    auto connections = connections_.Lock();
    for (auto it = connections->begin(); it != connections->end();) {
      const auto next = std::next(it);
      if (it->done.load(std::memory_order_acquire)) gone.splice(gone.end(), *connections, it);
      it = next;
    }
    if (connections->size() >= kConnectionsMax) continue;
    Connection& one = connections->emplace_back();
    one.fd = std::move(fd);
    one.thread = Thread("source", [this, &one] { Serve(&one); });
    connections.Unlock();
  }
}

void PacedSource::Serve(Connection* connection) {
  const int fd = connection->fd.get();
  std::string pending;
  std::array<char, 4096> part;
  bool open = true;
  while (open && !stop_.IsSet()) {
    const size_t end = pending.find("\r\n\r\n");
    if (end != std::string::npos) {
      Request request;
      open = Request::Parse(std::string_view(pending).substr(0, end), &request)
                 ? Answer(fd, request)
                 : SendAll(fd, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
      pending.erase(0, end + 4);
      continue;
    }
    pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&wait, 1, kPollMs);
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const ssize_t got = ready < 0 ? -1 : ::recv(fd, part.data(), part.size(), 0);
    if (got <= 0 || pending.size() > kRequestBytesMax) break;
    pending.append(part.data(), static_cast<size_t>(got));
  }
  connection->done.store(true, std::memory_order_release);
}

bool PacedSource::Answer(int fd, const Request& request) {
  const fabric::Fd file(
      ::open(fmt::format("{}/{}", folder_, request.path).c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return SendAll(fd, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
  const auto size = static_cast<uint64_t>(info.st_size);
  const std::string tag = fmt::format(
      "\"{:x}-{:x}\"", info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec, size);
  if (!request.match.empty() && request.match != tag)
    return SendAll(fd, "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n");
  const auto bytes = request.Bytes(size);
  if (!bytes) {
    return SendAll(fd, fmt::format("HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes "
                                   "*/{}\r\nContent-Length: 0\r\n\r\n",
                                   size));
  }
  const auto [offset, length] = *bytes;
  std::string head = request.range.empty() ? "HTTP/1.1 200 OK\r\n" : "HTTP/1.1 206 Partial\r\n";
  if (!request.range.empty()) {
    head += fmt::format("Content-Range: bytes {}-{}/{}\r\n", offset, offset + length - 1, size);
  }
  head +=
      fmt::format("Content-Length: {}\r\nETag: {}\r\nAccept-Ranges: bytes\r\n\r\n", length, tag);
  if (!SendAll(fd, head)) return false;
  return request.method == "HEAD" || SendFile(fd, file.get(), offset, length);
}

bool PacedSource::SendFile(int fd, int file, uint64_t offset, uint64_t bytes) {
  std::array<char, kPieceBytes> piece;
  while (bytes > 0) {
    const uint64_t part = std::min(bytes, kPieceBytes);
    if (stop_.WaitFor(cap_.Reserve(part))) return false;
    const ssize_t got = ::pread(file, piece.data(), part, static_cast<off_t>(offset));
    if (got <= 0) return false;
    // Before they are on their way: a client that has received everything finds all of it counted.
    bytes_sent_.fetch_add(static_cast<uint64_t>(got), std::memory_order_relaxed);
    if (!SendAll(fd, std::string_view(piece.data(), static_cast<size_t>(got)))) return false;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
  return true;
}

}  // namespace ems::bench
