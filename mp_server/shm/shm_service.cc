#include "mp_server/shm/shm_service.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "common/check.h"
#include "common/logging.h"
#include "fabric/net/fd_message.h"
#include "mp_server/memory/segment_pool.h"
#include "mp_server/shm/access_tokens.h"
#include "mp_server/shm/shm_session.h"
#include "mp_server/shm/touch_tick.h"
#include "mp_server/store/namespace_store.h"

namespace ems::server {
namespace {

using fabric::Fd;

constexpr int kTickMs = 100;
constexpr Duration kStayBusy = std::chrono::milliseconds(300);
// Of one namespace at each visit. In a storm of reads a sample tells hot from cold, and costs
// little.
constexpr size_t kTouchesTaken = ObjectIndex::kTouchesMax;
constexpr size_t kTouchesSampled = 256;
constexpr uint64_t kWakeTag = 0;

}  // namespace

ShmService::ShmService(const Options& options, const ShmMetrics& metrics)
    : options_(options),
      metrics_(metrics),
      memories_(options.registered_bytes_max, metrics.registered_bytes) {}

ShmService::~ShmService() {
  stopping_.store(true, std::memory_order_release);
  if (wake_.valid()) Wake();
  thread_.Join();
  while (!sessions_.empty()) End(sessions_.begin()->first, "the server is stopping");
}

void ShmService::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

Status ShmService::Open() {
  poll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeTag;
  if (!poll_.valid() || !wake_.valid() ||
      epoll_ctl(poll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0)
    return Error(StatusCode::kResourceExhausted, "no descriptors: {}", fabric::ErrnoText(errno));
  thread_ = Thread("ems-shm", [this] { Run(); });
  return OkStatus();
}

void ShmService::Run() {
  TimePoint next_tick = Clock::System().Now();
  TimePoint next_touches = next_tick;
  TimePoint busy_until = next_tick;
  TouchTick touch_tick;
  while (!stopping_.load(std::memory_order_acquire)) {
    std::array<epoll_event, 64> events;
    const int ready = epoll_wait(
        poll_.get(), events.data(), static_cast<int>(events.size()),
        sessions_.empty() ? -1 : (Clock::System().Now() < busy_until ? touch_tick.ms() : kTickMs));
    for (int i = 0; i < ready; ++i) {
      const uint64_t tag = events[static_cast<size_t>(i)].data.u64;
      if (tag == kWakeTag) {
        uint64_t drained = 0;
        (void)!read(wake_.get(), &drained, sizeof(drained));
      } else if ((tag & 1) != 0) {
        End(tag >> 1, "its process ended");
      } else if (HasHungUp(tag >> 1, events[static_cast<size_t>(i)].events)) {
        End(tag >> 1, "it hung up");
      }
    }
    AdoptIncoming();
    const TimePoint now = Clock::System().Now();
    if (now >= next_tick) {
      next_tick = now + std::chrono::milliseconds(kTickMs);
      Tick();
    }
    if (now < next_touches) continue;
    uint64_t most = 0;
    for (NamespaceStore* store : stores_) {
      const uint64_t touches = store->objects().TakeTouches(kTouchesTaken, kTouchesSampled);
      if (TakeSamples(&store->objects()) || touches > 0) busy_until = now + kStayBusy;
      most = std::max(most, touches);
    }
    next_touches = now + std::chrono::milliseconds(touch_tick.After(most));
    for (const auto& [id, session] : sessions_) {
      if (!session->has_unsent()) continue;
      busy_until = now + kStayBusy;
      session->SendUnsent();
    }
  }
}

void ShmService::AdoptIncoming() {
  std::vector<Incoming> taken;
  {
    auto waiting = incoming_.Lock();
    taken.swap(*waiting);
  }
  for (Incoming& one : taken) Welcome(std::move(one));
}

Status ShmService::CheckPeer(const fabric::PeerCredentials& peer) const {
  if (sessions_.size() >= options_.sessions_max) {
    return Error(StatusCode::kResourceExhausted, "{} sessions are open: see shm.sessions_max",
                 sessions_.size());
  }
  if (options_.uids.empty() || std::ranges::count(options_.uids, peer.uid) > 0) return OkStatus();
  return Error(StatusCode::kPermissionDenied, "user {} may not attach: see shm.uids", peer.uid);
}

// Read each time: sessions are few, and a new token counts at once.
Status ShmService::CheckToken(std::string_view name_space, std::string_view token) const {
  if (options_.token_file.empty()) return OkStatus();
  const auto tokens = AccessTokens::Read(options_.token_file);
  if (tokens.ok()) return tokens->Check(name_space, token);
  EMS_LOG(kError, "mp_server", "nobody can attach: {}", Message(tokens.status()));
  return Error(StatusCode::kPermissionDenied, "the server cannot read its shm.token_file");
}

Status ShmService::Begin(const Incoming& arrived, int socket, ShmSession* session) {
  EMS_ASSIGN_OR_RETURN(const fabric::PeerCredentials peer, fabric::CredentialsOf(socket));
  EMS_RETURN_IF_ERROR(CheckPeer(peer));
  EMS_RETURN_IF_ERROR(CheckToken(options_.store->NameOf(arrived.ns), arrived.token));
  EMS_ASSIGN_OR_RETURN(auto store, options_.store->Share(arrived.ns));
  return session->Begin(std::move(store), peer.pid);
}

void ShmService::Welcome(Incoming arrived) {
  const int socket = arrived.socket.get();
  auto session = std::make_unique<ShmSession>(next_id_++, std::move(arrived.socket), &poll_,
                                              &memories_, &metrics_);
  if (const Status begun = Begin(arrived, socket, session.get()); !begun.ok()) {
    metrics_.refused.Add();
    session->Refuse(begun);
    return;
  }
  metrics_.attached.Add();
  metrics_.sessions.Add(1);
  const uint64_t id = session->id();
  EMS_CHECK(sessions_.emplace(id, std::move(session)).second, "session {} exists", id);
  ListStores();
  if (options_.on_session) options_.on_session();
}

bool ShmService::HasHungUp(uint64_t id, uint32_t events) {
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) return true;
  const auto found = sessions_.find(id);
  return found != sessions_.end() && !found->second->OnReadable();
}

void ShmService::End(uint64_t id, std::string_view why) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  EMS_LOG(kDebug, "mp_server", "session {} ended: {}", id, why);
  std::unique_ptr<ShmSession> session = std::move(found->second);
  sessions_.erase(found);
  ListStores();
  session.reset();  // after nobody asks its namespace any more, which may go with it
  CountKept(Clock::System().Now());
  metrics_.sessions.Add(-1);
}

