#include "tests/support/tcp_proxy.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "common/check.h"
#include "tests/support/raw_connection.h"

namespace ems::testing {
namespace {

constexpr size_t kConnectionsMax = 256;
constexpr size_t kWaitingMax = 64UL * 1024;
constexpr Duration kObeyMax = std::chrono::seconds(10);
constexpr Duration kSendQueuePoll = std::chrono::milliseconds(1);
constexpr Duration kOvertakeMax = std::chrono::milliseconds(20);

size_t Index(Way way) { return static_cast<size_t>(way); }

bool IsNoisy(const LinkNoise& noise) {
  return noise.flip > 0 || noise.drop > 0 || noise.duplicate > 0 || noise.reorder > 0 ||
         noise.reset > 0;
}

// Which packets that arrive at the socket the kernel drops before TCP sees them.
void SetFilter(int fd, Carry carry) {
  const uint32_t kept_bytes_max = carry == Carry::kLoseLarge ? kSmallPacketBytes : 0;
  std::array<sock_filter, 4> program{
      {{.code = BPF_LD | BPF_W | BPF_LEN, .jt = 0, .jf = 0, .k = 0},
       {.code = BPF_JMP | BPF_JGT | BPF_K, .jt = 0, .jf = 1, .k = kept_bytes_max},
       {.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0},
       {.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = UINT32_MAX}}};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  if (carry == Carry::kVanish || carry == Carry::kLoseLarge) {
    EMS_CHECK(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0);
  } else {
    const int unused = 0;  // fails when there is none
    setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof(unused));
  }
}

// Whether what has been read is passed on.
bool Delivers(Carry carry) { return carry == Carry::kAll || carry == Carry::kLoseLarge; }

// Whether the kernel has bytes that the peer has not acknowledged.
bool HasUnsent(int fd) {
  int bytes = 0;
  return ioctl(fd, TIOCOUTQ, &bytes) == 0 && bytes > 0;
}

}  // namespace

fabric::Fd TcpProxy::ListenAnywhere() {
  Result<fabric::Fd> listener =
      fabric::ListenTcp({.host = "127.0.0.1", .port = 0, .unix_path = ""});
  EMS_CHECK(listener.ok(), "{}", ToString(listener.status()));
  return *std::move(listener);
}

TcpProxy::TcpProxy(const std::string& target, fabric::Fd listener)
    : listener_(std::move(listener)),
      wakeup_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      port_(fabric::BoundPort(listener_.get())) {
  EMS_CHECK(wakeup_.valid());
  auto orders = orders_.Lock();
  orders->target = now_.target = target;
  orders.Unlock();
  thread_ = Thread("proxy", [this] { Run(); });
}

TcpProxy::~TcpProxy() {
  stopping_.store(true);
  eventfd_write(wakeup_.get(), 1);
  thread_.Join();
}

// Changes the orders and waits until the proxy thread goes by them.
template <typename Change>
void TcpProxy::Order(const Change& change) {
  auto orders = orders_.Lock();
  change(&*orders);
  const uint64_t mine = ++orders->given;
  eventfd_write(wakeup_.get(), 1);
  EMS_CHECK(
      orders.WaitFor(obeyed_, kObeyMax, [mine](const Orders& now) { return now.obeyed >= mine; }),
      "the proxy's thread is stuck");
}

void TcpProxy::SetTarget(const std::string& target) {
  Order([&](Orders* orders) { orders->target = target; });
}

void TcpProxy::Set(Way way, const LinkFaults& faults) {
  Order([&](Orders* orders) {
    orders->faults[Index(way)] = faults;
    ++orders->set[Index(way)];
  });
}

void TcpProxy::Cut() {
  Order([](Orders* orders) { orders->cut = true; });
}

void TcpProxy::Mend() {
  Order([](Orders* orders) {
    orders->cut = false;
    for (const Way way : {Way::kToTarget, Way::kToClient}) {
      orders->faults[Index(way)] = {};
      ++orders->set[Index(way)];
    }
  });
}

void TcpProxy::CountOf(Way way, uint64_t LinkCounts::*count) {
  auto counts = counts_.Lock();
  ++(counts->ways[Index(way)].*count);
}

ProxyCounts TcpProxy::counts() const {
  auto counts = counts_.Lock();
  return *counts;
}

uint64_t TcpProxy::strikes() const {
  uint64_t strikes = 0;
  for (const LinkCounts& way : counts().ways) strikes += way.flips + way.resets;
  return strikes;
}

void TcpProxy::Run() {
  while (!stopping_.load()) {
    bool knocked = false;
    Wait(&knocked);
    Obey();
    std::erase_if(connections_, [this](Connection& connection) {
      const Fate fate = Pump(&connection);
      if (fate != Fate::kGoesOn) Drop(connection, fate == Fate::kIsReset);
      return fate != Fate::kGoesOn;
    });
    if (knocked) Accept();
  }
  DropAll();
}

