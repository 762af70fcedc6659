#include "mp_controller/controller.h"

#include <chrono>
#include <utility>

#include "common/bytes.h"
#include "common/host_port.h"
#include "common/metrics.h"
#include "mp_controller/controller_metrics.h"
#include "mp_controller/controller_store.h"
#include "mp_controller/etcd/candidate.h"
#include "mp_controller/etcd/store_memory.h"
#include "mp_controller/request_check.h"
#include "mp_controller/rows/durable_rows.h"
#include "mp_controller/tenure.h"
#include "proto/config.pb.h"

namespace ems::controller {
namespace {

constexpr std::string_view kModelsAdvice =
    "Move the folder away to begin without models: servers keep what they have of them, and emsctl "
    "model add makes them known again";

Duration Ms(uint32_t ms) { return std::chrono::milliseconds(ms); }

bool IsEverywhere(const std::string& listen) {
  const Result<HostPort> at = ParseHostPort(listen);
  return at.ok() && (at->host == "0.0.0.0" || at->host == "*" || at->host == "::");
}

Status CheckEtcd(const ControllerOptions& options) {
  if (options.etcd.timeout > options.etcd.lease) {
    return Error(StatusCode::kInvalidArgument,
                 "etcd.timeout_ms {} is longer than etcd.lease_s {}: a leader would lose its lease "
                 "while it waits for one write",
                 std::chrono::ceil<std::chrono::milliseconds>(options.etcd.timeout).count(),
                 std::chrono::ceil<std::chrono::seconds>(options.etcd.lease).count());
  }
  if (!options.etcd.prefix.starts_with('/') || options.etcd.prefix.size() < 2 ||
      options.etcd.prefix.ends_with('/')) {
    return Error(StatusCode::kInvalidArgument,
                 "etcd.prefix \"{}\": it begins with / and does not end with it, as in /ems",
                 Printable(options.etcd.prefix));
  }
  if (options.advertise.empty() && IsEverywhere(options.listen)) {
    return Error(StatusCode::kInvalidArgument,
                 "listen {} is no address that another controller could name to clients: with "
                 "etcd.endpoints, advertise says it",
                 options.listen);
  }
  return OkStatus();
}

// The store of a controller that is the only one.
Result<TenureStores> OpenEmbedded(const std::string& data_dir) {
  if (StoreMemory::IsIn(data_dir)) {
    return Error(StatusCode::kFailedPrecondition,
                 "data_dir {} is of a controller whose store is in etcd: without etcd.endpoints it "
                 "would begin a new cluster. Set them, or give this controller an empty data_dir",
                 data_dir);
  }
  TenureStores stores;
  EMS_ASSIGN_OR_RETURN(stores.cluster, ControllerStore::Open(data_dir));
  EMS_ASSIGN_OR_RETURN(stores.models,
                       DurableRows::Open(data_dir + "/models", std::string(kModelsAdvice)));
  return stores;
}

}  // namespace

Result<ControllerOptions> MakeOptions(const config::ControllerConfig& config) {
  if (config.lease_ms() < 2 * config.heartbeat_ms()) {
    return Error(
        StatusCode::kInvalidArgument,
        "lease_ms {} is shorter than two heartbeats of {} ms: one late heartbeat would take "
        "a healthy server down",
        config.lease_ms(), config.heartbeat_ms());
  }
  ControllerOptions options;
  options.listen = config.listen();
  options.http_listen = config.http_listen();
  options.page = config.page() == "on";
  options.page_password_file = config.page_password_file();
  options.data_dir = config.data_dir();
  options.membership = {.heartbeat = Ms(config.heartbeat_ms()),
                        .lease = Ms(config.lease_ms()),
                        .settle = Ms(config.settle_ms()),
                        .damping = Ms(config.damping_ms()),
                        .drain_timeout = std::chrono::seconds(config.drain_timeout_s())};
  options.default_namespace = config.default_namespace();
  options.watchers_max = config.watchers_max();
  options.model_unused_max = std::chrono::hours(config.model_unused_hours());
  const config::EtcdConfig& etcd = config.etcd();
  options.advertise = config.advertise();
  options.etcd = {.endpoints = etcd.endpoints(),
                  .prefix = etcd.prefix(),
                  .lease = std::chrono::seconds(etcd.lease_s()),
                  .timeout = Ms(etcd.timeout_ms())};
  if (!options.etcd.endpoints.empty()) EMS_RETURN_IF_ERROR(CheckEtcd(options));
  if (!options.default_namespace.empty()) {
    EMS_RETURN_IF_ERROR(
        Prefixed(CheckNamespaceName(options.default_namespace), "default_namespace"));
  }
  return options;
}

struct Controller::Impl {
  explicit Impl(ControllerOptions options_in)
      : options(std::move(options_in)), metrics(&registry) {}

