// Invariant: Start tears down nothing: what a failed one leaves is released by Stop.
#include "mp_controller/controller.h"

#include <atomic>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "common/version.h"
#include "fabric/http/http_endpoint.h"
#include "mp_controller/cluster_state.h"
#include "mp_controller/controller_service.h"
#include "mp_controller/controller_store.h"
#include "mp_controller/event_loop.h"
#include "mp_controller/events/cluster_events.h"
#include "mp_controller/events/cluster_observer.h"
#include "mp_controller/fact_finder.h"
#include "mp_controller/model_service.h"
#include "mp_controller/model_state.h"
#include "mp_controller/page/cluster_page.h"
#include "mp_controller/page/page_password.h"
#include "mp_controller/request_check.h"
#include "mp_controller/rows/durable_rows.h"
#include "proto/config.pb.h"
#include "proto/controller.pb.h"

namespace ems::controller {
namespace {

// A loop that has not ticked for so long is stuck on its disk.
constexpr Duration kTickAgeMax = std::chrono::seconds(5);

constexpr Duration kObserveEvery = std::chrono::seconds(1);

constexpr std::string_view kModelsAdvice =
    "Move the folder away to begin without models: servers keep what they have of them, and emsctl "
    "model add makes them known again";

Duration Ms(uint32_t ms) { return std::chrono::milliseconds(ms); }

std::string HostOf(const std::string& listen) { return listen.substr(0, listen.rfind(':')); }

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
                        .damping = Ms(config.damping_ms())};
  options.default_namespace = config.default_namespace();
  options.watchers_max = config.watchers_max();
  options.model_unused_max = std::chrono::hours(config.model_unused_hours());
  if (!options.default_namespace.empty()) {
    EMS_RETURN_IF_ERROR(
        Prefixed(CheckNamespaceName(options.default_namespace), "default_namespace"));
  }
  return options;
}

// In the order in which they are built; they go in the opposite one.
struct Controller::Impl {
  explicit Impl(ControllerOptions options_in)
      : options(std::move(options_in)), metrics(&registry), publisher(options.watchers_max) {}

  Status Healthy() const {
    const Duration age = Clock::System().Now().time_since_epoch() -
                         Duration(ticked_ns.load(std::memory_order_acquire));
    if (age <= kTickAgeMax) return OkStatus();
    return Error(StatusCode::kUnavailable, "the loop has stood still for {} ms",
                 std::chrono::duration_cast<std::chrono::milliseconds>(age).count());
  }

  Status ReadPassword() {
    if (!options.page || options.page_password_file.empty()) return OkStatus();
    const Result<PagePassword> read = PagePassword::Read(options.page_password_file);
    if (!read.ok()) return Prefixed(read.status(), "page_password_file");
    password = *read;
    return OkStatus();
  }

  Status StartHttp() {
    std::vector<fabric::HttpEndpoint::GetPage> pages;
    if (options.page) {
      const FactFinder facts({.loop = loop.get(),
                              .state = state.get(),
                              .publisher = &publisher,
                              .models = models.get(),
                              .events = &events});
      page = std::make_unique<ClusterPage>([facts] { return facts.Json(); },
                                           std::chrono::seconds(1), password);
      pages = page->pages();
    }
    const auto healthy = [this] { return Healthy(); };
    const auto refresh = [this] { ShowDisk(); };
    EMS_ASSIGN_OR_RETURN(http, fabric::HttpEndpoint::Start(options.http_listen, &registry, healthy,
                                                           healthy, refresh, {}, pages));
    return OkStatus();
  }

  // For each /metrics, not for each tick: a disk that hangs does not hold up the loop here.
  void ShowDisk() const {
    std::error_code error;
    const auto space = std::filesystem::space(options.data_dir, error);
    if (!error) metrics.disk_free_bytes.Set(static_cast<double>(space.available));
  }

  // What became of servers and views, for events: with each new view, and each second.
  void Observe() {
    const TimePoint now = Clock::System().Now();
    const ClusterObserver::View view = publisher.view();
    if (view == observer.view() && now < observe_at) return;
    observe_at = now + kObserveEvery;
    v1::ListNodesReply nodes;
    (void)state->ListNodes({}, &nodes);  // has no errors
    observer.Look(nodes, view);
  }

