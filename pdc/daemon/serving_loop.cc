#include "pdc/daemon/serving_loop.h"

#include <fmt/format.h>

#include <ctime>
#include <utility>
#include <vector>

#include "common/host_port.h"
#include "common/logging.h"
#include "common/machine_check.h"
#include "common/metrics.h"
#include "common/thread_pool.h"
#include "fabric/http/http_endpoint.h"
#include "pdc/api/api_server.h"
#include "pdc/daemon/loop_machine.h"
#include "pdc/daemon/loop_metrics.h"
#include "pdc/daemon/loop_model.h"
#include "pdc/decode/decode_worker.h"
#include "pdc/kv/pool_store.h"
#include "pdc/prefill/local_prefill_peer.h"
#include "pdc/router/request_router.h"
#include "pdc/rpc/decode_service.h"
#include "pdc/rpc/port_host.h"
#include "pdc/rpc/prefill_service.h"
#include "pdc/rpc/remote_decode_peer.h"
#include "pdc/rpc/remote_prefill_peer.h"
#include "proto/config.pb.h"

namespace ems::pdc {
namespace {

using std::chrono::milliseconds;

constexpr size_t kLinksMax = 64;
// That answers which were ended for want of patience take to reach their clients, at most.
constexpr Duration kLastWords = std::chrono::seconds(1);

KvOptions KvOf(const config::PdcConfig& config) {
  return {.storage = config.kv().dtype() == "f32" ? KvStorage::kF32 : KvStorage::kBf16,
          .block_tokens = config.kv().block_tokens()};
}

Verify VerifyOf(const std::string& word) {
  if (word == "always") return Verify::kAlways;
  return word == "never" ? Verify::kNever : Verify::kDefault;
}

bool HasPart(const config::PdcConfig& config, std::string_view part) {
  return config.role() == "all" || config.role() == part;
}

uint32_t PrefillsOf(const config::PdcConfig& config) {
  return HasPart(config, "prefill") ? config.prefill().workers() : 0;
}

uint32_t DecodesOf(const config::PdcConfig& config) {
  return HasPart(config, "decode") ? config.decode().workers() : 0;
}

}  // namespace

Status CheckLoopConfig(const config::PdcConfig& config) {
  const std::string& role = config.role();
  const auto needs = [&](std::string_view key) {
    return Error(StatusCode::kInvalidArgument, "role {} needs {}", role, key);
  };
  if (HasPart(config, "router") && config.http_listen().empty()) return needs("http_listen");
  if (role == "router" && SplitAddresses(config.decode_peers()).empty())
    return needs("decode_peers");
  if (role == "decode" && SplitAddresses(config.prefill_peers()).empty())
    return needs("prefill_peers");
  if (role == "prefill" && config.unix_path().empty()) return needs("unix_path");
  if ((role == "prefill" && config.prefill().workers() != 1) ||
      (role == "decode" && config.decode().workers() != 1)) {
    return Error(StatusCode::kInvalidArgument,
                 "role {} is one worker: start one process for each, and leave {}.workers at 1",
                 role, role);
  }
  return CheckLoopModel(config);
}

std::vector<Status> CheckLoopMachine(const config::PdcConfig& config) {
  const uint64_t workers = PrefillsOf(config) + DecodesOf(config);
  return Problems({CheckMemoryBytes(fmt::format("kv.bytes * {} workers", workers),
                                    config.kv().bytes() * workers)});
}

struct ServingLoop::Impl {
  explicit Impl(const config::PdcConfig& wanted) : config(wanted), metrics(&registry) {}

  bool Has(std::string_view part) const { return HasPart(config, part); }
  std::string Name() const { return config.name().empty() ? config.role() : config.name(); }
  PrefixCacheOptions CacheOptions() const;
  PrefillPortOptions PortOptions(const fabric::EmulatedPath* path) const;
  InstanceInfo Instance() const;
  uint32_t ContextTokens() const;

  Status Build();
  Status BuildPool();
  Status BuildPrefills();
  Status BuildDecodes();
  Status BuildDecode(uint32_t i);
  Status BuildRouter();
  Status BuildEndpoint();
  void ShowMetrics();
  Status Ready();

