#include "mp_sdk/internal/connection_pool.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/logging.h"
#include "fabric/net/name_lookup.h"
#include "fabric/net/same_machine.h"

namespace ems::internal {

using fabric::RpcChannel;

namespace {

// A server that does not greet in time, or says what makes no sense, is as good as none.
Status NotOpened(const Status& status) {
  const StatusCode code = status.code();
  return Error(code == StatusCode::kDeadlineExceeded || code == StatusCode::kDataLoss
                   ? StatusCode::kUnavailable
                   : code,
               Message(status));
}

}  // namespace

Result<std::unique_ptr<RpcChannel>> Peer::Take(bool fresh, Deadline deadline, bool* connect_failed,
                                               bool seen_open) {
  auto channel = TakeAny(fresh, deadline, connect_failed);
  if (!seen_open || !channel.ok() || !(*channel)->HungUp()) return channel;
  Return(nullptr);
  return TakeAny(true, deadline, connect_failed);
}

Result<std::unique_ptr<RpcChannel>> Peer::TakeIdle(bool fresh, Duration patience, bool* may_open) {
  *may_open = false;
  if (!breaker_.Allow(Clock::System().Now())) {
    return Error(StatusCode::kUnavailable, "server does not answer; next try within a second");
  }
  std::vector<std::unique_ptr<RpcChannel>> dropped;  // closed outside the lock
  auto state = state_.Lock();
  if (fresh) {
    EMS_CHECK(state->idle.size() <= state->open, "{} of {} connections are idle",
              state->idle.size(), state->open);
    state->open -= static_cast<uint32_t>(state->idle.size());
    dropped.swap(state->idle);
  }
  const auto any = [&](const State& s) { return !s.idle.empty() || s.open < connections_max_; };
  std::unique_ptr<RpcChannel> channel;
  if (!any(*state) && !state.WaitFor(freed_, patience, any)) return channel;
  if (state->idle.empty()) {
    ++state->open;
    *may_open = true;
  } else {
    const auto first = std::ranges::min_element(state->idle, {}, &RpcChannel::fd);
    channel = std::move(*first);
    state->idle.erase(first);
  }
  state.Unlock();
  return channel;
}

Result<std::unique_ptr<RpcChannel>> Peer::TakeAny(bool fresh, Deadline deadline,
                                                  bool* connect_failed) {
  bool ignored = false;
  if (connect_failed == nullptr) connect_failed = &ignored;
  *connect_failed = false;
  bool may_open = false;
  EMS_ASSIGN_OR_RETURN(auto idle, TakeIdle(fresh, deadline.Remaining(), &may_open));
  if (idle != nullptr) return idle;
  if (!may_open) {
    return Error(StatusCode::kDeadlineExceeded, "all {} connections to the server are in use",
                 connections_max_);
  }
  return OpenOne(Deadline(std::min(deadline.at(), Deadline::After(connect_timeout_).at())),
                 connect_failed);
}

Result<std::unique_ptr<RpcChannel>> Peer::TryTake(bool fresh, Deadline deadline,
                                                  bool* connect_failed, bool seen_open) {
  *connect_failed = false;
  bool may_open = false;
  EMS_ASSIGN_OR_RETURN(auto idle, TakeIdle(fresh, Duration::zero(), &may_open));
  if (idle != nullptr && seen_open && idle->HungUp()) {
    Return(nullptr);
    EMS_ASSIGN_OR_RETURN(idle, TakeIdle(true, Duration::zero(), &may_open));
  }
  if (idle != nullptr || !may_open) return idle;
  const size_t addresses = CountAddresses();
  if (addresses == 0) {
    Return(nullptr);
    return idle;
  }
  auto started = StartOne(addresses, deadline);
  *connect_failed = !started.ok();
  return started;
}

size_t Peer::CountAddresses() const {
  if (address_.is_literal()) return 1;
  const auto found =
      fabric::NameLookup::Shared().Find(address_.host, address_.port, Duration::zero());
  return found.ok() ? (*found)->size() : 0;
}

bool Peer::NextAddress(uint32_t attempt) {
  const uint32_t next = attempt + 1;
  // Of several calls that could not use it one moves on.
  (void)attempt_.compare_exchange_strong(attempt, next, std::memory_order_relaxed);
  const uint32_t tried = next - reached_.load(std::memory_order_relaxed);
  return tried % std::max<size_t>(1, CountAddresses()) != 0;
}

Status Peer::LookUp(TimePoint since, Duration timeout, bool* connect_failed) const {
  *connect_failed = false;
  if (address_.is_literal()) return OkStatus();
  const Status found =
      fabric::NameLookup::Shared().Find(address_.host, address_.port, timeout, since).status();
  *connect_failed = !found.ok() && found.code() != StatusCode::kResourceExhausted;
  return found;
}

Result<std::unique_ptr<RpcChannel>> Peer::StartOne(size_t addresses, Deadline deadline) {
  uint32_t attempt = this->attempt();
  auto channel = RpcChannel::StartOpen(address_, attempt);
  while (!channel.ok() && NextAddress(attempt))
    channel = RpcChannel::StartOpen(address_, ++attempt);
  if (channel.ok()) {
    const Duration time = connect_timeout_ / static_cast<int64_t>(addresses);
    (*channel)->set_until(Deadline::After(std::min(time, deadline.Remaining())).at());
    return channel;
  }
  Return(nullptr);
  return channel;
}

Result<std::unique_ptr<RpcChannel>> Peer::OpenOne(Deadline deadline, bool* connect_failed) {
  const Status named = LookUp(TimePoint::max(), deadline.Remaining(), connect_failed);
  if (!named.ok()) {
    Return(nullptr);
    return Error(StatusCode::kUnavailable, Message(named));
  }
  auto channel = RpcChannel::Open(address_, deadline.Remaining());
  const Status opened = channel.ok() ? CheckGreeting(**channel) : channel.status();
  if (opened.ok()) {
    value_bytes_max_.store((*channel)->hello().value_bytes_max, std::memory_order_relaxed);
    return channel;
  }
  *connect_failed = true;
  Return(nullptr);
  return NotOpened(opened);
}

Status Peer::CheckGreeting(const RpcChannel& channel) {
  const uint64_t boot_id = channel.hello().boot_id;  // 0: it has refused to greet
  if (!address_.is_unix() || boot_id_ == 0 || boot_id == 0 || boot_id == boot_id_)
    return channel.Greeted(cluster_);
  misled_.store(true, std::memory_order_relaxed);
  return Error(StatusCode::kUnavailable, "another server listens at {}", address_.unix_path);
}

Status Peer::CheckOpened(const RpcChannel& channel, const Status& driven, uint32_t attempt) {
  const Status opened =
      driven.ok() ? CheckGreeting(channel)
                  : Prefixed(driven, address_.is_unix()
                                         ? address_.unix_path
                                         : fabric::FormatHostPort(address_.host, address_.port));
  if (!opened.ok()) return NotOpened(opened);
  reached_.store(attempt, std::memory_order_relaxed);
  value_bytes_max_.store(channel.hello().value_bytes_max, std::memory_order_relaxed);
  return opened;
}

void Peer::Return(std::unique_ptr<RpcChannel> channel) {
  {
    auto state = state_.Lock();
    EMS_CHECK(state->idle.size() < state->open, "a connection comes back that nobody took");
    if (channel != nullptr) {
      state->idle.push_back(std::move(channel));
    } else {
      --state->open;
    }
  }
  freed_.notify_one();
}

ConnectionPool::ConnectionPool(const ClientOptions& options, std::string host_id)
    : options_(options), host_id_(std::move(host_id)) {}

bool ConnectionPool::MayConnect(const NodeInfo& node, bool misled) const {
  Status reason = Error(StatusCode::kUnavailable, "another server listens at {}", node.unix_path);
  if (!misled) {
    const fabric::Address address{.host = {}, .port = 0, .unix_path = node.unix_path};
    reason = fabric::Connect(address, Duration::zero()).status();
  }
  if (reason.ok()) return true;
  // A container of its own, by its name, has its own files as a rule.
  const auto level = node.host_id == host_id_ ? log::Level::kWarn : log::Level::kInfo;
  if (log::Enabled(level))
    log::Write(level, "mp_sdk", "TCP is used server={} reason=\"{}\"", node.name, ToString(reason));
  return false;
}

Result<fabric::Address> ConnectionPool::AddressOf(const NodeInfo& node, bool misled) const {
  const bool here = !node.unix_path.empty() && fabric::OnOneMachine(node.host_id, host_id_);
  const fabric::Address unix_socket{.host = {}, .port = 0, .unix_path = node.unix_path};
  switch (options_.transport) {
    case TransportChoice::kUnix:
      if (here && !misled) return unix_socket;
      return Error(StatusCode::kUnavailable, "server {} has no Unix socket within reach",
                   node.name);
    case TransportChoice::kAuto:
      if (here && MayConnect(node, misled)) return unix_socket;
      break;
    case TransportChoice::kTcp:
      break;
  }
  return fabric::ParseAddress(node.data_address);
}

Result<std::shared_ptr<Peer>> ConnectionPool::PeerOf(const NodeInfo& node, ClusterId cluster) {
  const auto usable = [&](const Entry& entry) {
    return entry.peer != nullptr && entry.boot_id == node.boot_id && !entry.peer->misled();
  };
  bool misled = false;
  {
    auto peers = peers_.Lock();
    const auto found = peers->find(node.id);
    if (found != peers->end() && usable(found->second)) return found->second.peer;
    misled = found != peers->end() && found->second.boot_id == node.boot_id;
  }
  EMS_ASSIGN_OR_RETURN(fabric::Address address, AddressOf(node, misled));
  auto made = std::make_shared<Peer>(std::move(address), options_.connections_per_server_max,
                                     options_.connect_timeout, cluster, node.boot_id);
  std::shared_ptr<Peer> old;  // its channels close outside the lock
  auto peers = peers_.Lock();
  Entry& entry = (*peers)[node.id];
  if (usable(entry)) return entry.peer;
  old = std::exchange(entry.peer, made);
  entry.boot_id = node.boot_id;
  peers.Unlock();
  return made;
}

void ConnectionPool::Retain(const DhtView& view) {
  std::vector<std::shared_ptr<Peer>> gone;
  auto peers = peers_.Lock();
  for (auto at = peers->begin(); at != peers->end();) {
    if (view.Find(at->first) != nullptr) {
      ++at;
    } else {
      gone.push_back(std::move(at->second.peer));
      at = peers->erase(at);
    }
  }
  peers.Unlock();
}

}  // namespace ems::internal
