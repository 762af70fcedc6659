// What must hold: what is asked next is always the prompt with the answer so far and the rest of
// the tokens, and the end of an answer is known without its worker.
#include "pdc/router/routed_request.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/recorded_generation.h"

namespace ems::pdc {
namespace {

RoutedRequest Of(uint32_t prompt_tokens, uint32_t tokens_max, bool stop_at_end = true) {
  return RoutedRequest(1,
                       {.prompt = std::vector<TokenId>(prompt_tokens, 'p'),
                        .tokens_max = tokens_max,
                        .stop_at_end = stop_at_end,
                        .sampler = {.seed = 5},
                        .cache_salt = "s"},
                       std::make_shared<testing::RecordedGeneration>());
}

const api::ModelInfo kModel = {.name = "m", .context_tokens_max = 10, .vocabulary = kTokens};

api::GenerateRequest Asking(const std::string& text) {
  api::GenerateRequest request;
  request.model = "m";
  request.text = text;
  request.tokens_max = 4;
  return request;
}

TEST(RoutedRequestTest, ATaskHasWhatTheClientAsksFor) {
  api::GenerateRequest request = Asking("Hi");
  request.ignore_eos = true;
  request.cache_salt = "salt";
  request.sampling = {.temperature = 0.5, .top_p = 0.25, .seed = 42};
  const auto task = TaskFor(kModel, request);
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_EQ(task->prompt, (std::vector<TokenId>{kBeginToken, 'H', 'i'}));
  EXPECT_EQ(task->tokens_max, 4U);
  EXPECT_FALSE(task->stop_at_end);
  EXPECT_EQ(task->cache_salt, "salt");
  EXPECT_EQ(task->sampler.seed, 42U);
  request.text.clear();
  request.tokens = {7, 8};
  EXPECT_EQ(TaskFor(kModel, request)->prompt, (std::vector<TokenId>{7, 8}));
}

TEST(RoutedRequestTest, ATaskThatNobodyCanServeIsRefused) {
  const auto refused = [](const std::function<void(api::GenerateRequest*)>& spoil) {
    api::GenerateRequest request = Asking("Hi");
    spoil(&request);
    return TaskFor(kModel, request).status().code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](auto* request) { request->model = "other"; }));
  EXPECT_TRUE(refused([](auto* request) { request->tokens = {1}; })) << "text and tokens";
  EXPECT_TRUE(refused([](auto* request) { request->text = "", request->tokens = {kTokens}; }));
  EXPECT_TRUE(refused([](auto* request) { request->tokens_max = 0; }));
  EXPECT_TRUE(refused([](auto* request) { request->tokens_max = 8; })) << "of 10 with the prompt";
  EXPECT_FALSE(refused([](auto* request) { request->tokens_max = 7; }));
  EXPECT_TRUE(refused([](auto* request) { request->sampling.top_p = 0; }));
}

TEST(RoutedRequestTest, AsksForTheRest) {
  RoutedRequest request = Of(2, 5);
  EXPECT_EQ(request.Take(std::vector<TokenId>{'a', 'b'}), 2U);
  const DecodeTask task = request.NextTask(77);
  EXPECT_EQ(task.id, 77U);
  EXPECT_EQ(task.prompt, (std::vector<TokenId>{'p', 'p', 'a', 'b'}));
  EXPECT_EQ(task.tokens_max, 3U);
  EXPECT_EQ(task.sampler.seed, 5U);
  EXPECT_EQ(task.cache_salt, "s");
  EXPECT_EQ(request.prompt_tokens(), 2U);
  EXPECT_EQ(request.answer_tokens(), 2U);
  EXPECT_FALSE(request.complete().has_value());
}

TEST(RoutedRequestTest, IsCompleteAtItsLengthAndTakesNoMore) {
  RoutedRequest request = Of(2, 3);
  EXPECT_EQ(request.Take(std::vector<TokenId>{'a', 'b', 'c', 'd'}), 3U);
  EXPECT_EQ(request.complete(), api::FinishReason::kLength);
  EXPECT_EQ(request.Take(std::vector<TokenId>{'e'}), 0U);
  EXPECT_EQ(request.answer_tokens(), 3U);
}

TEST(RoutedRequestTest, IsCompleteAtAStopTokenUnlessTheyAreIgnored) {
  for (const TokenId end : {kEndToken, kTurnEndToken}) {
    RoutedRequest request = Of(2, 9);
    EXPECT_EQ(request.Take(std::vector<TokenId>{'a', end, 'b'}), 2U);
    EXPECT_EQ(request.complete(), api::FinishReason::kStop);
    RoutedRequest ignores = Of(2, 9, false);
    EXPECT_EQ(ignores.Take(std::vector<TokenId>{'a', end, 'b'}), 3U);
    EXPECT_FALSE(ignores.complete().has_value());
  }
  RoutedRequest both = Of(2, 1);
  both.Take(std::vector<TokenId>{kEndToken});
  EXPECT_EQ(both.complete(), api::FinishReason::kStop) << "the last token is a stop, too";
}

TEST(RoutedRequestTest, SizesAreWholeBlocksOfWhatIsExpected) {
  RoutedRequest request = Of(10, 100);
  Request sizes = request.Sizes(3, 16, 20);
  EXPECT_EQ(sizes.id, 3U);
  EXPECT_EQ(sizes.input_tokens, 10U);
  EXPECT_EQ(sizes.output_tokens, 22U) << "30 tokens are 2 blocks";
  EXPECT_EQ(sizes.output_tokens_max, 100U);
  EXPECT_EQ(request.Sizes(3, 1, 1000).output_tokens, 100U) << "no more than may come";
  EXPECT_EQ(request.Sizes(3, 1, 0).output_tokens, 1U);
  request.Take(std::vector<TokenId>(100, 'x'));
  sizes = request.Sizes(3, 1, 20);
  EXPECT_EQ(sizes.input_tokens, 110U);
  EXPECT_EQ(sizes.output_tokens, 1U);
}

TEST(RoutedRequestTest, CountsAttemptsSinceTheLastToken) {
  RoutedRequest request = Of(1, 9);
  EXPECT_EQ(request.fruitless_attempts(), 0U);
  request.BeginAttempt();
  request.BeginAttempt();
  EXPECT_EQ(request.fruitless_attempts(), 2U);
  request.Take(std::vector<TokenId>{'a'});
  EXPECT_EQ(request.fruitless_attempts(), 0U);
  request.BeginAttempt();
  EXPECT_EQ(request.Take({}), 0U);
  EXPECT_EQ(request.fruitless_attempts(), 1U);
}

TEST(RoutedRequestTest, ThePromptIsNewsOnce) {
  RoutedRequest request = Of(1, 9);
  EXPECT_TRUE(request.PromptIsNews());
  EXPECT_FALSE(request.PromptIsNews());
}

}  // namespace
}  // namespace ems::pdc
