#include "mp_sdk/internal/local_servers.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/bytes.h"
#include "common/check.h"
#include "common/logging.h"
#include "fabric/net/same_machine.h"

namespace ems::internal {
namespace {

// How often to look whether the readers of a grace period have left.
constexpr int kGracePollMs = 10;
constexpr uint64_t kStagingStepBytes = 4 * kMiB;

bool Contains(const std::vector<std::shared_ptr<LocalServer>>& servers, const LocalServer* one) {
  return std::ranges::any_of(servers, [one](const auto& server) { return server.get() == one; });
}

}  // namespace

LocalServers::LocalServers(Options options)
    : options_(std::move(options)), wakeup_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wakeup_.valid()) {  // the engine goes on, at the sockets' speed
    EMS_LOG(kWarn, "mp_sdk", "reads take the sockets: no descriptor to wake a thread by: {}",
            fabric::ErrnoText(errno));
    return;
  }
  thread_ = Thread("ems-shm", [this] { Run(); });
}

LocalServers::~LocalServers() {
  {
    auto state = state_.Lock();
    state->stopping = true;
  }
  Wake();
  thread_.Join();
}

void LocalServers::Wake() {
  const uint64_t one = 1;
  // Full means that a wake-up is waiting already.
  (void)!::write(wakeup_.get(), &one, sizeof(one));
}

std::shared_ptr<LocalRoutes> LocalServers::MakeRoutes(const DhtView& view,
                                                      const LocalRoutes* old) const {
  auto routes = std::make_shared<LocalRoutes>();
  routes->view = view.version().packed();
  std::vector<std::pair<NodeId, uint8_t>> index;
  for (const NodeInfo& node : view.nodes()) {
    if (node.unix_path.empty() || !fabric::OnOneMachine(node.host_id, options_.host_id)) continue;
    if (routes->servers.size() == LocalRoutes::kServersMax) break;
    std::shared_ptr<LocalServer> server;
    if (old != nullptr) {
      const auto same = std::ranges::find_if(old->servers, [&](const auto& known) {
        return known->node.id == node.id && known->node.boot_id == node.boot_id &&
               known->node.unix_path == node.unix_path;
      });
      if (same != old->servers.end()) server = *same;
    }
    if (server == nullptr) server = std::make_shared<LocalServer>(node, view.cluster());
    routes->servers.push_back(std::move(server));
    index.emplace_back(node.id, static_cast<uint8_t>(routes->servers.size()));
  }
  for (uint32_t slot = 0; slot < kSlotCount && !index.empty(); ++slot) {
    const NodeId owner = view.OwnerId(SlotId(static_cast<uint16_t>(slot)));
    const auto found = std::ranges::find(index, owner, &std::pair<NodeId, uint8_t>::first);
    if (found != index.end()) routes->server[slot] = found->second;
  }
  return routes;
}

void LocalServers::Follow(const ViewCache::View& view) {
  if (view == nullptr || followed_.load(std::memory_order_acquire) >= view->version().packed()) {
    return;
  }
  {
    auto state = state_.Lock();
    if (state->routes != nullptr && state->routes->view >= view->version().packed()) return;
    std::shared_ptr<const LocalRoutes> made = MakeRoutes(*view, state->routes.get());
    routes_.store(made.get(), std::memory_order_seq_cst);
    followed_.store(made->view, std::memory_order_release);
    std::swap(state->routes, made);
    if (made != nullptr) state->retired.push_back(std::move(made));
  }
  Wake();
}

void LocalServers::Offer(std::shared_ptr<StagingMemory> staging) {
  {
    auto state = state_.Lock();
    state->staging = std::move(staging);
  }
  Wake();
}

ShmSession* LocalServers::SessionOf(NodeId node) const {
  const LocalRoutes* const all = routes();
  if (all == nullptr) return nullptr;
  for (const auto& server : all->servers) {
    if (server->node.id == node) return server->session.load(std::memory_order_seq_cst);
  }
  return nullptr;
}

std::optional<StagedSession> LocalServers::StagedFor(NodeId node) {
  const ReaderGate::Pass pass = gate_.Enter();
  const ShmSession* const session = SessionOf(node);
  return session == nullptr || !session->usable() ? std::nullopt : session->staged();
}

void LocalServers::StopStaging(NodeId node) {
  const ReaderGate::Pass pass = gate_.Enter();
  if (ShmSession* const session = SessionOf(node); session != nullptr) session->StopStaging();
}

void LocalServers::Run() {
  std::vector<pollfd> entries;
  std::vector<std::shared_ptr<LocalServer>> polled;
  while (Collect()) {
    AttachDue();
    const bool more = MakeStaging();
    entries.assign(1, {.fd = wakeup_.get(), .events = POLLIN, .revents = 0});
    polled.clear();
    for (const auto& server : servers_) {
      if (server->owner == nullptr) continue;
      if (!server->owner->Send()) {
        Detach(server.get());
        continue;
      }
      const int wanted = POLLIN | (server->owner->has_more_to_send() ? POLLOUT : 0);
      entries.push_back(
          {.fd = server->owner->fd(), .events = static_cast<short>(wanted), .revents = 0});
      polled.push_back(server);
    }
    if (::poll(entries.data(), entries.size(), more ? 0 : PollTimeoutMs()) < 0 && errno != EINTR) {
      EMS_LOG(kError, "mp_sdk", "reads take the sockets from now on: poll failed reason=\"{}\"",
              fabric::ErrnoText(errno));
      for (const auto& server : servers_) Detach(server.get());
      return;
    }
    uint64_t wakes = 0;
    if (entries[0].revents != 0) (void)!::read(wakeup_.get(), &wakes, sizeof(wakes));
    EMS_CHECK(entries.size() == polled.size() + 1);
    for (size_t i = 0; i < polled.size(); ++i) Serve(polled[i].get(), entries[i + 1].revents);
  }
}

