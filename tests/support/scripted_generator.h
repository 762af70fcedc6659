#pragma once
// A generator that says what a test tells it to, when the test tells it to.
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "common/thread_pool.h"
#include "pdc/api/generate.h"

namespace ems::testing {

// One generation as its generator sees it. Threading: thread-safe; `sink` is the test's to call.
class ScriptedGeneration final : public pdc::api::Generation {
 public:
  ScriptedGeneration(pdc::api::GenerateRequest asked, std::shared_ptr<pdc::api::GenerationSink> to)
      : request(std::move(asked)), sink(std::move(to)) {}
  void Cancel() override { cancelled.Set(); }

  const pdc::api::GenerateRequest request;
  std::shared_ptr<pdc::api::GenerationSink> sink;
  StopFlag cancelled;
};

// Threading: thread-safe.
class ScriptedGenerator final : public pdc::api::Generator {
 public:
  explicit ScriptedGenerator(uint64_t context_tokens_max = 1000)
      : models_{{.name = "scripted",
                 .context_tokens_max = context_tokens_max,
                 .vocabulary = 300,
                 .created_s = 1'700'000'000},
                {.name = "org/other", .context_tokens_max = 10, .vocabulary = 256}} {}

  const std::vector<pdc::api::ModelInfo>& models() const override { return models_; }
  uint64_t CountTokens(const pdc::api::ModelInfo&, std::string_view text) const override {
    return text.size();
  }
  Status Ready() const override {
    auto state = state_.Lock();
    return state->ready;
  }
  Result<std::shared_ptr<pdc::api::Generation>> Start(
      pdc::api::GenerateRequest request, std::shared_ptr<pdc::api::GenerationSink> sink) override {
    auto generation = std::make_shared<ScriptedGeneration>(std::move(request), std::move(sink));
    std::function<void(ScriptedGeneration*)> at_once;
    {
      auto state = state_.Lock();
      if (!state->refusal.ok()) return state->refusal;
      at_once = state->at_once;
      if (!at_once) state->started.push_back(generation);
    }
    changed_.notify_all();
    if (at_once) at_once(generation.get());
    return std::shared_ptr<pdc::api::Generation>(generation);
  }

  // The next one that was started; null when none comes in 10 s.
  std::shared_ptr<ScriptedGeneration> Take() {
    auto state = state_.Lock();
    if (!state.WaitFor(changed_, std::chrono::seconds(10),
                       [](const State& now) { return !now.started.empty(); })) {
      return nullptr;
    }
    auto generation = state->started.front();
    state->started.pop_front();
    return generation;
  }
  void SetReady(Status ready) {
    auto state = state_.Lock();
    state->ready = std::move(ready);
  }
  // Start fails so; OK: no more.
  void SetRefusal(Status refusal) {
    auto state = state_.Lock();
    state->refusal = std::move(refusal);
  }
  // Is called within Start, and Take gives nothing.
  void SetAtOnce(std::function<void(ScriptedGeneration*)> at_once) {
    auto state = state_.Lock();
    state->at_once = std::move(at_once);
  }

 private:
  struct State {
    Status ready;
    Status refusal;
    std::function<void(ScriptedGeneration*)> at_once;
    std::deque<std::shared_ptr<ScriptedGeneration>> started;
  };
  const std::vector<pdc::api::ModelInfo> models_;
  mutable Guarded<State> state_;
  std::condition_variable changed_;
};

}  // namespace ems::testing
