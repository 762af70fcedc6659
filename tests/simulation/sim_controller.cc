#include "tests/simulation/sim_controller.h"

#include <fmt/core.h>

#include <utility>

#include "common/check.h"

namespace ems::simulation {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(100);
constexpr Duration kStartAgain = std::chrono::seconds(1);

class Watcher final : public controller::Subscriber {
 public:
  explicit Watcher(std::function<void()> on_published) : on_published_(std::move(on_published)) {}
  void OnPublished() override { on_published_(); }
  void OnClosed() override {}

 private:
  const std::function<void()> on_published_;
};

}  // namespace

struct SimController::Life {
  Life(const Clock* clock, MemoryStore* store, const ControlRules& rules, Duration lease)
      : metrics(&registry),
        publisher(16),
        state({.lease = lease,
               .settle = std::chrono::milliseconds(200),
               .damping = std::chrono::seconds(2)},
              {.clock = clock,
               .store = store,
               .publisher = &publisher,
               .metrics = &metrics,
               .rules = rules}) {}
  MetricsRegistry registry;
  controller::ControllerMetrics metrics;
  controller::ViewPublisher publisher;
  controller::ClusterState state;
  std::shared_ptr<Watcher> watcher;
  ViewCache::View spread;  // the last one that its watcher was told of
};

SimController::SimController(World* world, double drift, const ControlRules& rules, Hooks hooks)
    : world_(*world),
      clock_(world, drift),
      rules_(rules),
      hooks_(std::move(hooks)),
      store_(rules.open_views_are_kept, {.fails = [this] { return StoreFails(); },
                                         .found = [this] { return world_.Chance(0.5); }}) {}

SimController::~SimController() = default;

void SimController::Start() {
  if (life_ != nullptr) return;
  ++lives_;
  paused_until_ = {};
  // As an operator wants it: each start may say another one.
  const Duration lease = std::chrono::seconds(world_.Chance(0.7) ? 5 : 3);
  life_ = std::make_unique<Life>(&clock_, &store_, rules_, lease);
  life_->watcher = std::make_shared<Watcher>([this] { OnPublished(); });
  EMS_CHECK(life_->publisher.Subscribe(life_->watcher).ok());
  const Status started = life_->state.Start("default");
  if (!started.ok()) {
    life_.reset();
    if (StoreFails()) return world_.After(kStartAgain, [this] { Start(); });
    return hooks_.on_violation("the controller does not start: " + ToString(started));
  }
  life_->state.Listen();
  Spread();
  Tick(lives_);
}

void SimController::Crash() {
  life_.reset();
  waiting_.clear();
}

void SimController::Pause(Duration time) { paused_until_ = world_.now() + time; }

void SimController::RestoreBackup() {
  EMS_CHECK(life_ == nullptr, "a store is put back while its controller runs");
  store_.Restore();
  restored_ = true;
  left_.clear();
}

void SimController::Serve(std::function<void(controller::ClusterState*)> call) {
  if (life_ == nullptr) return;
  // In the order in which they came, as the controller's loop has them.
  if (world_.now() < paused_until_ || !waiting_.empty()) {
    waiting_.push_back(std::move(call));
  } else {
    call(&life_->state);
    Spread();
  }
}

ViewCache::View SimController::view() const {
  return life_ == nullptr ? nullptr : life_->publisher.view();
}

void SimController::Tick(uint64_t life) {
  if (life != lives_ || life_ == nullptr) return;
  if (world_.now() >= paused_until_) {
    for (auto& call : std::exchange(waiting_, {})) call(&life_->state);
    life_->state.Tick();
    CheckLeft();
    Spread();
  }
  world_.After(kTick, [this, life] { Tick(life); });
}

std::set<NodeId> SimController::NodesThatLeft() {
  v1::ListNodesReply nodes;
  EMS_CHECK(life_->state.ListNodes({}, &nodes).ok());
  std::set<NodeId> left;
  for (const v1::NodeStatus& one : nodes.nodes())
    if (one.node().state() == v1::NODE_LEFT) left.insert(NodeId(one.node().id()));
  return left;
}

// A process that was replaced says goodbye as well, and its name is another's.
void SimController::NoteLeft(NodeId id) {
  if (NodesThatLeft().contains(id)) left_.insert(id);
}

void SimController::CheckLeft() {
  if (left_.empty()) return;
  const std::set<NodeId> known = NodesThatLeft();
  for (const NodeId id : left_) {
    if (!known.contains(id))
      hooks_.on_violation(fmt::format("server {} stopped in order and counts as lost", id.value()));
  }
}

// As the thread "ems-fanout" does.
void SimController::Spread() {
  if (life_ == nullptr) return;
  const ViewCache::View view = life_->publisher.view();
  if (view == std::exchange(life_->spread, view)) return;
  life_->publisher.NotifyAll();
}

void SimController::OnPublished() {
  const ViewCache::View view = life_->publisher.view();
  if (view == nullptr) return;
  if (view->version() <= highest_ && !restored_ && view->version() != highest_)
    hooks_.on_violation("a view number went back");
  highest_ = std::max(highest_, view->version());
  // At once after each event that can change it.
  if (history_ != 0 && view->history().id() != history_ && !new_history_allowed_)
    hooks_.on_violation("the history ended, and nobody had asked for it");
  history_ = view->history().id();
  hooks_.on_view(view);
}

}  // namespace ems::simulation
