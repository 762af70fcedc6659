#include "mp_server/server.h"

#include <algorithm>
#include <atomic>
#include <bitset>
#include <condition_variable>
#include <nlohmann/json.hpp>

#include "common/fail_point.h"
#include "common/logging.h"
#include "common/random_id.h"
#include "common/thread_pool.h"
#include "fabric/http_endpoint.h"
#include "fabric/rpc_server.h"
#include "mp_controller/view/controller_client.h"
#include "mp_server/data_dir.h"
#include "mp_server/data_service.h"
#include "mp_server/evictor.h"
#include "mp_server/heartbeat.h"
#include "mp_server/kv_event_feed.h"
#include "mp_server/model_puller.h"
#include "mp_server/object_store.h"
#include "mp_server/ownership.h"
#include "mp_server/peer_quorum.h"
#include "mp_server/segment_pool.h"
#include "mp_server/server_metrics.h"
#include "mp_server/server_options.h"
#include "mp_server/shm_service.h"
#include "mp_server/tiered_store.h"
#include "mp_server/view_grant.h"
#include "proto/config.pb.h"

namespace ems::server {
namespace {

constexpr Duration kControlEvery = std::chrono::milliseconds(250);
constexpr Duration kQuorumPatience = std::chrono::milliseconds(200);
constexpr Duration kQuorumBefore =
    std::chrono::seconds(1);  // ask peers when the lease has less left
constexpr Duration kRefreshPatience = std::chrono::seconds(1);

Status ReplacedError() {
  return Error(StatusCode::kFailedPrecondition, "another server has this name");
}

nlohmann::json SsdJson(const ssd::TierStats& stats) {
  return {{"state", ssd::TierStateName(stats.state)},
          {"reason", stats.reason},
          {"io", stats.io_engine},
          {"capacity_bytes", stats.capacity_bytes},
          {"disk_bytes", stats.disk_bytes},
          {"region_bytes", stats.region_bytes},
          {"objects", stats.objects},
          {"value_bytes", stats.value_bytes},
          {"dirty_bytes", stats.writer.dirty_bytes},
          {"written_objects", stats.writer.written_objects},
          {"written_bytes", stats.writer.written_bytes},
          {"log_bytes", stats.writer.disk_bytes},
          {"shed_objects", stats.writer.shed_objects},
          {"failed_objects", stats.writer.failed_objects},
          {"reclaimed_objects", stats.writer.reclaimed_objects},
          {"moved_objects", stats.writer.moved_objects},
          {"reads", stats.reader.reads},
          {"reads_refused", stats.reader.refused},
          {"dropped_damaged", stats.dropped_damaged},
          {"scrub_passes", stats.scrubber.passes},
          {"scrubbed_objects", stats.scrubber.objects},
          {"scrubbed_bytes", stats.scrubber.bytes},
          {"recovered_objects", stats.recovered_objects},
          {"recovery_seconds", stats.recovery_seconds}};
}

std::unique_ptr<ssd::SsdTier> OpenTier(const config::ServerConfig& config, uint64_t lineage,
                                       ssd::StoredObserver* observer) {
  if (config.ssd().capacity_bytes() == 0) return nullptr;
  ssd::TierOptions options = TierOptions(config);
  options.lineage = lineage;
  options.observer = observer;
  return ssd::SsdTier::Open(options);
}

}  // namespace

struct Server::Impl {
  explicit Impl(const config::ServerConfig& wanted, DataDir dir)
      : config(wanted),
        boot_id(RandomId()),
        data_dir(std::move(dir)),
        ownership(&Clock::System()),
        pool(PoolOptions(wanted.dram())),
        feed(KvEventFeed::Make(wanted.kv_events())),
        store({.pool = &pool,
               .high_watermark = wanted.dram().high_watermark(),
               .low_watermark = wanted.dram().low_watermark(),
               .another_tier = wanted.ssd().capacity_bytes() > 0,
               .events = feed == nullptr ? nullptr : feed->events(),
               .events_of = wanted.kv_events().name_space()}),
        tier(OpenTier(wanted, data_dir.lineage(), feed.get())),
        tiered(&store, tier.get()),
        metrics(&registry),
        service(&tiered, &ownership, &metrics, boot_id, wanted.network().value_bytes_max(),
                [this] { return StatsJson(); }),
        controller(wanted.controller(), "server " + wanted.name()) {}
  ~Impl();