bool LocalServers::Collect() {
  std::vector<std::shared_ptr<const void>> retired;
  std::shared_ptr<const LocalRoutes> routes;
  {
    auto state = state_.Lock();
    if (state->stopping) return false;
    retired.swap(state->retired);
    routes = state->routes;
    if (staging_ != state->staging) {
      staging_ = state->staging;
      staging_failed_ = false;
    }
  }
  for (auto& what : retired) Retire(std::move(what));
  if (routes != nullptr && servers_ != routes->servers) {
    for (const auto& server : servers_) {
      if (!Contains(routes->servers, server.get())) Detach(server.get());
    }
    servers_ = routes->servers;
  }
  const uint64_t ended = gate_.Poll();
  std::erase_if(retired_, [ended](const Retired& one) { return one.grace <= ended; });
  for (const auto& server : servers_) {
    if (server->owner != nullptr) server->owner->DropGone(ended);
  }
  return true;
}

bool LocalServers::MakeStaging() {
  if (staging_ == nullptr ||
      std::ranges::none_of(servers_, [](const auto& server) { return server->owner != nullptr; }))
    return false;
  if (!staging_failed_ && staging_->wants_more()) {
    const Status made = staging_->MakeMore(kStagingStepBytes);
    staging_failed_ = !made.ok();
    if (staging_failed_)
      EMS_LOG(kWarn, "mp_sdk", "large Puts take the socket reason=\"{}\"", ToString(made));
    if (!staging_failed_ && staging_->wants_more()) return true;
  }
  OfferStaging();
  return false;
}

void LocalServers::OfferStaging() {
  const uint64_t made = staging_->made_bytes();
  for (const auto& server : servers_) {
    if (server->owner == nullptr || server->offered_bytes >= made) continue;
    server->owner->Offer(staging_->memory(), made);
    server->offered_bytes = made;
  }
}

void LocalServers::Retire(std::shared_ptr<const void> what) {
  retired_.push_back({.grace = gate_.Retire(), .what = std::move(what)});
}

void LocalServers::AttachDue() {
  const TimePoint now = Clock::System().Now();
  for (const auto& server : servers_) {
    if (server->owner == nullptr && server->attach_at <= now) Attach(server.get());
  }
}

void LocalServers::Attach(LocalServer* server) {
  EMS_CHECK(server->owner == nullptr, "{} is attached already", server->node.name);
  auto session = ShmSession::Attach({.host = {}, .port = 0, .unix_path = server->node.unix_path},
                                    {.ns = options_.ns,
                                     .token = options_.token,
                                     .cluster = server->cluster,
                                     .boot_id = server->node.boot_id},
                                    options_.attach_timeout, [this] { Wake(); });
  if (session.ok()) {
    EMS_LOG(kInfo, "mp_sdk", "attached server={}", server->node.name);
    server->failures = 0;
    server->reason.clear();
    server->offered_bytes = 0;
    server->owner = *std::move(session);
    server->session.store(server->owner.get(), std::memory_order_seq_cst);
    return;
  }
  const Duration pause = kAttachAgain * (1 << std::min(server->failures++, 6));
  server->attach_at = Clock::System().Now() + std::min(pause, kAttachAgainMax);
  std::string reason = ToString(session.status());
  if (reason == server->reason) return;
  // A container of its own, by its name, has its own files as a rule.
  const auto level =
      server->node.host_id == options_.host_id ? log::Level::kWarn : log::Level::kInfo;
  if (log::Enabled(level))
    log::Write(level, "mp_sdk", "reads take the socket server={} reason=\"{}\"", server->node.name,
               reason);
  server->reason = std::move(reason);
}

void LocalServers::Detach(LocalServer* server) {
  if (server->owner == nullptr) return;
  server->session.store(nullptr, std::memory_order_seq_cst);
  server->owner->End();
  Retire(std::exchange(server->owner, nullptr));
  server->attach_at = Clock::System().Now() + kAttachAgain;
  EMS_LOG(kInfo, "mp_sdk", "detached server={}", server->node.name);
}

void LocalServers::Serve(LocalServer* server, short events) {
  if (events == 0 || server->owner == nullptr) return;
  // What came before the end is of no use any more.
  const bool ended = (events & (POLLHUP | POLLERR | POLLNVAL)) != 0;
  if (ended || ((events & POLLIN) != 0 && !server->owner->Receive(&gate_))) Detach(server);
}

int LocalServers::PollTimeoutMs() const {
  if (gate_.busy()) return kGracePollMs;
  TimePoint next = TimePoint::max();
  for (const auto& server : servers_) {
    if (server->owner == nullptr) next = std::min(next, server->attach_at);
  }
  return next == TimePoint::max() ? -1 : Deadline(next).RemainingMs();
}

}  // namespace ems::internal
