#pragma once
// A prefill host that does what a test tells it.
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "pdc/rpc/prefill_host.h"
#include "pdc/rpc/prefill_service.h"

namespace ems::testing {

// Threading: thread-safe.
class ScriptedPrefillHost final : public pdc::PrefillHost {
 public:
  Result<std::shared_ptr<pdc::PrefillLink>> Attach(
      std::unique_ptr<fabric::RingSender> ring) override {
    auto link = std::make_shared<Link>(this, std::move(ring));
    auto state = state_.Lock();
    ++state->rings;
    return link;
  }
  pdc::PrefillPulse Pulse() override {
    auto state = state_.Lock();
    return state->pulse;
  }

  // --- What a test does.

  struct Task {
    std::shared_ptr<fabric::RingSender> ring;
    pdc::PrefillTask task;
    pdc::PrefillEvents events;
  };
  bool Has(uint64_t id) {
    auto state = state_.Lock();
    return state->tasks.contains(id);
  }
  pdc::PrefillTask Get(uint64_t id) {
    auto state = state_.Lock();
    return state->tasks.at(id).task;
  }
  void Done(uint64_t id, const pdc::PrefillOutcome& outcome) {
    std::function<void(Result<pdc::PrefillOutcome>)> on_done;
    {
      auto state = state_.Lock();
      on_done = std::exchange(state->tasks.at(id).events.on_done, nullptr);
    }
    on_done(outcome);
  }
  void Sent(uint64_t id, const Status& status) {
    Task task;
    {
      auto state = state_.Lock();
      task = std::move(state->tasks.at(id));
      state->tasks.erase(id);
    }
    task.events.on_sent(status);
  }
  // The next event of it, and its last.
  void Fail(uint64_t id, const Status& why) {
    Task task;
    {
      auto state = state_.Lock();
      const auto found = state->tasks.find(id);
      if (found == state->tasks.end()) return;
      task = std::move(found->second);
      state->tasks.erase(found);
    }
    if (task.events.on_done) return task.events.on_done(why);
    task.events.on_sent(why);
  }
  bool WasCancelled(uint64_t id) {
    auto state = state_.Lock();
    return std::find(state->cancelled.begin(), state->cancelled.end(), id) !=
           state->cancelled.end();
  }
  std::shared_ptr<fabric::RingSender> RingOf(uint64_t task) {
    auto state = state_.Lock();
    return state->tasks.at(task).ring;
  }
  void Refuse(const Status& why) {
    auto state = state_.Lock();
    state->refusal = why;
  }
  void SetPulse(const pdc::PrefillPulse& pulse) {
    auto state = state_.Lock();
    state->pulse = pulse;
  }
  void SetLinkStatus(const Status& status) {
    auto state = state_.Lock();
    state->link_status = status;
  }
  size_t rings() {
    auto state = state_.Lock();
    return state->rings;
  }
  size_t detached() {
    auto state = state_.Lock();
    return state->detached;
  }

 private:
  class Link final : public pdc::PrefillLink {
   public:
    Link(ScriptedPrefillHost* host, std::shared_ptr<fabric::RingSender> ring)
        : host_(host), ring_(std::move(ring)) {}
    ~Link() override {
      auto state = host_->state_.Lock();
      --state->rings;
      ++state->detached;
    }
    Status Start(pdc::PrefillTask task, pdc::PrefillEvents events) override {
      auto state = host_->state_.Lock();
      if (!state->refusal.ok()) return state->refusal;
      const uint64_t id = task.id;
      state->tasks[id] = {ring_, std::move(task), std::move(events)};
      return OkStatus();
    }
    // What is still to come of the task says kCancelled.
    void Cancel(uint64_t id) override {
      {
        auto state = host_->state_.Lock();
        state->cancelled.push_back(id);
      }
      host_->Fail(id, Error(StatusCode::kCancelled, "cancelled"));
    }
    Status link() override {
      auto state = host_->state_.Lock();
      return state->link_status;
    }

   private:
    ScriptedPrefillHost* const host_;
    const std::shared_ptr<fabric::RingSender> ring_;
  };
  struct State {
    size_t rings = 0, detached = 0;
    Status link_status;
    std::map<uint64_t, Task> tasks;
    std::vector<uint64_t> cancelled;
    Status refusal;
    pdc::PrefillPulse pulse;
  };
  Guarded<State> state_;
};

inline pdc::InstanceInfo ScriptedInstance(const std::string& socket_name) {
  return {.name = "p0",
          .model = "scripted",
          .fingerprint = "f1",
          .block_tokens = 16,
          .storage = pdc::KvStorage::kBf16,
          .vocab = 264,
          .positions_max = 1000,
          .context_tokens = 900,
          .incarnation = 0,
          .ring_socket_path = socket_name.empty()
                                  ? ""
                                  : fmt::format("/tmp/ems-rings-{}-{}", socket_name, ::getpid())};
}

}  // namespace ems::testing
