#pragma once
// A decode worker that does what a test tells it to, when the test tells it to.
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "common/thread_pool.h"
#include "pdc/decode/decode_peer.h"

namespace ems::testing {

// One task as its worker sees it. Threading: thread-safe; `sink` is the test's to call.
struct ScriptedAttempt {
  ScriptedAttempt(pdc::DecodeTask task_in, std::shared_ptr<pdc::DecodeSink> sink_in)
      : task(std::move(task_in)), sink(std::move(sink_in)) {}
  void Prompt(uint32_t cached_tokens = 0) const {
    sink->OnPrompt(static_cast<uint32_t>(task.prompt.size()), cached_tokens);
  }
  void Tokens(const std::vector<pdc::TokenId>& tokens) const { sink->OnTokens(tokens); }
  void End(Result<pdc::FinishReason> how) const { sink->OnEnd(std::move(how)); }
  // Whether Cancel comes in 10 s.
  bool WaitCancelled() { return cancelled.WaitFor(std::chrono::seconds(10)); }

  const pdc::DecodeTask task;
  const std::shared_ptr<pdc::DecodeSink> sink;
  StopFlag cancelled;
};

// Threading: thread-safe.
class ScriptedDecodePeer final : public pdc::DecodePeer {
 public:
  using Attempt = std::shared_ptr<ScriptedAttempt>;

  explicit ScriptedDecodePeer(std::string name, uint64_t kv_tokens_max = 0)
      : name_(std::move(name)) {
    auto state = state_.Lock();
    state->kv_tokens_max = kv_tokens_max;
  }

  const std::string& name() const override { return name_; }
  pdc::DecodeHealth health() override {
    auto state = state_.Lock();
    ++state->looks;
    pdc::DecodeHealth health{
        .status = state->health, .kv_tokens_max = state->kv_tokens_max, .admits = state->admits};
    state.Unlock();
    changed_.notify_all();
    return health;
  }
  Status Submit(pdc::DecodeTask task, std::shared_ptr<pdc::DecodeSink> sink) override {
    auto attempt = std::make_shared<ScriptedAttempt>(std::move(task), std::move(sink));
    std::function<void(const Attempt&)> at_once;
    {
      auto state = state_.Lock();
      ++state->submits;
      if (state->refusal.ok()) {
        state->attempts[attempt->task.id] = attempt;
        at_once = state->at_once;
        if (!at_once) state->submitted.push_back(attempt);
      }
      const Status refusal = state->refusal;
      state.Unlock();
      changed_.notify_all();
      if (!refusal.ok()) return refusal;
    }
    if (at_once) at_once(attempt);
    return OkStatus();
  }
  void Cancel(uint64_t id) override {
    auto state = state_.Lock();
    const auto found = state->attempts.find(id);
    if (found == state->attempts.end()) return;
    const Attempt attempt = found->second;
    state.Unlock();
    attempt->cancelled.Set();
  }

  // The next task that came; null when none comes in 10 s.
  Attempt Take() {
    auto state = state_.Lock();
    if (!state.WaitFor(changed_, std::chrono::seconds(10),
                       [](const State& now) { return !now.submitted.empty(); })) {
      return nullptr;
    }
    Attempt attempt = state->submitted.front();
    state->submitted.pop_front();
    return attempt;
  }
  size_t untaken() {
    auto state = state_.Lock();
    return state->submitted.size();
  }
  // All calls of Submit so far, refused ones too.
  size_t submits() {
    auto state = state_.Lock();
    return state->submits;
  }
  // True once it has been tried `count` times in all; false when that takes 10 s.
  bool WaitSubmits(size_t count) {
    auto state = state_.Lock();
    return state.WaitFor(changed_, std::chrono::seconds(10),
                         [count](const State& now) { return now.submits >= count; });
  }
  // True once its health has been asked for `more` times from now on; false when that takes 10 s.
  bool WaitLooks(uint64_t more) {
    auto state = state_.Lock();
    const uint64_t until = state->looks + more;
    return state.WaitFor(changed_, std::chrono::seconds(10),
                         [until](const State& now) { return now.looks >= until; });
  }
  void SetHealth(Status health) {
    auto state = state_.Lock();
    state->health = std::move(health);
  }
  // It says so, and takes what comes all the same.
  void SetAdmits(Status admits) {
    auto state = state_.Lock();
    state->admits = std::move(admits);
  }
  // Submit fails so; OK: no more.
  void SetRefusal(Status refusal) {
    auto state = state_.Lock();
    state->refusal = std::move(refusal);
  }
  // Is called within Submit, and Take gives nothing.
  void SetAtOnce(std::function<void(const Attempt&)> at_once) {
    auto state = state_.Lock();
    state->at_once = std::move(at_once);
  }

 private:
  struct State {
    Status health, admits, refusal;
    uint64_t kv_tokens_max = 0, looks = 0;
    size_t submits = 0;
    std::function<void(const Attempt&)> at_once;
    std::deque<Attempt> submitted;
    std::map<uint64_t, Attempt> attempts;
  };
  const std::string name_;
  Guarded<State> state_;
  std::condition_variable changed_;
};

}  // namespace ems::testing