void ShmService::ListStores() {
  stores_.clear();
  for (const auto& [id, session] : sessions_) {
    if (std::ranges::count(stores_, &session->store()) == 0) stores_.push_back(&session->store());
  }
}

void ShmService::Tick() {
  const TimePoint now = Clock::System().Now();
  std::vector<ShmSession*> revoked;
  std::map<NamespaceStore*, std::map<uint64_t, uint64_t>> held_in;  // one look at its hazards each
  for (const auto& [id, session] : sessions_) {
    session->CallBack(now);
    session->CountReads();
    if (!session->MayPinTooMuch()) continue;
    const auto [held, is_new] = held_in.try_emplace(&session->store());
    if (is_new) held->second = session->store().sharing().HeldBytes();
    if (session->PinsTooMuch(held->second)) revoked.push_back(session.get());
  }
  CountKept(now);
  for (ShmSession* session : revoked) session->Revoke();
  const std::chrono::duration<double> took = Clock::System().Now() - now;
  metrics_.round_seconds.Set(took.count());
}

// What clients keep mapped, though it is gone for a while: stopped ones, above all. The pool may
// not grow by it.
void ShmService::CountKept(TimePoint now) {
  std::map<uint32_t, uint64_t> kept;  // once each, however many clients keep it
  for (const auto& [id, session] : sessions_) session->AddKept(now, options_.drop_patience, &kept);
  uint64_t bytes = 0;
  for (const auto& [id, size] : kept) bytes += size;
  options_.pool->SetKeptByClients(bytes);
}

Result<std::unique_ptr<ShmService>> ShmService::Start(const Options& options,
                                                      const ShmMetrics& metrics) {
  EMS_CHECK(options.store != nullptr && options.pool != nullptr);
  if (!options.token_file.empty())
    EMS_RETURN_IF_ERROR(AccessTokens::Read(options.token_file).status());
  EMS_RETURN_IF_ERROR(fabric::ShmSegment::CheckSealing(options.writers));
  std::unique_ptr<ShmService> service(new ShmService(options, metrics));
  EMS_RETURN_IF_ERROR(service->Open());
  return service;
}

void ShmService::Adopt(Fd socket, NamespaceRef ns, std::string token) {
  {
    auto waiting = incoming_.Lock();
    if (waiting->size() >= options_.sessions_max) return;  // hung up: the client tries again
    waiting->push_back({std::move(socket), ns, std::move(token)});
  }
  Wake();
}

Result<fabric::StagedBytes> ShmService::Staged(const wire::StagedValue& value) {
  return memories_.Find(value);
}

}  // namespace ems::server