// Until a socket, an order or the time brings something to do.
void TcpProxy::Wait(bool* knocked) {
  std::vector<pollfd> polled{{.fd = listener_.get(), .events = POLLIN, .revents = 0},
                             {.fd = wakeup_.get(), .events = POLLIN, .revents = 0}};
  const TimePoint now = Clock::System().Now();
  std::optional<Duration> patience;
  for (const Connection& connection : connections_) {
    for (const Pipe& pipe : connection.pipes) {
      const std::optional<TimePoint> due = Due(connection.number, pipe);
      const bool writes = due && *due <= now;
      if (due && !writes) patience = std::min(patience.value_or(*due - now), *due - now);
      polled.push_back({.fd = Reads(pipe) ? pipe.from : -1, .events = POLLIN, .revents = 0});
      polled.push_back({.fd = writes ? pipe.to : -1, .events = POLLOUT, .revents = 0});
    }
  }
  timespec timeout{};
  if (patience) {
    timeout.tv_sec = *patience / std::chrono::seconds(1);
    timeout.tv_nsec = (*patience % std::chrono::seconds(1)).count();
  }
  ppoll(polled.data(), polled.size(), patience ? &timeout : nullptr, nullptr);
  *knocked = polled[0].revents != 0;
  eventfd_t ignored = 0;
  eventfd_read(wakeup_.get(), &ignored);
}

void TcpProxy::Obey() {
  auto orders = orders_.Lock();
  Orders next = *orders;
  orders.Unlock();
  if (next.given == now_.given) return;
  const std::array<uint64_t, 2> before = now_.set;
  // A reset or flip that has happened is gone until its direction is set again.
  for (const size_t way : {size_t{0}, size_t{1}}) {
    if (next.set[way] == before[way]) next.faults[way] = now_.faults[way];
  }
  now_ = next;
  if (now_.cut) DropAll();
  for (Connection& connection : connections_) {
    for (Pipe& pipe : connection.pipes) {
      if (now_.set[Index(pipe.way)] == before[Index(pipe.way)]) continue;
      BeginFaults(connection.number, &pipe);
    }
  }
  SetFilter(listener_.get(), now_.faults[Index(Way::kToTarget)].carry);
  orders = orders_.Lock();
  orders->obeyed = now_.given;
  orders.Unlock();
  obeyed_.notify_all();
}