  // On "ems-tenure".
  Result<ClusterId> Lead(Candidate::Lead lead) {
    metrics.elections.Add();
    tenure = std::make_unique<Tenure>(Tenure::Parts{.options = &options,
                                                    .registry = &registry,
                                                    .metrics = &metrics,
                                                    .other = std::move(lead.other)});
    TenureStores stores;
    stores.cluster = std::make_unique<ControllerStore>(std::move(lead.cluster_rows));
    stores.models = std::move(lead.model_rows);
    EMS_RETURN_IF_ERROR(tenure->Start(std::move(stores), lead.listen, lead.http_listen));
    metrics.leader.Set(1);
    return tenure->cluster();
  }
  void End() {
    tenure.reset();
    metrics.OnFollowing();
  }

  const ControllerOptions options;
  MetricsRegistry registry;
  ControllerMetrics metrics;
  std::unique_ptr<Tenure> tenure;        // of several controllers: while it leads
  std::unique_ptr<Candidate> candidate;  // of several
};

Controller::Controller(ControllerOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

Controller::~Controller() { Stop(); }

Status Controller::Start() {
  Impl& impl = *impl_;
  const ControllerOptions& options = impl.options;
  if (!options.etcd.endpoints.empty()) {
    impl.candidate = std::make_unique<Candidate>(Candidate::Parts{
        .etcd = options.etcd,
        .data_dir = options.data_dir,
        .listen = options.listen,
        .http_listen = options.http_listen,
        .advertise = options.advertise,
        .registry = &impl.registry,
        .lead = [&impl](Candidate::Lead lead) { return impl.Lead(std::move(lead)); },
        .end = [&impl] { impl.End(); },
        .written =
            [&impl](Duration took) {
              impl.metrics.etcd_write_seconds.Observe(std::chrono::duration<double>(took).count());
            },
        .on_error = [&impl] { impl.metrics.etcd_errors.Add(); }});
    return impl.candidate->Start();
  }
  impl.tenure = std::make_unique<Tenure>(
      Tenure::Parts{.options = &options, .registry = &impl.registry, .metrics = &impl.metrics});
  EMS_ASSIGN_OR_RETURN(TenureStores stores, OpenEmbedded(options.data_dir));
  EMS_RETURN_IF_ERROR(impl.tenure->Start(std::move(stores), options.listen, options.http_listen));
  impl.metrics.leader.Set(1);
  return OkStatus();
}

void Controller::Stop() {
  impl_->candidate.reset();
  impl_->tenure.reset();
}

Status Controller::fault() const {
  return impl_->candidate == nullptr ? OkStatus() : impl_->candidate->fault();
}

int Controller::port() const {
  return impl_->candidate == nullptr ? impl_->tenure->port() : impl_->candidate->port();
}

std::string Controller::address() const {
  const std::string& listen = impl_->options.listen;
  return fmt::format("{}:{}", listen.substr(0, listen.rfind(':')), port());
}

std::string Controller::http_address() const {
  return impl_->candidate == nullptr ? impl_->tenure->http_address()
                                     : impl_->candidate->http_address();
}

}  // namespace ems::controller