  void Tick() {
    if (listening.load(std::memory_order_acquire) && !std::exchange(listened, true))
      state->Listen();
    state->Tick();
    Observe();
    ticked_ns.store(Clock::System().Now().time_since_epoch().count(), std::memory_order_release);
  }

  const ControllerOptions options;
  MetricsRegistry registry;
  ControllerMetrics metrics;
  ViewPublisher publisher;
  ClusterEvents events;
  ClusterObserver observer{&events};   // the loop's
  TimePoint observe_at{};              // likewise
  std::atomic<int64_t> ticked_ns{0};   // release by the loop, acquire by Healthy()
  std::atomic<bool> listening{false};  // release by Start, acquire by the loop
  bool listened = false;               // the loop's
  std::unique_ptr<ControllerStore> store;
  std::unique_ptr<ClusterState> state;
  std::unique_ptr<EventLoop> loop;
  std::unique_ptr<DurableRows> model_rows;
  std::unique_ptr<ModelState> model_state;
  std::unique_ptr<ModelService> models;
  std::unique_ptr<ControllerService> service;
  std::optional<PagePassword> password;  // of the page
  std::unique_ptr<ClusterPage> page;
  std::unique_ptr<fabric::HttpEndpoint> http;
};

Controller::Controller(ControllerOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

Controller::~Controller() { Stop(); }

Status Controller::Start() {
  Impl& impl = *impl_;
  EMS_RETURN_IF_ERROR(impl.ReadPassword());
  EMS_ASSIGN_OR_RETURN(impl.store, ControllerStore::Open(impl.options.data_dir));
  impl.state = std::make_unique<ClusterState>(impl.options.membership,
                                              ClusterState::Parts{.clock = &Clock::System(),
                                                                  .store = impl.store.get(),
                                                                  .publisher = &impl.publisher,
                                                                  .metrics = &impl.metrics,
                                                                  .events = &impl.events});
  impl.events.Add({kControllerStarted,
                   {},
                   {},
                   fmt::format("the controller, version {}, has started", Version())});
  EMS_RETURN_IF_ERROR(impl.state->Start(impl.options.default_namespace));
  impl.Tick();
  const Duration tick = std::min(ClusterState::kTick, impl.options.membership.heartbeat / 2);
  impl.loop = std::make_unique<EventLoop>("ems-ctl", tick, [&impl] { impl.Tick(); });
  EMS_ASSIGN_OR_RETURN(impl.model_rows, DurableRows::Open(impl.options.data_dir + "/models",
                                                          std::string(kModelsAdvice)));
  impl.model_state = std::make_unique<ModelState>(ModelState::Parts{.clock = &Clock::System(),
                                                                    .rows = impl.model_rows.get(),
                                                                    .publisher = &impl.publisher,
                                                                    .events = &impl.events},
                                                  impl.options.model_unused_max);
  EMS_RETURN_IF_ERROR(impl.model_state->Start());
  impl.models = std::make_unique<ModelService>(impl.model_state.get(), &Clock::System(),
                                               impl.state->cluster());
  EMS_ASSIGN_OR_RETURN(impl.service,
                       ControllerService::Start(impl.options.listen, {.loop = impl.loop.get(),
                                                                      .state = impl.state.get(),
                                                                      .publisher = &impl.publisher,
                                                                      .metrics = &impl.metrics,
                                                                      .models = impl.models.get(),
                                                                      .events = &impl.events}));
  impl.listening.store(true, std::memory_order_release);
  if (impl.options.http_listen.empty()) return OkStatus();
  return impl.StartHttp();
}

void Controller::Stop() {
  if (impl_->page != nullptr) impl_->page->Close();
  impl_->http.reset();
  impl_->page.reset();
  impl_->service.reset();
  impl_->models.reset();
  impl_->model_state.reset();
  impl_->model_rows.reset();
  impl_->loop.reset();
  impl_->state.reset();
  impl_->store.reset();
}

int Controller::port() const { return impl_->service->port(); }

std::string Controller::address() const {
  return fmt::format("{}:{}", HostOf(impl_->options.listen), port());
}

std::string Controller::http_address() const {
  return impl_->http == nullptr ? "" : impl_->http->address();
}

}  // namespace ems::controller
