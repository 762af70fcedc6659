#pragma once
// Reads or writes of an SSD tier that wait until a test lets them go.
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "mp_server/ssd/ssd_tier.h"

namespace ems::testing {

// Operations of one kind wait here until they are released; the others pass. Threading:
// thread-safe.
class HeldIo final {
 public:
  enum Kind : uint8_t { kReads, kWrites };
  // An engine that does what `inner` does, when these say so. They must outlive it.
  std::unique_ptr<ssd::IoEngine> Wrap(std::unique_ptr<ssd::IoEngine> inner) {
    return std::make_unique<Engine>(this, std::move(inner));
  }
  void Hold(Kind kind = kReads) {
    auto state = state_.Lock();
    state->holding = kind;
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
      state->holding.reset();
      held.swap(state->held);
    }
    for (const auto& [engine, op] : held) engine->Submit(op);
  }
  // The disk refuses those that wait.
  void Refuse() {
    std::vector<Held> held;
    {
      auto state = state_.Lock();
      state->holding.reset();
      held.swap(state->held);
    }
    for (const auto& [engine, op] : held) op->OnDone(-EIO);
  }

 private:
  using Held = std::pair<ssd::IoEngine*, ssd::IoOp*>;
  class Engine final : public ssd::IoEngine {
   public:
    Engine(HeldIo* held, std::unique_ptr<ssd::IoEngine> inner)
        : held_(held), inner_(std::move(inner)) {}
    void Submit(ssd::IoOp* op) override {
      if (!held_->Keep(inner_.get(), op)) inner_->Submit(op);
    }
    std::string_view name() const override { return inner_->name(); }

   private:
    HeldIo* const held_;
    const std::unique_ptr<ssd::IoEngine> inner_;
  };
  struct State {
    std::optional<Kind> holding;
    std::vector<Held> held;
  };
  bool Keep(ssd::IoEngine* engine, ssd::IoOp* op) {
    auto state = state_.Lock();
    if (state->holding != (op->write ? kWrites : kReads)) return false;
    state->held.emplace_back(engine, op);
    changed_.notify_all();
    return true;
  }
  Guarded<State> state_;
  std::condition_variable changed_;
};

}  // namespace ems::testing
