#pragma once
// Reads of an SSD tier that wait until a test lets them go.
#include <condition_variable>
#include <memory>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "mp_server/ssd/ssd_tier.h"

namespace ems::testing {

// Reads wait here until they are released; writes pass. Threading: thread-safe.
class HeldReads final {
 public:
  // An engine that does what `inner` does, when these say so. They must outlive it.
  std::unique_ptr<ssd::IoEngine> Wrap(std::unique_ptr<ssd::IoEngine> inner) {
    return std::make_unique<Engine>(this, std::move(inner));
  }
  void Hold() {
    auto state = state_.Lock();
    state->holding = true;
  }
  bool WaitForOne() {
    auto state = state_.Lock();
    return state.WaitFor(changed_, std::chrono::seconds(10),
                         [](const State& s) { return !s.held.empty(); });
  }
  void LetGo() {
    std::vector<Held> held;
    {
      auto state = state_.Lock();
      state->holding = false;
      held.swap(state->held);
    }
    for (const auto& [engine, op] : held) engine->Submit(op);
  }

 private:
  using Held = std::pair<ssd::IoEngine*, ssd::IoOp*>;
  class Engine final : public ssd::IoEngine {
   public:
    Engine(HeldReads* reads, std::unique_ptr<ssd::IoEngine> inner)
        : reads_(reads), inner_(std::move(inner)) {}
    void Submit(ssd::IoOp* op) override {
      if (op->write || !reads_->Keep(inner_.get(), op)) inner_->Submit(op);
    }
    std::string_view name() const override { return inner_->name(); }

   private:
    HeldReads* const reads_;
    const std::unique_ptr<ssd::IoEngine> inner_;
  };
  struct State {
    bool holding = false;
    std::vector<Held> held;
  };
  bool Keep(ssd::IoEngine* engine, ssd::IoOp* op) {
    auto state = state_.Lock();
    if (!state->holding) return false;
    state->held.emplace_back(engine, op);
    changed_.notify_all();
    return true;
  }
  Guarded<State> state_;
  std::condition_variable changed_;
};

}  // namespace ems::testing
