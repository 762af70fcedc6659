#include "bench/hot/nic_limit.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ems::bench {
namespace {

constexpr Duration kConnectPatience = std::chrono::seconds(1);
// With fewer tokens nothing is read: many small reads would cost more than what they move.
constexpr double kLeastTokens = 64.0 * kKiB;
constexpr int kTokenWaitMs = 1;

}  // namespace

Result<std::unique_ptr<NicLimit>> NicLimit::Start(double bytes_per_s) {
  EMS_ASSIGN_OR_RETURN(fabric::Fd listener, fabric::ListenTcp(fabric::Address{
                                                .host = "127.0.0.1", .port = 0, .unix_path = {}}));
  fabric::Fd wakeup(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wakeup.valid())
    return Error(StatusCode::kUnavailable, "no eventfd: {}", fabric::ErrnoText(errno));
  return std::make_unique<NicLimit>(std::move(listener), std::move(wakeup), bytes_per_s);
}

NicLimit::NicLimit(fabric::Fd listener, fabric::Fd wakeup, double bytes_per_s)
    : listener_(std::move(listener)), wakeup_(std::move(wakeup)), bytes_per_s_(bytes_per_s) {
  thread_ = Thread("bench-nic", [this] { Run(); });
}

NicLimit::~NicLimit() {
  stopping_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  (void)!::write(wakeup_.get(), &one, sizeof(one));
  thread_.Join();
}

std::string NicLimit::address() const {
  return fmt::format("127.0.0.1:{}", fabric::BoundPort(listener_.get()));
}

void NicLimit::SetTarget(const std::string& target) {
  auto held = target_.Lock();
  *held = target;
}

void NicLimit::Run() {
  refilled_ = Clock::System().Now();
  while (!stopping_.load(std::memory_order_acquire)) {
    Wait();
    Accept();
    Refill();
    const size_t count = connections_.size();
    for (size_t i = 0; i < count; ++i) {
      Connection& connection = connections_[(first_ + i) % count];
      if (!Pump(&connection)) connection.client.Close();
    }
    ++first_;
    std::erase_if(connections_, [](const Connection& one) { return !one.client.valid(); });
  }
}

void NicLimit::Refill() {
  const TimePoint now = Clock::System().Now();
  const double seconds = std::chrono::duration<double>(now - refilled_).count();
  tokens_ = std::min(kBurstBytes, tokens_ + seconds * bytes_per_s_);
  refilled_ = now;
}

void NicLimit::Accept() {
  while (true) {
    fabric::Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!client.valid()) return;
    std::string target;
    {
      auto held = target_.Lock();
      target = *held;
    }
    const auto address = fabric::ParseAddress(target);
    if (!address.ok() || connections_.size() >= kConnectionsMax) continue;
    auto server = fabric::Connect(*address, kConnectPatience);
    if (!server.ok()) continue;
    Connection& made = connections_.emplace_back();
    made.client = std::move(client);
    made.server = *std::move(server);
    made.up = {.from = made.client.get(), .to = made.server.get(), .part = {}};
    made.down = {.from = made.server.get(), .to = made.client.get(), .part = {}};
  }
}

bool NicLimit::Move(Pipe* pipe, size_t most, size_t* moved) {
  *moved = 0;
  if (pipe->empty() && !pipe->ended && most > 0) {
    pipe->part.resize(kPartBytes);
    const ssize_t n = ::recv(pipe->from, pipe->part.data(), std::min(most, kPartBytes), 0);
    if (n == 0) pipe->ended = true;
    if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
    pipe->begin = 0;
    pipe->end = n > 0 ? static_cast<size_t>(n) : 0;
    *moved = pipe->end;
  }
  if (!pipe->empty()) {
    const ssize_t n =
        ::send(pipe->to, pipe->part.data() + pipe->begin, pipe->end - pipe->begin, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (n > 0) pipe->begin += static_cast<size_t>(n);
  }
  return !pipe->ended || !pipe->empty();
}

bool NicLimit::Pump(Connection* connection) {
  size_t moved = 0;
  if (!Move(&connection->up, kPartBytes, &moved)) return false;
  const size_t most = tokens_ < kLeastTokens ? 0 : static_cast<size_t>(tokens_);
  const bool open = Move(&connection->down, most, &moved);
  tokens_ -= static_cast<double>(moved);
  sent_bytes_.fetch_add(moved, std::memory_order_relaxed);
  return open;
}

void NicLimit::Wait() {
  std::vector<pollfd> entries = {{.fd = wakeup_.get(), .events = POLLIN, .revents = 0},
                                 {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
  const bool may_send = tokens_ >= kLeastTokens;
  bool holds_back = false;
  for (const Connection& one : connections_) {
    const bool reads_down = one.down.empty() && may_send;
    holds_back = holds_back || (one.down.empty() && !may_send);
    entries.push_back({.fd = one.client.get(),
                       .events = static_cast<short>((one.up.empty() ? POLLIN : 0) |
                                                    (one.down.empty() ? 0 : POLLOUT)),
                       .revents = 0});
    entries.push_back(
        {.fd = one.server.get(),
         .events = static_cast<short>((reads_down ? POLLIN : 0) | (one.up.empty() ? 0 : POLLOUT)),
         .revents = 0});
  }
  (void)::poll(entries.data(), entries.size(), holds_back ? kTokenWaitMs : -1);
}

}  // namespace ems::bench