void TcpProxy::Accept() {
  const int client = accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (client < 0) return;
  const bool refused = now_.cut || now_.target.empty() || connections_.size() >= kConnectionsMax;
  const Result<int> server = refused ? Result<int>(-1) : ConnectTcp(now_.target);
  if (!server.ok() || *server < 0) {
    close(client);
    return;
  }
  fcntl(*server, F_SETFL, O_NONBLOCK);
  const int on = 1;  // what is passed on bit by bit must not wait for more
  setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(*server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  connections_.push_back({.number = accepted_++,
                          .pipes = {Pipe{.way = Way::kToTarget, .from = client, .to = *server},
                                    Pipe{.way = Way::kToClient, .from = *server, .to = client}}});
  for (Pipe& pipe : connections_.back().pipes) BeginFaults(connections_.back().number, &pipe);
  auto counts = counts_.Lock();
  ++counts->connections;
}

void TcpProxy::BeginFaults(uint64_t number, Pipe* pipe) const {
  const LinkFaults& faults = FaultsOf(*pipe);
  pipe->passed = 0;
  std::seed_seq seed{faults.noise.seed, faults.noise.seed >> 32, number,
                     uint64_t{Index(pipe->way)}};
  pipe->random.seed(seed);
  SetFilter(pipe->from, faults.carry);
}

void TcpProxy::Drop(const Connection& connection, bool reset) {
  const linger hard{.l_onoff = reset ? 1 : 0, .l_linger = 0};
  for (const Pipe& pipe : connection.pipes) {
    setsockopt(pipe.from, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    close(pipe.from);
  }
}

void TcpProxy::DropAll() {
  for (const Connection& connection : connections_) Drop(connection, false);
  connections_.clear();
}

bool TcpProxy::Reads(const Pipe& pipe) const {
  return !pipe.from_ended && pipe.waiting_bytes < kWaitingMax &&
         FaultsOf(pipe).carry != Carry::kStall;
}

std::optional<TimePoint> TcpProxy::Due(uint64_t number, const Pipe& pipe) const {
  const LinkFaults& faults = FaultsOf(pipe);
  if (pipe.waiting.empty() || !Delivers(faults.carry)) return std::nullopt;
  const bool has_turn = number % 2 == 1 || passed_end_[Index(pipe.way)] > number + 1;
  if (faults.later_first && !has_turn) return std::nullopt;
  return std::max(pipe.waiting.front().due, pipe.next_drip);
}

TcpProxy::Fate TcpProxy::Pump(Connection* connection) {
  for (Pipe& pipe : connection->pipes) {
    if (Reads(pipe)) Read(&pipe);
    if (const Fate fate = PassOn(connection->number, &pipe); fate != Fate::kGoesOn) return fate;
  }
  return Fate::kGoesOn;
}

void TcpProxy::Read(Pipe* pipe) {
  const LinkFaults& faults = FaultsOf(*pipe);
  std::string bytes(kWaitingMax - pipe->waiting_bytes, '\0');
  const ssize_t got = recv(pipe->from, bytes.data(), bytes.size(), 0);
  if (got == 0 || (got < 0 && errno != EAGAIN)) pipe->from_ended = true;
  if (got <= 0) return;
  bytes.resize(static_cast<size_t>(got));
  auto all = counts_.Lock();
  LinkCounts* const counts = &all->ways[Index(pipe->way)];
  counts->bytes += bytes.size();
  if (faults.carry == Carry::kSwallow) return;
  const size_t step = IsNoisy(faults.noise) ? kPieceBytesMax : bytes.size();
  for (size_t at = 0; at < bytes.size(); at += step) Queue(bytes.substr(at, step), pipe, counts);
}

void TcpProxy::Queue(std::string piece, Pipe* pipe, LinkCounts* counts) const {
  const LinkFaults& faults = FaultsOf(*pipe);
  const auto happens = [pipe](double share, uint64_t* count) {
    if (share <= 0 || std::uniform_real_distribution<>()(pipe->random) >= share) return false;
    ++*count;
    return true;
  };
  Chunk chunk{.due = Clock::System().Now() + faults.delay, .bytes = std::move(piece)};
  if (happens(faults.noise.flip, &counts->flips)) {
    const size_t bit = pipe->random() % (chunk.bytes.size() * 8);
    chunk.bytes[bit / 8] = static_cast<char>(chunk.bytes[bit / 8] ^ (1 << (bit % 8)));
  }
  chunk.resets = happens(faults.noise.reset, &counts->resets);
  if (!chunk.resets && happens(faults.noise.drop, &counts->drops)) return;
  const bool twice = happens(faults.noise.duplicate, &counts->duplicates);
  const bool overtakes = !pipe->waiting.empty() && pipe->waiting.back().is_late;
  if (!overtakes && happens(faults.noise.reorder, &counts->reorders)) {
    chunk.is_late = true;
    chunk.due += kOvertakeMax;
  }
  for (int copy = 0; copy < (twice ? 2 : 1); ++copy) {
    pipe->waiting_bytes += chunk.bytes.size();
    pipe->waiting.insert(pipe->waiting.end() - (overtakes ? 1 : 0), chunk);
  }
  if (!overtakes) return;
  pipe->waiting.back().is_late = false;
  pipe->waiting.back().due = chunk.due;
}

TcpProxy::Fate TcpProxy::PassOn(uint64_t number, Pipe* pipe) {
  LinkFaults& faults = now_.faults[Index(pipe->way)];
  const TimePoint now = Clock::System().Now();
  while (true) {
    const std::optional<TimePoint> due = Due(number, *pipe);
    if (!due || *due > now) break;
    Chunk& chunk = pipe->waiting.front();
    size_t count = faults.drip > Duration::zero() ? 1 : chunk.bytes.size();
    if (faults.reset_at) count = std::min(count, *faults.reset_at - pipe->passed);
    if (count == 0 || chunk.resets) {  // what came before it must have arrived
      if (HasUnsent(pipe->to)) {
        chunk.due = now + kSendQueuePoll;
        break;
      }
      if (!chunk.resets) CountOf(pipe->way, &LinkCounts::resets);
      faults.reset_at.reset();
      return Fate::kIsReset;
    }
    if (faults.flip_at && *faults.flip_at - pipe->passed < count) {
      chunk.bytes[*faults.flip_at - pipe->passed] ^= 1;
      faults.flip_at.reset();
      CountOf(pipe->way, &LinkCounts::flips);
    }
    const ssize_t sent = send(pipe->to, chunk.bytes.data(), count, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno != EAGAIN) return Fate::kEnds;
      break;
    }
    const auto gone = static_cast<size_t>(sent);
    pipe->passed += gone;
    pipe->waiting_bytes -= gone;
    chunk.bytes.erase(0, gone);
    if (chunk.bytes.empty()) pipe->waiting.pop_front();
    pipe->next_drip = now + faults.drip;
    passed_end_[Index(pipe->way)] = std::max(passed_end_[Index(pipe->way)], number + 1);
  }
  // Where bytes get lost, so does the news that there are no more.
  const bool ends = pipe->from_ended && pipe->waiting.empty() && Delivers(faults.carry);
  return ends ? Fate::kEnds : Fate::kGoesOn;
}

}  // namespace ems::testing
