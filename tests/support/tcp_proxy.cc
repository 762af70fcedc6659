#include "tests/support/tcp_proxy.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "common/check.h"
#include "tests/support/raw_connection.h"

namespace ems::testing {
namespace {

constexpr size_t kPipesMax = 128;
constexpr size_t kPendingMax = 64 * 1024;

}  // namespace

TcpProxy::TcpProxy(const std::string& target) : target_(target) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(own);
  EMS_CHECK(bind(listener_, reinterpret_cast<const sockaddr*>(&own), sizeof(own)) == 0 &&
            listen(listener_, 64) == 0 &&
            getsockname(listener_, reinterpret_cast<sockaddr*>(&own), &length) == 0);
  port_ = ntohs(own.sin_port);
  wakeup_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  EMS_CHECK(wakeup_ >= 0);
  thread_ = Thread("proxy", [this] { Run(); });
}

TcpProxy::~TcpProxy() {
  stopping_.store(true);
  eventfd_write(wakeup_, 1);
  thread_.Join();
  close(listener_);
  close(wakeup_);
}

void TcpProxy::Cut() {
  cut_.store(true);
  eventfd_write(wakeup_, 1);
}

void TcpProxy::Mend() { cut_.store(false); }

void TcpProxy::Run() {
  while (!stopping_.load()) {
    std::vector<pollfd> polled{{.fd = listener_, .events = POLLIN, .revents = 0},
                               {.fd = wakeup_, .events = POLLIN, .revents = 0}};
    for (const Pipe& pipe : pipes_) {
      const bool reads = !pipe.from_ended && pipe.pending.size() < kPendingMax;
      polled.push_back({.fd = reads ? pipe.from : -1, .events = POLLIN, .revents = 0});
      polled.push_back(
          {.fd = pipe.pending.empty() ? -1 : pipe.to, .events = POLLOUT, .revents = 0});
    }
    poll(polled.data(), polled.size(), -1);
    eventfd_t ignored = 0;
    eventfd_read(wakeup_, &ignored);
    if (cut_.load()) DropAll();
    for (size_t i = 0; i + 1 < pipes_.size(); i += 2) {
      if (Pump(&pipes_[i]) && Pump(&pipes_[i + 1])) continue;
      close(pipes_[i].from);
      close(pipes_[i].to);
      pipes_.erase(pipes_.begin() + static_cast<ptrdiff_t>(i),
                   pipes_.begin() + static_cast<ptrdiff_t>(i) + 2);
      i -= 2;
    }
    if (polled[0].revents != 0) Accept();
  }
  DropAll();
}

void TcpProxy::Accept() {
  const int client = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (client < 0) return;
  const Result<int> server =
      cut_.load() || pipes_.size() >= kPipesMax ? Result<int>(-1) : ConnectTcp(target_);
  if (!server.ok() || *server < 0) {
    close(client);
    return;
  }
  fcntl(*server, F_SETFL, O_NONBLOCK);
  pipes_.push_back({.from = client, .to = *server, .pending = {}});
  pipes_.push_back({.from = *server, .to = client, .pending = {}});
}

void TcpProxy::DropAll() {
  for (size_t i = 0; i < pipes_.size(); i += 2) {
    close(pipes_[i].from);
    close(pipes_[i].to);
  }
  pipes_.clear();
}

// Moves what can be moved; false when the connection has ended.
bool TcpProxy::Pump(Pipe* pipe) {
  std::array<char, kPendingMax> buffer;
  if (!pipe->from_ended && pipe->pending.size() < kPendingMax) {
    const ssize_t got = recv(pipe->from, buffer.data(), kPendingMax - pipe->pending.size(), 0);
    if (got > 0) pipe->pending.append(buffer.data(), static_cast<size_t>(got));
    if (got == 0 || (got < 0 && errno != EAGAIN)) pipe->from_ended = true;
  }
  if (!pipe->pending.empty()) {
    const ssize_t sent = send(pipe->to, pipe->pending.data(), pipe->pending.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) return false;
    if (sent > 0) pipe->pending.erase(0, static_cast<size_t>(sent));
  }
  return !(pipe->from_ended && pipe->pending.empty());
}

}  // namespace ems::testing
