#include "tests/support/http_script.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <limits>

#include "common/check.h"

namespace ems::testing {
namespace {

constexpr size_t kHeadMax = 64 * 1024;

// False: the server ends first.
bool WaitReadable(int fd, int stop) {
  std::array<pollfd, 2> polled{pollfd{.fd = fd, .events = POLLIN, .revents = 0},
                               pollfd{.fd = stop, .events = POLLIN, .revents = 0}};
  while (poll(polled.data(), polled.size(), -1) < 0) {
  }
  return polled[1].revents == 0;
}

bool SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

std::string TakeLine(std::string* head) {
  const size_t end = std::min(head->find("\r\n"), head->size());
  std::string line = head->substr(0, end);
  head->erase(0, end + 2);
  return line;
}

}  // namespace

std::string ScriptRequest::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

std::pair<uint64_t, uint64_t> ScriptRequest::Range() const {
  unsigned long long first = 0;
  unsigned long long last = std::numeric_limits<uint64_t>::max();
  const std::string text = Header("range");
  if (!text.empty()) EMS_CHECK(std::sscanf(text.c_str(), "bytes=%llu-%llu", &first, &last) == 2);
  return {first, last};
}

ScriptReply Reply(int status, const std::vector<std::string>& headers, const std::string& body) {
  std::string bytes = "HTTP/1.1 " + std::to_string(status) + " Scripted\r\n";
  for (const std::string& header : headers) bytes += header + "\r\n";
  bytes += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  return {.bytes = std::move(bytes), .end = ScriptReply::End::kKeepOpen};
}

HttpScript::HttpScript(Handler handler) : handler_(std::move(handler)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(own);
  EMS_CHECK(bind(listener_, reinterpret_cast<const sockaddr*>(&own), sizeof(own)) == 0 &&
            listen(listener_, 64) == 0 &&
            getsockname(listener_, reinterpret_cast<sockaddr*>(&own), &length) == 0);
  port_ = ntohs(own.sin_port);
  stop_ = eventfd(0, EFD_CLOEXEC);
  EMS_CHECK(stop_ >= 0);
  thread_ = Thread("script", [this] { Accept(); });
}

HttpScript::~HttpScript() {
  eventfd_write(stop_, 1);
  thread_.Join();
  connections_.clear();
  close(listener_);
  close(stop_);
}

std::vector<ScriptRequest> HttpScript::requests() {
  auto requests = requests_.Lock();
  return *requests;
}

void HttpScript::Accept() {
  uint64_t connection = 0;
  while (WaitReadable(listener_, stop_)) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    EMS_CHECK(++connection <= 64);
    connections_.emplace_back("script-c", [this, fd, connection] { Serve(fd, connection); });
  }
}

void HttpScript::Serve(int fd, uint64_t connection) {
  std::string pending;
  std::array<char, 4096> buffer;
  for (;;) {
    const size_t end = pending.find("\r\n\r\n");
    if (end != std::string::npos) {
      const std::string head = pending.substr(0, end + 2);
      pending.erase(0, end + 4);
      if (!Answer(fd, head, connection)) break;
      continue;
    }
    if (pending.size() > kHeadMax || !WaitReadable(fd, stop_)) break;
    const ssize_t got = recv(fd, buffer.data(), buffer.size(), 0);
    if (got <= 0) break;
    pending.append(buffer.data(), static_cast<size_t>(got));
  }
  close(fd);
}

bool HttpScript::Answer(int fd, const std::string& text, uint64_t connection) {
  std::string head = text;
  const std::string line = TakeLine(&head);
  ScriptRequest request;
  request.connection = connection;
  request.method = line.substr(0, line.find(' '));
  request.target = line.substr(request.method.size() + 1);
  request.target.resize(request.target.find(' '));
  while (!head.empty()) {
    const std::string header = TakeLine(&head);
    const size_t colon = header.find(':');
    EMS_CHECK(colon != std::string::npos);
    std::string name = header.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    request.headers[name] = header.substr(header.find_first_not_of(' ', colon + 1));
  }
  {
    auto requests = requests_.Lock();
    requests->push_back(request);
  }
  const ScriptReply reply = handler_(request);
  std::string_view bytes = reply.bytes;
  // To a HEAD the head alone goes, whatever the script says.
  if (request.method == "HEAD") bytes = bytes.substr(0, bytes.find("\r\n\r\n") + 4);
  if (!SendAll(fd, bytes)) return false;
  if (reply.end == ScriptReply::End::kHang) {
    std::array<char, 256> ignored;
    while (WaitReadable(fd, stop_) && recv(fd, ignored.data(), ignored.size(), 0) > 0) {
    }
  }
  return reply.end == ScriptReply::End::kKeepOpen;
}

}  // namespace ems::testing
