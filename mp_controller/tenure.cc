// Invariant: Start tears down nothing: what a failed one leaves is released with the object.
#include "mp_controller/tenure.h"

#include <atomic>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "common/version.h"
#include "fabric/http/http_endpoint.h"
#include "mp_controller/cluster_state.h"
#include "mp_controller/controller_metrics.h"
#include "mp_controller/controller_service.h"
#include "mp_controller/event_loop.h"
#include "mp_controller/events/cluster_events.h"
#include "mp_controller/events/cluster_observer.h"
#include "mp_controller/fact_finder.h"
#include "mp_controller/model_service.h"
#include "mp_controller/model_state.h"
#include "mp_controller/page/cluster_page.h"
#include "mp_controller/page/page_password.h"
#include "proto/controller.pb.h"

namespace ems::controller {
namespace {

// A loop that has not ticked for so long is stuck on its store.
constexpr Duration kTickAgeMax = std::chrono::seconds(5);

constexpr Duration kObserveEvery = std::chrono::seconds(1);

}  // namespace

// In the order in which they are built; they go in the opposite one.
struct Tenure::Impl {
  explicit Impl(const Parts& parts_in)
      : parts(parts_in), options(*parts.options), publisher(options.watchers_max) {}

  // In the order of what uses what.
  ~Impl() {
    if (page != nullptr) page->Close();
    http.reset();
    page.reset();
    service.reset();
  }

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

  Status StartHttp(const std::string& listen) {
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
    EMS_ASSIGN_OR_RETURN(http, fabric::HttpEndpoint::Start(listen, parts.registry, healthy, healthy,
                                                           refresh, {}, pages));
    return OkStatus();
  }

  // For each /metrics, not for each tick: a disk that hangs does not hold up the loop here.
  void ShowDisk() const {
    std::error_code error;
    const auto space = std::filesystem::space(options.data_dir, error);
    if (!error) parts.metrics->disk_free_bytes.Set(static_cast<double>(space.available));
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

  const Parts parts;
  const ControllerOptions& options;
  ViewPublisher publisher;
  ClusterEvents events;
  ClusterObserver observer{&events, &parts.metrics->drains};  // the loop's
  TimePoint observe_at{};                                     // likewise
  std::atomic<int64_t> ticked_ns{0};   // release by the loop, acquire by Healthy()
  std::atomic<bool> listening{false};  // release by Start, acquire by the loop
  bool listened = false;               // the loop's
  TenureStores stores;
  std::unique_ptr<ClusterState> state;
  std::unique_ptr<EventLoop> loop;
  std::unique_ptr<ModelState> model_state;
  std::unique_ptr<ModelService> models;
  std::unique_ptr<ControllerService> service;
  std::optional<PagePassword> password;  // of the page
  std::unique_ptr<ClusterPage> page;
  std::unique_ptr<fabric::HttpEndpoint> http;
};

Tenure::Tenure(const Parts& parts) : impl_(std::make_unique<Impl>(parts)) {}

Tenure::~Tenure() = default;

Status Tenure::Start(TenureStores stores, const std::string& listen,
                     const std::string& http_listen) {
  Impl& impl = *impl_;
  EMS_RETURN_IF_ERROR(impl.ReadPassword());
  impl.stores = std::move(stores);
  impl.state = std::make_unique<ClusterState>(
      impl.options.membership, ClusterState::Parts{.clock = &Clock::System(),
                                                   .store = impl.stores.cluster.get(),
                                                   .publisher = &impl.publisher,
                                                   .metrics = impl.parts.metrics,
                                                   .events = &impl.events});
  impl.events.Add({kControllerStarted,
                   {},
                   {},
                   fmt::format("the controller, version {}, has started", Version())});
  EMS_RETURN_IF_ERROR(impl.state->Start(impl.options.default_namespace));
  impl.Tick();
  const Duration tick = std::min(ClusterState::kTick, impl.options.membership.heartbeat / 2);
  impl.loop = std::make_unique<EventLoop>("ems-ctl", tick, [&impl] { impl.Tick(); });
  impl.model_state =
      std::make_unique<ModelState>(ModelState::Parts{.clock = &Clock::System(),
                                                     .rows = impl.stores.models.get(),
                                                     .publisher = &impl.publisher,
                                                     .events = &impl.events},
                                   impl.options.model_unused_max);
  EMS_RETURN_IF_ERROR(impl.model_state->Start());
  impl.models = std::make_unique<ModelService>(impl.model_state.get(), &Clock::System(),
                                               impl.state->cluster(), impl.parts.other);
  EMS_ASSIGN_OR_RETURN(impl.service,
                       ControllerService::Start(listen, {.loop = impl.loop.get(),
                                                         .state = impl.state.get(),
                                                         .publisher = &impl.publisher,
                                                         .metrics = impl.parts.metrics,
                                                         .models = impl.models.get(),
                                                         .events = &impl.events,
                                                         .other = impl.parts.other}));
  impl.listening.store(true, std::memory_order_release);
  return http_listen.empty() ? OkStatus() : impl.StartHttp(http_listen);
}

int Tenure::port() const { return impl_->service->port(); }

std::string Tenure::http_address() const {
  return impl_->http == nullptr ? "" : impl_->http->address();
}

ClusterId Tenure::cluster() const { return impl_->state->cluster(); }

}  // namespace ems::controller
