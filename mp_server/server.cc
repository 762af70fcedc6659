#include "mp_server/server.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>

#include "cluster/controller_client.h"
#include "common/fail_point.h"
#include "common/logging.h"
#include "common/random_id.h"
#include "common/thread_pool.h"
#include "fabric/http/http_endpoint.h"
#include "fabric/rpc/rpc_server.h"
#include "mp_server/data_service.h"
#include "mp_server/forward/exchange.h"
#include "mp_server/hot/hot_copies.h"
#include "mp_server/kv_event_feed.h"
#include "mp_server/lease/data_dir.h"
#include "mp_server/lease/heartbeat.h"
#include "mp_server/lease/ownership.h"
#include "mp_server/lease/peer_rounds.h"
#include "mp_server/lease/planned_stop.h"
#include "mp_server/lease/server_control.h"
#include "mp_server/lease/view_grant.h"
#include "mp_server/memory/pool_size.h"
#include "mp_server/memory/segment_pool.h"
#include "mp_server/models/model_puller.h"
#include "mp_server/restart/in_place.h"
#include "mp_server/server_metrics.h"
#include "mp_server/server_options.h"
#include "mp_server/shm/shm_service.h"
#include "mp_server/stats_page.h"
#include "mp_server/store/evictor.h"
#include "mp_server/store/moved_slots.h"
#include "mp_server/store/object_store.h"
#include "mp_server/store/tiered_store.h"
#include "proto/config.pb.h"

namespace ems::server {
namespace {

constexpr Duration kRefreshPatience = std::chrono::seconds(1);

}  // namespace

struct Server::Impl final : Holdings {
  Impl(const config::ServerConfig& wanted, DataDir dir, std::unique_ptr<FdStore> fds)
      : config(wanted),
        boot_id(RandomId()),
        data_dir(std::move(dir)),
        in_place(InPlaceOptions(wanted, std::move(fds)), &data_dir),
        ownership(&Clock::System()),
        pool(FirstPool(wanted.dram(), in_place)),
        feed(KvEventFeed::Make(wanted.kv_events())),
        moved(wanted.forward().keep_s() == 0
                  ? nullptr
                  : std::make_unique<MovedSlots>(std::chrono::seconds(wanted.forward().keep_s()),
                                                 &Clock::System())),
        store({.pool = &pool,
               .high_watermark = wanted.dram().high_watermark(),
               .low_watermark = wanted.dram().low_watermark(),
               .another_tier = wanted.ssd().capacity_bytes() > 0,
               .events = feed == nullptr ? nullptr : feed->events(),
               .events_of = wanted.kv_events().name_space(),
               .moved = moved.get()}),
        tier(OpenTier(wanted, data_dir.lineage(), feed.get())),
        tiered(&store, tier.get()),
        metrics(&registry),
        stats(wanted.name(), boot_id, &pool, &store, tier.get(), &ownership, &metrics),
        exchange(config, &tiered, &ownership, moved.get(),
                 {metrics.forward(), metrics.migrate(), metrics.copies()}),
        service(
            &tiered, &ownership, &metrics, boot_id, wanted.network().value_bytes_max(),
            [this] { return stats.Json(); }, [this] { return lease.views().cluster(); },
            [this](ViewVersion view, std::vector<std::byte>* body) {
              wire::AppendTo(lease.Tell(view, Clock::System().Now()), body);
            }),
        lease({.boot_id = boot_id, .kept = &data_dir, .ownership = &ownership, .holdings = this},
              [this] { Poke(); }),
        highest_view(std::in_place, data_dir.highest_view()),
        peers(&lease, &ownership, boot_id, [this] { Poke(); }),
        controller(wanted.controller(), "server " + wanted.name()) {
    service.SetTellView([this](ViewVersion than, std::vector<std::byte>* body) {
      const ViewCache::View view = lease.NewerThan(than);
      if (view != nullptr) AppendTo(*view, body);
    });
    service.SetOnNewerView([this] { peers.OnNewerView(); });
    service.SetSlowRequest(std::chrono::milliseconds(wanted.slow_request_ms()));
  }
  ~Impl() override;

