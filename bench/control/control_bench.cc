#include "bench/control/control_bench.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include "bench/control/server_load.h"
#include "bench/harness/report.h"
#include "bench/harness/scratch_folder.h"
#include "common/check.h"
#include "common/thread_pool.h"
#include "mp_controller/cluster_state.h"
#include "mp_controller/controller_service.h"
#include "mp_controller/controller_store.h"
#include "mp_controller/event_loop.h"
#include "mp_controller/publish/next_history.h"
#include "mp_controller/publish/view_builder.h"
#include "mp_controller/publish/view_publisher.h"

namespace ems::bench {
namespace {

constexpr Duration kProbeEvery = std::chrono::milliseconds(1);
constexpr Duration kReachMax = std::chrono::seconds(10);
constexpr Duration kServersMax = std::chrono::minutes(2);

// How long the loop lets a task wait: one is posted each millisecond, as soon as the one before has
// run. It may go while one waits. Threading: thread-safe.
class LoopProbe final {
 public:
  explicit LoopProbe(controller::EventLoop* loop)
      : loop_(*loop), thread_("bench-probe", [this] { Run(); }) {}
  ~LoopProbe() { stop_.Set(); }

  // The longest wait since the last call.
  Duration TakeLongest() { return Duration(seen_->longest.exchange(0)); }

 private:
  struct Seen {
    std::atomic<bool> waiting{false};
    std::atomic<int64_t> longest{0};  // ns
  };

  void Run() {
    while (!stop_.WaitFor(kProbeEvery)) {
      if (seen_->waiting.exchange(true)) continue;
      const TimePoint posted = Clock::System().Now();
      const bool taken = loop_.TryPost([seen = seen_, posted] {
        const int64_t waited = (Clock::System().Now() - posted).count();
        seen->longest.store(std::max(seen->longest.load(), waited));
        seen->waiting.store(false);
      });
      if (!taken) seen_->waiting.store(false);
    }
  }

  controller::EventLoop& loop_;
  const std::shared_ptr<Seen> seen_ = std::make_shared<Seen>();
  StopFlag stop_;
  Thread thread_;
};

// A controller as mp-controller runs it, but for models and HTTP. In the order in which they are
// built; they go in the opposite one.
struct Rig {
  explicit Rig(const ControlSettings& settings)
      : metrics(&registry), publisher(settings.watchers + 1) {}

  Status Start() {
    EMS_ASSIGN_OR_RETURN(folder, ScratchFolder::Make());
    EMS_ASSIGN_OR_RETURN(store, controller::ControllerStore::Open(folder->path() + "/store"));
    state = std::make_unique<controller::ClusterState>(
        controller::MembershipOptions{}, controller::ClusterState::Parts{.clock = &Clock::System(),
                                                                         .store = store.get(),
                                                                         .publisher = &publisher,
                                                                         .metrics = &metrics});
    EMS_RETURN_IF_ERROR(state->Start("default"));
    state->Listen();
    loop = std::make_unique<controller::EventLoop>("ems-ctl", controller::ClusterState::kTick,
                                                   [this] { state->Tick(); });
    EMS_ASSIGN_OR_RETURN(
        service, controller::ControllerService::Start("127.0.0.1:0", {.loop = loop.get(),
                                                                      .state = state.get(),
                                                                      .publisher = &publisher,
                                                                      .metrics = &metrics}));
    probe = std::make_unique<LoopProbe>(loop.get());
    return OkStatus();
  }
  std::string address() const { return fmt::format("127.0.0.1:{}", service->port()); }
  uint64_t epoch() { return publisher.view()->version().epoch(); }

  // Waits for a view of this many servers; the view, and when it was seen.
  Result<std::pair<ViewCache::View, TimePoint>> AwaitServers(size_t servers, Deadline deadline) {
    for (uint64_t seen = 0; !deadline.Passed();) {
      const ViewCache::View view = publisher.view();
      if (view->nodes().size() == servers) return std::pair(view, Clock::System().Now());
      if (!publisher.AwaitChange(&seen)) break;
    }
    return Error(StatusCode::kDeadlineExceeded, "the view has {} of {} servers",
                 publisher.view()->nodes().size(), servers);
  }

  std::unique_ptr<ScratchFolder> folder;
  MetricsRegistry registry;
  controller::ControllerMetrics metrics;
  controller::ViewPublisher publisher;
  std::unique_ptr<controller::ControllerStore> store;
  std::unique_ptr<controller::ClusterState> state;
  std::unique_ptr<controller::EventLoop> loop;
  std::unique_ptr<controller::ControllerService> service;
  std::unique_ptr<LoopProbe> probe;
};

// `ask` makes the view one of this many servers.
Result<ChangeResult> Measure(const std::string& change, const std::function<Status()>& ask,
                             size_t servers, Rig* rig, WatchLoad* watchers) {
  ChangeResult result;
  result.change = change;
  watchers->Expect(rig->epoch() + 1);
  const TimePoint begin = Clock::System().Now();
  EMS_RETURN_IF_ERROR(ask());
  const Deadline deadline = Deadline::After(kReachMax);
  EMS_ASSIGN_OR_RETURN(const auto published, rig->AwaitServers(servers, deadline));
  result.decided = published.second - begin;
  EMS_ASSIGN_OR_RETURN(result.arrivals, watchers->Collect(begin, deadline));
  return result;
}

uint64_t PeakRssBytes() {
  rusage usage{};
  return ::getrusage(RUSAGE_SELF, &usage) == 0 ? static_cast<uint64_t>(usage.ru_maxrss) * kKiB : 0;
}

// Equal servers, and the views that follow each other as they come and go.
class PureCluster final {
 public:
  explicit PureCluster(size_t servers) {
    for (uint32_t i = 1; i <= servers; ++i) Add(i);
  }
  void Add(uint32_t number) {
    nodes_.push_back(SimulatedNode(number));
    nodes_.back().id = NodeId(number);
  }
  void Drop(size_t at) { nodes_.erase(nodes_.begin() + static_cast<ptrdiff_t>(at)); }