  // In the order of building; they go in reverse.
  const config::PdcConfig config;
  MetricsRegistry registry;
  LoopMetrics metrics;
  std::shared_ptr<const Model> model;
  std::unique_ptr<PoolStore> pool;
  std::unique_ptr<LoopMachine> machine;
  std::vector<std::unique_ptr<PrefillWorker>> prefills;
  std::unique_ptr<PortHost> port_host;
  std::unique_ptr<InstanceService> prefill_service;
  std::vector<std::unique_ptr<LocalPrefillPeer>> local_prefills;  // decode by decode
  std::vector<std::unique_ptr<RemotePrefillPeer>> remote_prefills;
  std::vector<std::shared_ptr<DecodeWorker>> decodes;
  std::unique_ptr<InstanceService> decode_service;
  std::vector<std::shared_ptr<RemoteDecodePeer>> remote_decodes;
  std::unique_ptr<RequestRouter> router;
  std::unique_ptr<api::ApiServer> api;
  std::unique_ptr<fabric::HttpEndpoint> endpoint;  // without an API
  std::string address;
};

PrefixCacheOptions ServingLoop::Impl::CacheOptions() const {
  // One of its words, as the configuration was checked.
  return {.timeout = milliseconds(config.pool().timeout_ms()),
          .policy = context::ParseSavePolicy(config.decode().save())
                        .value_or(context::SavePolicy::kFinalResponse)};
}

PrefillPortOptions ServingLoop::Impl::PortOptions(const fabric::EmulatedPath* path) const {
  return {.stall_limit = milliseconds(config.prefill().handover_stall_ms()), .path = path};
}

InstanceInfo ServingLoop::Impl::Instance() const {
  const KvOptions kv = KvOf(config);
  return {.name = Name(),
          .model = ServedModelName(config),
          .fingerprint = model->Fingerprint(kv.storage),
          .block_tokens = kv.block_tokens,
          .storage = kv.storage,
          .vocab = model->config().vocab,
          .positions_max = model->config().positions_max,
          .context_tokens = ContextTokens(),
          .ring_socket_path = config.unix_path()};
}

// What prompt and answer together may be: positions of the model, and a worker's KV.
uint32_t ServingLoop::Impl::ContextTokens() const {
  const uint64_t blocks = config.kv().bytes() / KvArena::BlockBytes(model->config(), KvOf(config));
  return static_cast<uint32_t>(
      std::min<uint64_t>(model->config().positions_max, blocks * config.kv().block_tokens()));
}

Status ServingLoop::Impl::Build() {
  EMS_RETURN_IF_ERROR(CheckLoopConfig(config));
  EMS_ASSIGN_OR_RETURN(model, LoadLoopModel(config));
  if (ContextTokens() == 0)
    return Error(StatusCode::kInvalidArgument, "kv.bytes is {}: a block takes {}",
                 config.kv().bytes(), KvArena::BlockBytes(model->config(), KvOf(config)));
  if (Has("prefill") || Has("decode")) {
    EMS_RETURN_IF_ERROR(BuildPool());
    EMS_ASSIGN_OR_RETURN(
        machine, LoopMachine::Create(config, PrefillsOf(config), DecodesOf(config), pool.get()));
  }
  if (Has("prefill")) EMS_RETURN_IF_ERROR(BuildPrefills());
  if (Has("decode")) EMS_RETURN_IF_ERROR(BuildDecodes());
  if (Has("router")) return BuildRouter();
  return BuildEndpoint();
}

Status ServingLoop::Impl::BuildPool() {
  if (config.pool().controller().empty()) return OkStatus();
  PoolStoreOptions options;
  options.client.controller = config.pool().controller();
  options.client.name_space = config.pool().name_space();
  options.verify = VerifyOf(config.pool().verify());
  pool = std::make_unique<PoolStore>(std::move(options));
  return OkStatus();
}

Status ServingLoop::Impl::BuildPrefills() {
  const config::PdcPrefillConfig& wanted = config.prefill();
  const PrefillWorkerOptions options{.kv = KvOf(config),
                                     .engine = {.threads = wanted.threads()},
                                     .cache = CacheOptions(),
                                     .groups = wanted.groups(),
                                     .loaders = wanted.loaders(),
                                     .queue_max = wanted.queue_max(),
                                     .step_tokens_max = wanted.step_tokens_max()};
  for (uint32_t i = 0; i < wanted.workers(); ++i) {
    EMS_ASSIGN_OR_RETURN(
        auto worker, PrefillWorker::Create(model, machine->memory(i), machine->store(i), options));
    prefills.push_back(std::move(worker));
  }
  if (config.role() == "all") return OkStatus();
  port_host = std::make_unique<PortHost>(prefills[0].get(), PortOptions(machine->HandoffPath(0, 0)),
                                         kLinksMax);
  EMS_ASSIGN_OR_RETURN(
      prefill_service,
      ServePrefill({.listen = config.listen(), .instance = Instance()}, port_host.get()));
  address = prefill_service->address();
  return OkStatus();
}

Status ServingLoop::Impl::BuildDecodes() {
  for (uint32_t i = 0; i < config.decode().workers(); ++i) EMS_RETURN_IF_ERROR(BuildDecode(i));
  if (config.role() == "all") return OkStatus();
  EMS_ASSIGN_OR_RETURN(
      decode_service,
      ServeDecode({.listen = config.listen(), .instance = Instance()}, decodes[0].get()));
  address = decode_service->address();
  return OkStatus();
}

Status ServingLoop::Impl::BuildDecode(uint32_t i) {
  std::vector<PrefillPeer*> peers;
  for (uint32_t p = 0; p < prefills.size(); ++p) {
    EMS_ASSIGN_OR_RETURN(
        auto peer,
        LocalPrefillPeer::Create(fmt::format("prefill-{}", p), prefills[p].get(),
                                 {.port = PortOptions(machine->HandoffPath(p, i)),
                                  .stall_limit = milliseconds(config.prefill().stall_ms())}));
    peers.push_back(peer.get());
    local_prefills.push_back(std::move(peer));
  }
  if (config.role() == "decode") {
    for (const std::string& peer : SplitAddresses(config.prefill_peers())) {
      RemotePrefillPeerOptions options{.name = peer, .address = peer, .expected = Instance()};
      options.watch.stall_limit = milliseconds(config.prefill().stall_ms());
      remote_prefills.push_back(std::make_unique<RemotePrefillPeer>(std::move(options)));
      peers.push_back(remote_prefills.back().get());
    }
  }
  const auto die = static_cast<uint32_t>(prefills.size()) + i;
  const config::PdcDecodeConfig& wanted = config.decode();
  const bool several = config.role() == "all" && wanted.workers() > 1;
  EMS_ASSIGN_OR_RETURN(
      auto worker, DecodeWorker::Create(model, machine->memory(die), machine->store(die), peers,
                                        {.name = several ? fmt::format("decode-{}", i) : "decode",
                                         .kv = KvOf(config),
                                         .engine = {.threads = wanted.threads()},
                                         .cache = CacheOptions(),
                                         .batch_max = wanted.batch_max(),
                                         .queue_max = wanted.queue_max(),
                                         .peer_patience = milliseconds(config.patience_ms()),
                                         .stall_limit = milliseconds(wanted.stall_ms())}));
  decodes.push_back(std::move(worker));
  return OkStatus();
}

Status ServingLoop::Impl::BuildRouter() {
  std::vector<std::shared_ptr<DecodePeer>> peers(decodes.begin(), decodes.end());
  if (config.role() == "router") {
    for (const std::string& peer : SplitAddresses(config.decode_peers())) {
      RemoteDecodePeerOptions options{.name = peer, .address = peer, .expected = Instance()};
      options.watch.stall_limit = milliseconds(config.decode().stall_ms());
      remote_decodes.push_back(std::make_shared<RemoteDecodePeer>(std::move(options)));
      peers.push_back(remote_decodes.back());
    }
  }
  const api::ModelInfo info{.name = ServedModelName(config),
                            .context_tokens_max = ContextTokens(),
                            .vocabulary = model->config().vocab,
                            .created_s = std::time(nullptr)};
  EMS_ASSIGN_OR_RETURN(
      router, RequestRouter::Create({.batch_max = config.decode().queue_max(),
                                     .kv_block_tokens = config.kv().block_tokens(),
                                     .failover_patience = milliseconds(config.patience_ms())},
                                    info, std::move(peers), &registry));
  const config::PdcApiConfig& wanted = config.api();
  EMS_ASSIGN_OR_RETURN(
      api, api::ApiServer::Start({.listen = config.http_listen(),
                                  .connections_max = wanted.connections_max(),
                                  .requests_max = wanted.requests_max(),
                                  .prompt_tokens_max = wanted.prompt_tokens_max(),
                                  .completion_tokens_max = wanted.completion_tokens_max(),
                                  .request_timeout = milliseconds(wanted.request_timeout_ms()),
                                  .before_metrics = [this] { ShowMetrics(); }},
                                 router.get(), &registry));
  return OkStatus();
}

Status ServingLoop::Impl::BuildEndpoint() {
  if (config.http_listen().empty()) return OkStatus();
  EMS_ASSIGN_OR_RETURN(endpoint, fabric::HttpEndpoint::Start(
                                     config.http_listen(), &registry, [] { return OkStatus(); },
                                     [this] { return Ready(); }, [this] { ShowMetrics(); }));
  return OkStatus();
}

void ServingLoop::Impl::ShowMetrics() {
  const std::string prefix = config.role() == "all" ? "" : Name();
  for (size_t i = 0; i < prefills.size(); ++i) {
    metrics.ShowPrefill(prefix.empty() ? fmt::format("prefill-{}", i) : prefix,
                        prefills[i]->stats(), prefills[i]->cache_stats());
  }
  for (size_t i = 0; i < decodes.size(); ++i) {
    metrics.ShowDecode(prefix.empty() ? fmt::format("decode-{}", i) : prefix, decodes[i]->stats(),
                       decodes[i]->cache_stats());
  }
  for (size_t i = 0; i < local_prefills.size(); ++i) {
    metrics.ShowLink(fmt::format("{}:decode-{}", local_prefills[i]->name(), i / prefills.size()),
                     local_prefills[i]->stats());
  }
  if (port_host != nullptr) metrics.ShowLink("all", port_host->stats());
  for (const auto& peer : remote_prefills)
    metrics.ShowPeer(peer->name(), peer->health().status.ok());
  if (pool != nullptr) metrics.ShowPool(pool->status().ok(), pool->hangs(), pool->stats());
}

Status ServingLoop::Impl::Ready() {
  if (router != nullptr) return router->Ready();
  Status why;
  for (const auto& peer : remote_prefills) {
    why = peer->health().status;
    if (why.ok()) return why;
    why = Prefixed(why, peer->name());
  }
  return why;
}

Result<std::unique_ptr<ServingLoop>> ServingLoop::Start(const config::PdcConfig& config) {
  auto impl = std::make_unique<Impl>(config);
  EMS_RETURN_IF_ERROR(impl->Build());
  return std::unique_ptr<ServingLoop>(new ServingLoop(std::move(impl)));
}

ServingLoop::ServingLoop(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ServingLoop::~ServingLoop() = default;

void ServingLoop::Stop(Duration patience) {
  if (impl_->api == nullptr) return;
  // Clients that have waited for nothing hear so: the API alone would just hang up.
  StopFlag ended;
  Thread impatient("ems-stop", [this, &ended, patience] {
    if (!ended.WaitFor(patience)) impl_->router->Stop();
  });
  impl_->api->Stop(patience + kLastWords);
  ended.Set();
  impatient.Join();
}

Status ServingLoop::Ready() { return impl_->Ready(); }

const std::string& ServingLoop::http_address() const {
  static const std::string kNone;
  if (impl_->api != nullptr) return impl_->api->address();
  return impl_->endpoint == nullptr ? kNone : impl_->endpoint->address();
}

const std::string& ServingLoop::address() const { return impl_->address; }

}  // namespace ems::pdc