  Status Start();
  Status SettleLineage();
  Status SettleTier();
  void EndAll(bool hands_over);
  bool HandOver();
  Status StartShm();
  Status StartHttp();
  void MakeHeartbeat();
  void ControlLoop();
  void SetNamespaces(const NamespaceTable& table, double share) override;
  void SetOwnedSlots(const ssd::SlotGrant& grant) override;
  void Expect(const ssd::SlotGrant& next) override;
  void GainSlots(const DhtView& view, const ssd::SlotGrant& grant,
                 const std::bitset<kSlotCount>& fresh) override;
  void HoldCopies(const DhtView& view, bool widen) override {
    const CopySlots::Columns columns = CopiesOf(view, ownership.self());
    if (!widen) return store.SetCopySlots(columns);
    if (hot != nullptr) hot->guests()->Clear();
    store.copies().Widen(columns);
  }
  void KeepBlocks(const std::bitset<kSlotCount>& slots) override;
  void StopReaders() override { store.StopReaders(); }
  Status Keep(const ViewIdentity& view);
  Status Ready();
  bool KeepsSlots();
  void Poke();

  const config::ServerConfig config;
  const uint64_t boot_id;
  DataDir data_dir;  // touched by ems-ctl only, once that runs
  InPlace in_place;  // likewise
  Ownership ownership;
  SegmentPool pool;
  std::unique_ptr<KvEventFeed> feed;  // null: nothing is published; before the stores that push
  std::unique_ptr<MovedSlots> moved;  // null: what moves is lost; before the store
  ObjectStore store;
  std::unique_ptr<ssd::SsdTier> tier;  // null: DRAM alone
  TieredStore tiered;
  MetricsRegistry registry;
  ServerMetrics metrics;
  StatsPage stats;
  Exchange exchange;
  DataService service;
  std::unique_ptr<HotCopies> hot;  // null: hot objects have no copies
  std::unique_ptr<Evictor> evictor;
  std::unique_ptr<PoolSize> pool_size;
  std::unique_ptr<ShmService> shm;  // null: clients on this host go over sockets
  CopyCrew crew{"ems-copy", CopyCrew::UsualHelpers()};
  std::unique_ptr<fabric::RpcServer> rpc;
  std::unique_ptr<ModelPuller> models;
  std::atomic<ModelPuller*> keeper{nullptr};  // the same; release by Start, acquire by ems-ctl
  std::unique_ptr<fabric::HttpEndpoint> http;
  std::string http_address;
  ServerControl lease;
  std::unique_ptr<Heartbeat> heartbeat;
  std::atomic<bool> stopping{false};
  Guarded<ViewIdentity> highest_view;  // data_dir's, for ems-beat
  Guarded<bool> poked{std::in_place, false};
  std::condition_variable wakeup;
  PeerRounds peers;  // ems-ctl's own
  Thread control;
  ControllerClient controller;  // last: its watch thread pokes
};

Server::Impl::~Impl() {
  EndAll(false);
  heartbeat.reset();
  in_place.Drop(&pool);
}

// Idempotent. Afterwards no thread but the caller's uses the stores.
void Server::Impl::EndAll(bool hands_over) {
  stopping.store(true, std::memory_order_release);
  Poke();
  control.Join();  // it pokes the heartbeat
  if (heartbeat != nullptr) heartbeat->Halt();
  models.reset();
  http.reset();
  rpc.reset();
  hot.reset();                        // connections use it
  exchange.Stop();                    // it brings to the stores, and wakes connections
  if (feed != nullptr) feed->Stop();  // it lists what the stores have
  // Before sessions are forgotten: what their clients look at is found by their pages.
  if (hands_over) ShutSharing(store);
  shm.reset();        // after those who bring it sessions, before what the sessions hold
  pool_size.reset();  // it pokes the evictor
  evictor.reset();    // it hurries the tier
  tier.reset();       // after those who wait for it, before what it reads from and into
}

bool Server::Impl::HandOver() {
  if (!in_place.on() || lease.replaced()) return false;
  EndAll(true);
  return in_place.HandOver(store, tiered.granted(), ownership.self(), pool.boot_id());
}

Status Server::Impl::Start() {
  EMS_RETURN_IF_ERROR(SettleLineage());
  service.SetForwarder(exchange.forwarder());
  service.SetCopySink(exchange.copy_sink());
  exchange.Start();
  hot = HotCopies::Make(config.hot(), &tiered, &ownership, &lease.views(), metrics.hot());
  if (hot != nullptr) service.SetHot(hot->keys(), hot->guests());
  evictor = std::make_unique<Evictor>(&store);
  PoolSize::Options sizes = PoolSizeOptions(config.dram());
  sizes.pool = &pool;
  sizes.on_change = [this] { evictor->Poke(); };
  sizes.on_pressure = [this](uint64_t bytes) { metrics.OnGivenBack(bytes); };
  pool_size = std::make_unique<PoolSize>(std::move(sizes));
  if (feed != nullptr) EMS_RETURN_IF_ERROR(feed->Start(&store, tier.get(), metrics.kv_events()));
  EMS_RETURN_IF_ERROR(StartShm());
  const uint64_t regions = tier != nullptr ? tier->stats().regions_max : 0;
  fabric::RpcServerOptions options = RpcOptions(config, regions);
  options.crew = &crew;
  EMS_ASSIGN_OR_RETURN(rpc, fabric::RpcServer::Start(options, &service, metrics.rpc()));
  if (!config.http_listen().empty()) EMS_RETURN_IF_ERROR(StartHttp());
  MakeHeartbeat();
  heartbeat->Start();
  control = Thread("ems-ctl", [this] { ControlLoop(); });
  controller.StartWatch(&lease.views(), [this] { Poke(); });
  models = std::make_unique<ModelPuller>(
      ModelPuller::Options{.controller = config.controller(),
                           .boot_id = boot_id,
                           .store = &tiered,
                           .ownership = &ownership,
                           .views = &lease.views(),
                           .metrics = &registry,
                           .pulls_max = config.models().pulls_max(),
                           .sources = {.connections_max = config.models().pulls_max(),
                                       .credentials_file = config.models().credentials_file(),
                                       .file_root = config.models().file_root(),
                                       .ca_file = config.models().ca_file()}});
  keeper.store(models.get(), std::memory_order_release);
  return OkStatus();
}

// Nothing is served before it is durable that this life is one without the tier of the one before.
Status Server::Impl::SettleLineage() {
  EMS_RETURN_IF_ERROR(SettleTier());
  (void)in_place.Lineage(data_dir.lineage(), &pool);
  if (in_place.pending() != nullptr) tiered.Continue(in_place.pending()->granted());
  return OkStatus();
}

Status Server::Impl::SettleTier() {
  if (tier == nullptr || tier->state() == ssd::TierState::kOffline) return data_dir.EndLineage();
  if (tier->continues()) return OkStatus();
  EMS_RETURN_IF_ERROR(data_dir.BeginLineage());
  tier->BeginLineage(data_dir.lineage());
  return OkStatus();
}

// A machine on which memory cannot be shared safely serves over sockets and says why.
Status Server::Impl::StartShm() {
  const config::ShmConfig& wanted = config.shm();
  if (wanted.share() == "off" || config.unix_path().empty()) {
    service.SetShm(nullptr, wanted.share() == "off" ? "shm.share is off" : "unix_path is not set");
    return OkStatus();
  }
  ShmService::Options options;
  options.writers = in_place.writers();
  options.store = &store;
  options.pool = &pool;
  options.sessions_max = wanted.sessions_max();
  options.registered_bytes_max = wanted.registered_bytes_max();
  EMS_ASSIGN_OR_RETURN(options.uids, ParseUids(wanted.uids()));
  options.on_session = [this] { evictor->Poke(); };
  options.token_file = wanted.token_file();
  auto started = ShmService::Start(options, metrics.shm());
  const StatusCode code = started.status().code();
  if (code == StatusCode::kNotFound || code == StatusCode::kInvalidArgument)
    return Error(code, "shm.token_file: {}", Message(started.status()));
  if (!started.ok()) {
    EMS_LOG(kWarn, "mp_server", "{}; clients on this host go over sockets",
            Message(started.status()));
    service.SetShm(nullptr, std::string(Message(started.status())));
    return OkStatus();
  }
  shm = *std::move(started);
  service.SetShm(shm.get(), "");
  return OkStatus();
}

Status Server::Impl::StartHttp() {
  auto healthy = [this] { return lease.replaced() ? lease.Ready() : OkStatus(); };
  std::vector<fabric::HttpEndpoint::PostPage> posts;
  if (config.fail_points_admin() == "http") {
    EMS_LOG(kWarn, "mp_server", "any client of http_listen may arm fail points: for tests only");
    posts.push_back({"/fail_points", [](const std::string& text) { return ArmFailPoints(text); }});
  }
  EMS_ASSIGN_OR_RETURN(http,
                       fabric::HttpEndpoint::Start(
                           config.http_listen(), &registry, healthy, [this] { return Ready(); },
                           [this] {
                             metrics.Refresh(store, &pool, ownership);
                             if (moved != nullptr) metrics.ShowOpenSlots(moved->open_slots());
                             if (tier != nullptr) metrics.Refresh(tier->stats());
                           },
                           posts));
  http_address = http->address();
  return OkStatus();
}

void Server::Impl::MakeHeartbeat() {
  NodeInfo self;
  self.name = config.name();
  self.boot_id = boot_id;
  self.data_address = config.advertise().empty() ? rpc->address() : config.advertise();
  self.unix_path = config.unix_path();
  self.host_id = fabric::HostId();
  self.failure_domain = config.failure_domain();
  self.http_address = http_address;
  self.capacity_bytes = config.dram().bytes();
  self.lineage = data_dir.lineage();
  self.folder_id = data_dir.folder_id();
  self.listener_id = fabric::ListenerId(rpc->address());
  LeaseEvents events = lease.Events();
  events.on_dram = [this](uint64_t bytes) { pool_size->SetMost(bytes); };
  events.on_quota_parts = [this](const auto& parts) { store.SetQuotaParts(parts); };
  heartbeat = std::make_unique<Heartbeat>(Heartbeat::Options{
      .self = self,
      .controller = &controller,
      .ownership = &ownership,
      .views = &lease.views(),
      .usage = [this] { return stats.Usage(); },
      .highest_view =
          [this] {
            auto highest = highest_view.Lock();
            return *highest;
          },
      .pulling_from =
          [this] { return moved == nullptr ? std::vector<NodeId>() : moved->origins(); },
      .vouching_for =
          [this] { return moved == nullptr ? std::vector<NodeId>() : moved->vouched_for(); },
      .on_beat = [this](bool ok) { metrics.OnHeartbeat(ok); },
      .events = std::move(events)});
}

void Server::Impl::Poke() {
  {
    auto flag = poked.Lock();
    *flag = true;
  }
  wakeup.notify_one();
}

void Server::Impl::ControlLoop() {
  Duration pause = PeerRounds::kEvery;
  while (!stopping.load(std::memory_order_acquire)) {
    {
      auto flag = poked.Lock();
      flag.WaitFor(wakeup, pause, [](bool set) { return set; });
      *flag = false;
    }
    if (lease.IsBehind()) {
      (void)controller.Refresh(&lease.views(),
                               Deadline::After(kRefreshPatience));  // the next heartbeat asks again
    }
    if (peers.FindNewerView()) heartbeat->Poke();
    if (const auto view = lease.Begin()) {
      peers.OnInstalled();
      const Status kept = Keep(*view);
      lease.Finish(kept);
      {
        auto highest = highest_view.Lock();
        *highest = data_dir.highest_view();
      }
      // Where nothing was installed the next heartbeat, in its time, brings the next try.
      if (kept.ok()) heartbeat->Poke();
      exchange.OnInstalled(lease.views().view());
    }
    pause = peers.AskForWords();
    // After Install: the objects of lost slots are gone. Readers without the server's help stop
    // where the controller may have given its slots away.
    store.SetCurrent(ownership.version(),
                     ownership.LeaseValid() ? ownership.lease_until() : TimePoint{});
  }
}

// The folder belongs to a cluster from its first view on.
Status Server::Impl::Keep(const ViewIdentity& view) {
  const ClusterId cluster = lease.views().cluster();
  if (data_dir.cluster() != cluster && cluster != kNoCluster)
    EMS_RETURN_IF_ERROR(data_dir.SetCluster(cluster));
  return data_dir.SetHighestView(view);
}

void Server::Impl::Expect(const ssd::SlotGrant& next) {
  if (in_place.pending() != nullptr) in_place.pending()->Expect(next);
}

void Server::Impl::SetNamespaces(const NamespaceTable& table, double share) {
  // What was handed over comes in before anybody can open its namespace, and by a view.
  if (in_place.pending() != nullptr && !in_place.pending()->expects()) return;
  const bool other = feed != nullptr && feed->SetNamespaces(table);
  if (in_place.pending() != nullptr)
    metrics.OnTakenOver(in_place.Adopt(table, &store, &pool), in_place.seconds());
  tiered.SetNamespaces(table, share);
  exchange.SetNamespaces(table);
  if (other) feed->Restate();
}

void Server::Impl::SetOwnedSlots(const ssd::SlotGrant& grant) {
  if (in_place.pending() != nullptr) in_place.pending()->Keep(grant.owned);
  tiered.SetOwnedSlots(grant);
  if (ModelPuller* const puller = keeper.load(std::memory_order_acquire))
    puller->LoseSlots(grant.owned);
  if (feed != nullptr) feed->OnSsdTrusted();
}

void Server::Impl::GainSlots(const DhtView& view, const ssd::SlotGrant& grant,
                             const std::bitset<kSlotCount>& fresh) {
  exchange.SetView(view);
  if (moved != nullptr) tiered.GainSlots(grant, OriginsOf(view, grant, fresh));
}

void Server::Impl::KeepBlocks(const std::bitset<kSlotCount>& slots) {
  ModelPuller* const puller = keeper.load(std::memory_order_acquire);
  if (puller != nullptr && slots.any()) puller->KeepBlocks(slots);
}

Status Server::Impl::Ready() {
  EMS_RETURN_IF_ERROR(lease.Stranger());  // which names the controller already
  return Prefixed(lease.Ready(), fmt::format("controller {}", config.controller()));
}

// With an SSD tier, or a store for what is in DRAM, until the lease ends: a restart finds them, and
// with them what it has. Otherwise, or where others have all of them, there is nothing to keep.
bool Server::Impl::KeepsSlots() {
  const bool drained = ownership.owned_slots() == 0 && lease.IsShown();
  return !drained && (tier != nullptr || in_place.on());
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::Start(const config::ServerConfig& config) {
  return Start(config, nullptr);
}

Result<std::unique_ptr<Server>> Server::Start(const config::ServerConfig& config,
                                              std::unique_ptr<FdStore> fds) {
  EMS_RETURN_IF_ERROR(Prefixed(ArmFailPoints(config.fail_points()), "fail_points"));
  EMS_RETURN_IF_ERROR(CheckConfig(config));
  EMS_ASSIGN_OR_RETURN(DataDir dir, DataDir::Open(config.data_dir()));
  auto impl = std::make_unique<Impl>(config, std::move(dir), std::move(fds));
  EMS_RETURN_IF_ERROR(impl->Start());
  // The first segment: without any memory there is nothing to serve.
  const uint64_t first = PoolOptions(config.dram()).segment_bytes;
  EMS_RETURN_IF_ERROR(
      Prefixed(impl->pool.WaitReady(first, Deadline::After(std::chrono::seconds(30))), "dram"));
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

void Server::Drain(Duration most, const std::function<bool(Duration pause)>& hurried) {
  if (most == Duration::zero() || impl_->KeepsSlots() || !impl_->lease.Ready().ok()) return;
  impl_->heartbeat->AnnounceStop();
  PlannedStop stop(Clock::System().Now(), most);
  const auto is_over = [&] {
    return stop.IsOver(impl_->heartbeat->stop_answer(), impl_->ownership.owned_slots(),
                       Clock::System().Now());
  };
  while (!is_over() && !hurried(PlannedStop::kLookEvery)) {
  }
  EMS_LOG(kInfo, "mp_server", "drain ends owned_slots={}", impl_->ownership.owned_slots());
}

void Server::Stop(Duration patience) {
  const Deadline deadline = Deadline::After(patience);
  const Duration to_leave = std::min<Duration>(patience / 4, std::chrono::seconds(1));
  const bool keeps_slots = impl_->KeepsSlots(), has_tier = impl_->tier != nullptr;
  // First nothing is taken or read any more: the moment that the controller hears of it, or of the
  // next process on this folder, others take Puts.
  impl_->service.Drain();
  impl_->store.StopReaders();
  // What is in hand is finished where others do not wait for these slots.
  if (keeps_slots) impl_->rpc->Stop(std::max(deadline.Remaining() - to_leave, Duration::zero()));
  impl_->ownership.Revoke();
  const bool handed_over = keeps_slots && impl_->HandOver();
  impl_->heartbeat->Leave(keeps_slots && (has_tier || handed_over), to_leave);
  if (!keeps_slots) impl_->rpc->Stop(deadline.Remaining());
}

Status Server::Ready() const { return impl_->Ready(); }

const std::string& Server::data_address() const { return impl_->rpc->address(); }
const std::string& Server::unix_path() const { return impl_->config.unix_path(); }
const std::string& Server::http_address() const { return impl_->http_address; }

}  // namespace ems::server
