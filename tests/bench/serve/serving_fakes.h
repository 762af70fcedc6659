#pragma once
// A serving loop without an engine: the API over answers that are a function of what was asked, and
// a prefix cache that only counts.
#include <chrono>
#include <set>
#include <string>
#include <utility>

#include "common/bytes.h"
#include "common/guarded.h"
#include "common/hash.h"
#include "common/thread_pool.h"
#include "tests/pdc/api/api_harness.h"

namespace ems::bench {

struct FakeLoopOptions {
  uint64_t block_tokens = 64;
  bool caches = true;
  uint64_t answer_seed = 0;  // loops with different ones answer differently
  std::chrono::milliseconds first_token_after{0};
};

// Blocks of a prompt are there for every other prompt, whichever comes next; only the same prompt
// again, at once, does not find them: saves happen behind an answer.
// Threading: thread-safe.
class FakeLoop final {
 public:
  explicit FakeLoop(FakeLoopOptions options = {}) : options_(options) {
    harness_.generator.SetAtOnce([this](testing::ScriptedGeneration* one) { Answer(one); });
  }
  const std::string& address() const { return harness_.server->address(); }
  testing::ScriptedGenerator& generator() { return harness_.generator; }
  uint64_t asked() {
    auto state = state_.Lock();
    return state->asked;
  }

 private:
  struct State {
    std::set<uint64_t> stored, saving;
    uint64_t saving_prompt = 0;
    uint64_t asked = 0;
  };

  uint64_t CachedTokens(const pdc::api::GenerateRequest& request) {
    if (!options_.caches) return 0;
    auto state = state_.Lock();
    const uint64_t salt = Hash64(AsBytes(request.cache_salt));
    const uint64_t prompt = Hash64(AsBytes(request.text), salt);
    // Not by the number of requests: those of one round are under way at the same time, and what
    // they find must not depend on their order.
    if (prompt != state->saving_prompt) state->stored.merge(state->saving);
    std::set<uint64_t> blocks;
    uint64_t cached = 0;
    bool leading = true;
    for (uint64_t end = options_.block_tokens; end <= request.text.size();
         end += options_.block_tokens) {
      const uint64_t key = Hash64(AsBytes(request.text.substr(0, end)), salt);
      leading = leading && state->stored.contains(key);
      if (leading) cached = end;
      blocks.insert(key);
    }
    state->stored.merge(state->saving);
    state->saving = std::move(blocks);
    state->saving_prompt = prompt;
    return cached;
  }

  void Answer(testing::ScriptedGeneration* one) {
    const pdc::api::GenerateRequest& request = one->request;
    {
      auto state = state_.Lock();
      ++state->asked;
    }
    (void)never_.WaitFor(options_.first_token_after);
    one->sink->OnPrompt(
        {.prompt_tokens = request.text.size(), .cached_tokens = CachedTokens(request)});
    uint64_t bits =
        Hash64(AsBytes(request.text), request.sampling.seed.value_or(0) + options_.answer_seed);
    for (uint64_t i = 0; i < request.tokens_max; ++i) {
      one->sink->OnTokens(std::string(1, static_cast<char>('a' + static_cast<char>(bits % 26))), 1);
      bits = Hash64(AsBytes("next"), bits);
    }
    one->sink->OnFinish(pdc::api::FinishReason::kLength);
  }

  const FakeLoopOptions options_;
  Guarded<State> state_;
  StopFlag never_;  // set
  pdc::api::ApiHarness harness_;
};

}  // namespace ems::bench