  Status Start();
  Status SettleLineage();
  Status StartShm();
  Status StartHttp();
  void MakeHeartbeat();
  void ControlLoop();
  void InstallNews();
  // Once; from any thread.
  void ReportOlder(ViewVersion offered, ViewVersion installed);
  void SetNamespaces(const NamespaceTable& table, double new_share);
  void KeepBlocks(const std::bitset<kSlotCount>& slots);
  void ForgetObjects(const std::bitset<kSlotCount>& slots);
  void AskPeers();
  NodeUsage Usage() const;
  std::string StatsJson();
  Status Ready() const;
  void Poke();

  const config::ServerConfig config;
  const uint64_t boot_id;
  DataDir data_dir;  // touched by ems-ctl only, once that runs
  Ownership ownership;
  SegmentPool pool;
  std::unique_ptr<KvEventFeed> feed;  // null: nothing is published; before the stores that push
  mutable ObjectStore store;
  std::unique_ptr<ssd::SsdTier> tier;  // null: DRAM alone
  TieredStore tiered;
  MetricsRegistry registry;
  ServerMetrics metrics;
  DataService service;
  std::unique_ptr<Evictor> evictor;
  std::unique_ptr<ShmService> shm;  // null: clients on this host go over sockets
  std::unique_ptr<fabric::RpcServer> rpc;
  std::unique_ptr<ModelPuller> models;
  std::atomic<ModelPuller*> keeper{nullptr};  // the same; release by Start, acquire by ems-ctl
  std::unique_ptr<fabric::HttpEndpoint> http;
  std::string http_address;
  ViewCache views;
  std::unique_ptr<Heartbeat> heartbeat;
  std::atomic<bool> stopping{false};
  std::atomic<bool> replaced{false};  // another process has taken this server's name
  std::atomic<uint64_t> behind{0};    // a view the controller has and we do not
  std::atomic<bool> expelled{false};  // the controller has given our slots to others
  Guarded<bool> poked{std::in_place, false};
  std::condition_variable wakeup;
  // ems-ctl's own.
  ssd::SlotGrant granted;  // by the installed view
  uint64_t namespaces_version = 0;
  double share = -1;
  PeerQuorum quorum;
  bool on_quorum = false;
  std::atomic<bool> older_reported{false};
  Thread control;
  ControllerClient controller;  // last: its watch thread pokes
};

Server::Impl::~Impl() {
  stopping.store(true, std::memory_order_release);
  heartbeat.reset();
  Poke();
  control.Join();
  models.reset();
  http.reset();
  rpc.reset();
  if (feed != nullptr) feed->Stop();  // it lists what the stores have
  shm.reset();   // after those who bring it sessions, before what the sessions hold
  tier.reset();  // after those who wait for it, before what it reads from and into
}

Status Server::Impl::Start() {
  EMS_RETURN_IF_ERROR(SettleLineage());
  evictor = std::make_unique<Evictor>(&store);
  if (feed != nullptr) EMS_RETURN_IF_ERROR(feed->Start(&store, tier.get(), metrics.kv_events()));
  EMS_RETURN_IF_ERROR(StartShm());
  const uint64_t regions = tier != nullptr ? tier->stats().regions_max : 0;
  EMS_ASSIGN_OR_RETURN(
      rpc, fabric::RpcServer::Start(RpcOptions(config, regions), &service, metrics.rpc()));
  if (!config.http_listen().empty()) EMS_RETURN_IF_ERROR(StartHttp());
  MakeHeartbeat();
  heartbeat->Start();
  control = Thread("ems-ctl", [this] { ControlLoop(); });
  controller.StartWatch(&views, [this] { Poke(); });
  models = std::make_unique<ModelPuller>(
      ModelPuller::Options{.controller = config.controller(),
                           .boot_id = boot_id,
                           .store = &tiered,
                           .ownership = &ownership,
                           .views = &views,
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
  auto healthy = [this] {
    return replaced.load(std::memory_order_acquire) ? ReplacedError() : OkStatus();
  };
  std::vector<fabric::HttpEndpoint::PostPage> posts;
  if (config.fail_points_admin() == "http") {
    EMS_LOG(kWarn, "mp_server", "whoever reaches http_listen may arm fail points: for tests only");
    posts.push_back({"/fail_points", [](const std::string& text) { return ArmFailPoints(text); }});
  }
  EMS_ASSIGN_OR_RETURN(http,
                       fabric::HttpEndpoint::Start(
                           config.http_listen(), &registry, healthy, [this] { return Ready(); },
                           [this] {
                             metrics.Refresh(&store, &pool, ownership);
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
  self.http_address = http_address;
  self.capacity_bytes = config.dram().bytes();
  self.lineage = data_dir.lineage();
  heartbeat = std::make_unique<Heartbeat>(Heartbeat::Options{
      .self = self,
      .controller = &controller,
      .ownership = &ownership,
      .usage = [this] { return Usage(); },
      .on_beat = [this](bool ok) { metrics.OnHeartbeat(ok); },
      .on_registered = [this] { Poke(); },
      .on_behind =
          [this](ViewVersion newest) {
            behind.store(newest.packed(), std::memory_order_release);
            Poke();
          },
      .on_older = [this](ViewVersion offered) { ReportOlder(offered, ownership.version()); },
      .on_expelled =
          [this] {
            expelled.store(true, std::memory_order_release);
            Poke();
          },
      .on_replaced = [this] { replaced.store(true, std::memory_order_release); }});
}

void Server::Impl::Poke() {
  {
    auto flag = poked.Lock();
    *flag = true;
  }
  wakeup.notify_one();
}

void Server::Impl::ControlLoop() {
  while (!stopping.load(std::memory_order_acquire)) {
    {
      auto flag = poked.Lock();
      flag.WaitFor(wakeup, kControlEvery, [](bool set) { return set; });
      *flag = false;
    }
    if (behind.exchange(0, std::memory_order_acq_rel) > ownership.version().packed()) {
      (void)controller.Refresh(&views,
                               Deadline::After(kRefreshPatience));  // the next heartbeat asks again
    }
    InstallNews();
    AskPeers();
    // After InstallNews: the objects of lost slots are gone. Readers without the server's help stop
    // where the controller may have given its slots away.
    store.SetCurrent(ownership.version(),
                     ownership.LeaseValid() ? ownership.lease_until() : TimePoint{});
  }
}

void Server::Impl::InstallNews() {
  const ViewCache::View view = views.view();
  const ViewCache::Namespaces namespaces = views.namespaces();
  if (view != nullptr && view->version() < data_dir.highest_view()) {
    ReportOlder(view->version(), data_dir.highest_view());
    return;
  }
  // Of a term that others began: nothing is kept under it (slot_grant.h), but the operator hears.
  if (view != nullptr && view->version().epoch() < data_dir.highest_view().epoch())
    ReportOlder(view->version(), data_dir.highest_view());
  // Where the view will not say what others did meanwhile.
  if (expelled.exchange(false, std::memory_order_acq_rel) && granted.history == 0) {
    KeepBlocks(granted.owned);
    ForgetObjects(granted.owned);
  }
  double new_share = share;
  if (view != nullptr && ownership.self() != kNoNode && view->version() > ownership.version() &&
      !ShowsAnother(*view, ownership.self(), boot_id, data_dir.lineage())) {
    if (const Status kept = data_dir.SetHighestView(view->version()); !kept.ok()) {
      EMS_LOG(kError, "mp_server", "cannot keep the view number: {}", ToString(kept));
    }
    // The check first, the store second: a Put that passed the old check is caught when it
    // publishes.
    const double coming = static_cast<double>(view->slots().CountOf(ownership.self())) / kSlotCount;
    if (coming > share) SetNamespaces(*namespaces, coming);  // room before the first Put
    ssd::SlotGrant next = GrantOf(*view, ownership.self(), data_dir.lineage());
    const std::bitset<kSlotCount> kept = next.Kept(granted.Record(0));
    // Slots that move to others while this server stays in the view do not come back in a moment.
    KeepBlocks(next.owned.none() ? granted.owned : granted.owned & next.owned & ~kept);
    // What others may have changed in views that were not seen here goes before the new view says
    // that it is this server's.
    ForgetObjects(granted.owned & next.owned & ~kept);
    granted = std::move(next);
    (void)ownership.Install(*view);
    tiered.SetOwnedSlots(granted);
    if (feed != nullptr) feed->OnSsdTrusted();
    new_share = static_cast<double>(granted.owned.count()) / kSlotCount;
    EMS_LOG(kInfo, "mp_server", "view installed term={} epoch={} nodes={} owned_slots={}{}",
            view->version().term(), view->version().epoch(), view->nodes().size(),
            granted.owned.count(), view->frozen() ? " frozen" : "");
  }
  if (namespaces->version != namespaces_version || new_share != share) {
    namespaces_version = namespaces->version;
    share = new_share;
    SetNamespaces(*namespaces, std::max(share, 0.0));
  }
}

void Server::Impl::ReportOlder(ViewVersion offered, ViewVersion installed) {
  if (older_reported.exchange(true, std::memory_order_relaxed)) return;
  EMS_LOG(kError, "mp_server",
          "the controller offers view {}.{} but {}.{} was installed here before: has it lost its "
          "store? Restore it, or start all servers with an empty data_dir",
          offered.term(), offered.epoch(), installed.term(), installed.epoch());
}

void Server::Impl::SetNamespaces(const NamespaceTable& table, double new_share) {
  const bool other = feed != nullptr && feed->SetNamespaces(table);
  tiered.SetNamespaces(table, new_share);
  if (other) feed->Restate();
}

// Blocks of models are known by the digest of their bytes: whatever others did meanwhile, they are
// what they were.
void Server::Impl::KeepBlocks(const std::bitset<kSlotCount>& slots) {
  ModelPuller* const puller = keeper.load(std::memory_order_acquire);
  if (puller != nullptr && slots.any()) puller->KeepBlocks(slots);
}

// These may have been others' in a view that was not seen here: what they took or removed meanwhile
// is not known, so nothing from before may be served.
void Server::Impl::ForgetObjects(const std::bitset<kSlotCount>& slots) {
  if (slots.none()) return;
  EMS_LOG(kWarn, "mp_server", "out of the view for a while: {} of {} slots start empty",
          slots.count(), granted.owned.count());
  ssd::SlotGrant closed = granted;
  closed.owned &= ~slots;
  tiered.SetOwnedSlots(closed);
  tiered.SetOwnedSlots(granted);  // empty, but open for what the installed view gives us
}

void Server::Impl::AskPeers() {
  const ViewCache::View view = views.view();
  if (view == nullptr || ownership.lease_until() == TimePoint{} ||
      replaced.load(std::memory_order_acquire))
    return;
  if (ownership.lease_until() - Clock::System().Now() > kQuorumBefore) {
    if (std::exchange(on_quorum, false)) EMS_LOG(kInfo, "mp_server", "the controller is back");
    return;
  }
  const TimePoint asked = Clock::System().Now();
  const bool agreed = view->version() == ownership.version() &&
                      quorum.Ask(*view, ownership.self(), kQuorumPatience);
  if (agreed) ownership.RenewLease(asked + kQuorumValid);
  if (agreed != on_quorum) {
    on_quorum = agreed;
    EMS_LOG(kWarn, "mp_server", "{}",
            agreed ? "no controller: going on with a majority of the servers"
                   : "no controller and no majority: no Put or Remove until one is back");
  }
}

NodeUsage Server::Impl::Usage() const {
  NodeUsage usage;
  usage.dram_total_bytes = config.dram().bytes();
  for (const NamespaceUsage& one : store.Usage()) {
    usage.dram_used_bytes += one.value_bytes;
    usage.objects += one.objects;
  }
  if (tier == nullptr) return usage;
  const ssd::TierStats ssd = tier->stats();
  usage.ssd_used_bytes = ssd.value_bytes;
  usage.ssd_total_bytes = ssd.capacity_bytes;
  usage.ssd_state = ssd.state == ssd::TierState::kOk         ? SsdState::kOk
                    : ssd.state == ssd::TierState::kDegraded ? SsdState::kDegraded
                                                             : SsdState::kOffline;
  return usage;
}

std::string Server::Impl::StatsJson() {
  const SegmentPool::Stats memory = pool.stats();
  nlohmann::json json;
  json["name"] = config.name();
  json["boot_id"] = fmt::format("{:016x}", boot_id);
  json["view"] = {{"term", ownership.version().term()}, {"epoch", ownership.version().epoch()}};
  json["owned_slots"] = ownership.owned_slots();
  json["lease_valid"] = ownership.LeaseValid();
  const ServerMetrics::HitCounts counts = metrics.hit_counts();
  json["gets"] = counts.gets;
  json["hits"] = counts.hits;
  json["shm_sessions"] = static_cast<uint64_t>(metrics.shm().sessions.value());
  json["shm_registered_bytes"] = static_cast<uint64_t>(metrics.shm().registered_bytes.value());
  json["pool"] = {
      {"bytes_max", memory.bytes_max},     {"bytes_created", memory.bytes_created},
      {"bytes_ready", memory.bytes_ready}, {"bytes_in_use", memory.bytes_in_use},
      {"bytes_kept", memory.bytes_kept},   {"page_kind", fabric::PageKindName(memory.page_kind)}};
  json["ssd_hits"] = counts.ssd_hits;
  if (tier != nullptr) json["ssd"] = SsdJson(tier->stats());
  json["namespaces"] = nlohmann::json::array();
  for (const NamespaceUsage& one : store.Usage()) {
    json["namespaces"].push_back({{"name", one.name},
                                  {"id", one.ref.id.value()},
                                  {"generation", one.ref.generation},
                                  {"objects", one.objects},
                                  {"value_bytes", one.value_bytes},
                                  {"quota_bytes", one.quota_bytes},
                                  {"reserved_bytes", one.reserved_bytes},
                                  {"segment_bytes", one.segment_bytes},
                                  {"chunk_bytes", one.chunk_bytes},
                                  {"evicted_objects", one.evicted_objects},
                                  {"evicted_bytes", one.evicted_bytes},
                                  {"damaged_objects", one.damaged_objects},
                                  {"pinned_objects", one.pinned_objects},
                                  {"parked_bytes", one.parked_bytes},
                                  {"linked_bytes", one.linked_bytes},
                                  {"shared_index_bytes", one.shared_index_bytes}});
  }
  return json.dump();
}

Status Server::Impl::Ready() const {
  if (replaced.load(std::memory_order_acquire)) return ReplacedError();
  if (ownership.self() == kNoNode) {
    return Error(StatusCode::kUnavailable, "not registered: no answer from the controller at {}",
                 config.controller());
  }
  if (ownership.version() == ViewVersion()) return Error(StatusCode::kUnavailable, "no view yet");
  if (!ownership.LeaseValid())
    return Error(StatusCode::kUnavailable, "no lease: the controller does not answer");
  if (ownership.owned_slots() == 0)
    return Error(StatusCode::kUnavailable, "not admitted to the view yet");
  return OkStatus();
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::Start(const config::ServerConfig& config) {
  EMS_RETURN_IF_ERROR(Prefixed(ArmFailPoints(config.fail_points()), "fail_points"));
  EMS_RETURN_IF_ERROR(CheckConfig(config));
  EMS_ASSIGN_OR_RETURN(DataDir dir, DataDir::Open(config.data_dir()));
  auto impl = std::make_unique<Impl>(config, std::move(dir));
  EMS_RETURN_IF_ERROR(impl->Start());
  // The first segment: without any memory there is nothing to serve.
  const uint64_t first = PoolOptions(config.dram()).segment_bytes;
  EMS_RETURN_IF_ERROR(
      Prefixed(impl->pool.WaitReady(first, Deadline::After(std::chrono::seconds(30))), "dram"));
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

void Server::Stop(Duration patience) {
  const Deadline deadline = Deadline::After(patience);
  // With an SSD tier the slots are kept until the lease ends: a restart finds them, and with them
  // what it has on its disk. Without one there is nothing to come back to.
  if (impl_->tier == nullptr)
    impl_->heartbeat->Leave(std::min<Duration>(patience / 4, std::chrono::seconds(1)));
  impl_->service.Drain();
  impl_->rpc->Stop(deadline.Remaining());
}

Status Server::Ready() const { return impl_->Ready(); }

Status Server::WaitReady(Deadline deadline) const {
  StopFlag never;
  Status ready = impl_->Ready();
  while (!ready.ok() && !deadline.Passed()) {
    never.WaitFor(std::chrono::milliseconds(5));
    ready = impl_->Ready();
  }
  return ready.ok() ? ready : Error(StatusCode::kDeadlineExceeded, Message(ready));
}

const std::string& Server::data_address() const { return impl_->rpc->address(); }
const std::string& Server::unix_path() const { return impl_->config.unix_path(); }
const std::string& Server::http_address() const { return impl_->http_address; }

}  // namespace ems::server
