#pragma once
// What a decode task's sink was told, and a test that waits for it.
#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "pdc/decode/decode_peer.h"

namespace ems::pdc::test {

// Threading: thread-safe. Fails the test when the order of events is broken.
class RecordingSink final : public DecodeSink {
 public:
  struct Told {
    int prompts = 0;
    uint32_t prompt_tokens = 0, cached_tokens = 0;
    std::vector<TokenId> tokens;
    std::optional<Result<FinishReason>> end;
  };
  // `on_tokens` is called with how many there are then.
  explicit RecordingSink(std::function<void(size_t)> on_tokens = {})
      : on_tokens_(std::move(on_tokens)) {}

  void OnPrompt(uint32_t prompt_tokens, uint32_t cached_tokens) override {
    auto told = told_.Lock();
    EXPECT_FALSE(told->end) << "after the end";
    EXPECT_EQ(++told->prompts, 1);
    EXPECT_TRUE(told->tokens.empty());
    told->prompt_tokens = prompt_tokens;
    told->cached_tokens = cached_tokens;
  }
  void OnTokens(std::span<const TokenId> tokens) override {
    size_t count = 0;
    {
      auto told = told_.Lock();
      EXPECT_FALSE(told->end) << "after the end";
      EXPECT_EQ(told->prompts, 1);
      EXPECT_FALSE(tokens.empty());
      told->tokens.insert(told->tokens.end(), tokens.begin(), tokens.end());
      count = told->tokens.size();
    }
    came_.notify_all();
    if (on_tokens_) on_tokens_(count);
  }
  void OnEnd(Result<FinishReason> how) override {
    auto told = told_.Lock();
    EXPECT_FALSE(told->end) << "it has ended twice";
    told->end.emplace(std::move(how));
    came_.notify_all();
  }

  // All that it was told, once it has ended.
  Told Wait() {
    auto told = told_.Lock();
    if (!told.WaitFor(came_, std::chrono::seconds(30), [](const Told& t) { return !!t.end; })) {
      ADD_FAILURE() << "it does not end";
      told->end.emplace(Error(StatusCode::kInternal, "it does not end"));
    }
    return *told;
  }
  bool WaitForTokens(size_t count) {
    auto told = told_.Lock();
    return told.WaitFor(came_, std::chrono::seconds(30),
                        [count](const Told& t) { return t.end || t.tokens.size() >= count; });
  }

 private:
  const std::function<void(size_t)> on_tokens_;
  Guarded<Told> told_;
  std::condition_variable came_;
};

}  // namespace ems::pdc::test
