#include "tests/simulation/sim_client.h"

#include <fmt/core.h>

#include <utility>

namespace ems::simulation {

using std::chrono::milliseconds;

SimClient::SimClient(World* world, Network* network, SimController* controller, Machine machine,
                     bool stubborn, const Servers* servers, KeyLog* log,
                     std::function<void(std::string)> on_violation)
    : world_(*world),
      network_(*network),
      controller_(*controller),
      machine_(machine),
      stubborn_(stubborn),
      servers_(*servers),
      log_(*log),
      on_violation_(std::move(on_violation)) {}

void SimClient::Start() {
  world_.After(world_.Between(milliseconds(1), milliseconds(60)), [this] {
    Ask();
    Start();
  });
}

void SimClient::TakeView(const ViewCache::View& view) {
  if (stubborn_ && view_ != nullptr) return;
  if (view_ == nullptr || view->version() > view_->version()) view_ = view;
}

void SimClient::Refresh() {
  network_.Send(machine_, 0, [this] {
    controller_.Serve([this](controller::ClusterState*) {
      network_.Send(0, machine_, [this, view = controller_.view()] {
        if (view != nullptr && (view_ == nullptr || view->version() > view_->version()))
          view_ = view;
      });
    });
  });
}

void SimClient::Ask() {
  if (view_ == nullptr) return Refresh();
  const int key = static_cast<int>(world_.Below(kKeys));
  const NodeInfo* const owner = view_->Owner(SlotOf(key));
  if (owner == nullptr) return Refresh();
  for (const auto& server : servers_)
    if (server->address() == owner->data_address) AskServer(server.get(), server->machine(), key);
}

void SimClient::AskServer(SimServer* server, Machine at, int key) {
  const ViewVersion view = view_->version();
  const TimePoint begun = world_.now();
  const uint64_t dice = world_.Below(20);
  if (dice < 9) {
    return network_.SendOnce(machine_, at, [=, this] {
      server->TakeGet(key, view, [=, this](const Answer& answer) {
        network_.Send(at, machine_, [=, this] {
          OnAnswer(answer);
          if (answer.kind != Answer::Kind::kValue) return;
          ++served_;
          const std::string wrong = log_.Check(key, answer.value, begun);
          if (!wrong.empty()) on_violation_(fmt::format("{} of {}", wrong, server->name()));
        });
      });
    });
  }
  const uint64_t value = dice < 18 ? world_.Number() | 1 : 0;
  const size_t number = log_.Begin(key, value, begun);
  network_.SendOnce(machine_, at, [=, this] {
    server->TakePut(key, value, view, [=, this](const Answer& answer) {
      if (answer.kind == Answer::Kind::kDone) {
        for (const auto& other : servers_) {
          if (other.get() != server && other->TakesPuts(key)) {
            on_violation_(fmt::format("{} ({}) and {} ({}) both take Puts for slot {}",
                                      server->name(), server->address(), other->name(),
                                      other->address(), SlotOf(key).value()));
          }
        }
      }
      network_.Send(at, machine_, [=, this] {
        OnAnswer(answer);
        if (answer.kind != Answer::Kind::kDone) return;
        ++served_;
        log_.Acknowledge(key, number, world_.now());
      });
    });
  });
}

void SimClient::OnAnswer(const Answer& answer) {
  const bool newer = answer.view > view_->version();
  if (answer.kind == Answer::Kind::kWrongOwner || (newer && !stubborn_)) Refresh();
}

}  // namespace ems::simulation