  // With slots as the controller gives them out. Returns how many moved.
  uint32_t Next() { return NextWith(controller::BuildSlotsOf(slots_, nodes_)); }
  uint32_t NextWith(const SlotTable& slots) {
    const uint32_t moved = slots_.CountMoved(slots);
    slots_ = slots;
    ++epoch_;
    auto history = controller::NextHistory(view_.get(), nodes_, slots_, epoch_, 1);
    auto made = DhtView::Make(ViewVersion(1, epoch_), nodes_, slots_, false, std::move(history));
    EMS_CHECK(made.ok(), "{}", ToString(made.status()));
    view_ = *made;
    publisher_.Publish(view_);
    return moved;
  }
  uint64_t NextBytes() { return publisher_.Next(&cursor_).view->size(); }
  double max_over_mean() const {
    uint32_t most = 0;
    for (const NodeInfo& node : nodes_) most = std::max(most, slots_.CountOf(node.id));
    return most * static_cast<double>(nodes_.size()) / kSlotCount;
  }
  const SlotTable& slots() const { return slots_; }

 private:
  std::vector<NodeInfo> nodes_;
  SlotTable slots_;
  uint64_t epoch_ = 10'000;
  ViewCache::View view_;
  controller::ViewPublisher publisher_{1};
  controller::WatchCursor cursor_;
};

}  // namespace

Result<ControlResult> RunControlBench(const ControlSettings& settings) {
  ControlResult result;
  Rig rig(settings);
  EMS_RETURN_IF_ERROR(rig.Start());
  TimePoint begin = Clock::System().Now();
  ServerLoad servers(rig.address(), [&rig] { return rig.publisher.view(); });
  EMS_RETURN_IF_ERROR(servers.Join(settings.servers));
  EMS_RETURN_IF_ERROR(rig.AwaitServers(settings.servers, Deadline::After(kServersMax)).status());
  result.servers_took = Clock::System().Now() - begin;
  begin = Clock::System().Now();
  EMS_ASSIGN_OR_RETURN(const auto watchers,
                       WatchLoad::Start({.controller = rig.address(),
                                         .watchers = settings.watchers,
                                         .connections = settings.connections}));
  result.watchers_took = Clock::System().Now() - begin;
  result.blocked_at_start = rig.probe->TakeLongest();
  EMS_ASSIGN_OR_RETURN(CpuMeter cpu, CpuMeter::Make({}));
  cpu.Start();
  for (size_t i = 0; i < settings.rounds; ++i) {
    EMS_ASSIGN_OR_RETURN(
        result.changes.emplace_back(),
        Measure(
            "join", [&] { return servers.Join(1); }, settings.servers + 1, &rig, watchers.get()));
    EMS_ASSIGN_OR_RETURN(
        result.changes.emplace_back(),
        Measure(
            "leave", [&] { return servers.LeaveLast(); }, settings.servers, &rig, watchers.get()));
  }
  cpu.Stop();
  result.cpu = cpu.client();
  result.blocked = rig.probe->TakeLongest();
  result.failed_beats = servers.failed_beats();
  result.peak_rss_bytes = PeakRssBytes();
  return result;
}

PlacementFigures MeasurePlacementOf(size_t servers) {
  PlacementFigures figures{.servers = servers};
  PureCluster cluster(servers);
  cluster.Next();
  figures.whole_bytes = cluster.NextBytes();
  figures.max_over_mean = cluster.max_over_mean();
  cluster.Drop(servers / 2);
  const double had = kSlotCount / static_cast<double>(servers);
  figures.leave_moved = cluster.Next() / had;
  figures.leave_bytes = cluster.NextBytes();
  cluster.Add(static_cast<uint32_t>(servers + 1));
  figures.join_moved = cluster.Next() / had;
  figures.join_bytes = cluster.NextBytes();
  figures.max_over_mean = std::max(figures.max_over_mean, cluster.max_over_mean());
  SlotTable slots = cluster.slots();
  const SlotId moving(kSlotCount / 2);
  slots.set_owner(moving, slots.owner(SlotId(0)));
  cluster.NextWith(slots);
  figures.slot_bytes = cluster.NextBytes();
  return figures;
}

}  // namespace ems::bench
