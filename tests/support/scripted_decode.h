#pragma once
// A decode instance that does what a test tells it, and a sink that writes down what it hears.
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "pdc/decode/decode_peer.h"

namespace ems::testing {

// Threading: thread-safe.
class ScriptedDecode final : public pdc::DecodePeer {
 public:
  const std::string& name() const override { return name_; }
  pdc::DecodeHealth health() override {
    auto state = state_.Lock();
    return state->health;
  }
  Status Submit(pdc::DecodeTask task, std::shared_ptr<pdc::DecodeSink> sink) override {
    auto state = state_.Lock();
    if (!state->refusal.ok()) return state->refusal;
    state->last = task.id;
    state->tasks[task.id] = {std::move(task), std::move(sink)};
    return OkStatus();
  }
  void Cancel(uint64_t id) override {
    const auto sink = Take(id);
    if (sink != nullptr) sink->OnEnd(Error(StatusCode::kCancelled, "cancelled"));
  }

  // --- What a test does.

  // The task that was submitted last, if it is here.
  std::optional<pdc::DecodeTask> Last() {
    auto state = state_.Lock();
    const auto found = state->tasks.find(state->last);
    return found == state->tasks.end() ? std::nullopt : std::optional(found->second.first);
  }
  std::shared_ptr<pdc::DecodeSink> SinkOf(uint64_t id) {
    auto state = state_.Lock();
    return state->tasks.at(id).second;
  }
  // And forgets the task. Null: it is not here.
  std::shared_ptr<pdc::DecodeSink> Take(uint64_t id) {
    auto state = state_.Lock();
    const auto found = state->tasks.find(id);
    if (found == state->tasks.end()) return nullptr;
    std::shared_ptr<pdc::DecodeSink> sink = std::move(found->second.second);
    state->tasks.erase(found);
    return sink;
  }
  size_t tasks() {
    auto state = state_.Lock();
    return state->tasks.size();
  }
  void Refuse(const Status& why) {
    auto state = state_.Lock();
    state->refusal = why;
  }
  void SetHealth(const pdc::DecodeHealth& health) {
    auto state = state_.Lock();
    state->health = health;
  }

 private:
  struct State {
    std::map<uint64_t, std::pair<pdc::DecodeTask, std::shared_ptr<pdc::DecodeSink>>> tasks;
    uint64_t last = 0;
    Status refusal;
    pdc::DecodeHealth health;
  };
  const std::string name_ = "scripted";
  Guarded<State> state_;
};

// Threading: thread-safe.
class LoggedSink final : public pdc::DecodeSink {
 public:
  struct Log {
    std::vector<std::pair<uint32_t, uint32_t>> prompts;
    std::vector<pdc::TokenId> tokens;
    size_t token_calls = 0;
    std::vector<Result<pdc::FinishReason>> ends;
  };
  void OnPrompt(uint32_t prompt_tokens, uint32_t cached_tokens) override {
    auto log = log_.Lock();
    log->prompts.emplace_back(prompt_tokens, cached_tokens);
  }
  void OnTokens(std::span<const pdc::TokenId> tokens) override {
    auto log = log_.Lock();
    log->tokens.insert(log->tokens.end(), tokens.begin(), tokens.end());
    ++log->token_calls;
  }
  void OnEnd(Result<pdc::FinishReason> how) override {
    auto log = log_.Lock();
    log->ends.push_back(std::move(how));
  }
  Log log() {
    auto log = log_.Lock();
    return *log;
  }
  bool ended() { return !log().ends.empty(); }

 private:
  Guarded<Log> log_;
};

}  // namespace ems::testing
