// What must hold: each request reaches one worker as it was asked, in order, where the least KV is;
// it ends once, whatever its client, its worker and its deadline do. Failures of workers:
// router_failover_test.cc.
#include "pdc/router/request_router.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/pdc/router/router_testing.h"

namespace ems::pdc {
namespace {

using testing::RecordedGeneration;

class RequestRouterTest : public RouterTestBase {};

TEST_F(RequestRouterTest, ARequestReachesAWorkerAndItsAnswerTheClient) {
  Make({0});
  api::GenerateRequest request = Asking("Hi", 5);
  request.sampling = {.temperature = 0.5, .top_p = 0.25, .seed = 42};
  request.cache_salt = "salt";
  request.deadline = Deadline::After(std::chrono::minutes(3));
  const RouterClient client = Ask(request);
  const Attempt attempt = peers[0]->Take();
  ASSERT_NE(attempt, nullptr);
  EXPECT_EQ(attempt->task.prompt, Prompt("Hi"));
  EXPECT_EQ(attempt->task.tokens_max, 5U);
  EXPECT_TRUE(attempt->task.stop_at_end);
  EXPECT_EQ(attempt->task.sampler.temperature, 0.5F);
  EXPECT_EQ(attempt->task.sampler.top_p, 0.25F);
  EXPECT_EQ(attempt->task.sampler.seed, 42U);
  EXPECT_EQ(attempt->task.cache_salt, "salt");
  EXPECT_EQ(attempt->task.deadline.at(), request.deadline.at());
  attempt->Prompt(2);
  attempt->Tokens(Tokens("yo"));
  attempt->Tokens({'!', kEndToken});
  attempt->End(FinishReason::kStop);
  const RecordedGeneration::Heard heard = client.sink->AwaitEnd();
  ExpectFinish(heard, api::FinishReason::kStop);
  ASSERT_TRUE(heard.prompt.has_value());
  EXPECT_EQ(heard.prompt->prompt_tokens, 3U);
  EXPECT_EQ(heard.prompt->cached_tokens, 2U);
  EXPECT_EQ(heard.bytes, "yo!");
  EXPECT_EQ(heard.tokens, 4U);
  const RequestRouterStats stats = router->stats();
  EXPECT_EQ(stats.requests, 1U);
  EXPECT_EQ(stats.attempts, 1U);
  EXPECT_EQ(stats.finished, 1U);
  EXPECT_EQ(stats.waiting + stats.running, 0U);
  EXPECT_EQ(stats.failovers, 0U);
}

TEST_F(RequestRouterTest, TokensAsAPromptGoAsTheyAre) {
  Make({0});
  api::GenerateRequest request = Asking("");
  request.tokens = {kBeginToken, 1, 2, 263};
  request.ignore_eos = true;
  const RouterClient client = Ask(request);
  const Attempt attempt = peers[0]->Take();
  ASSERT_NE(attempt, nullptr);
  EXPECT_EQ(attempt->task.prompt, request.tokens);
  EXPECT_FALSE(attempt->task.stop_at_end);
}

TEST_F(RequestRouterTest, BytesOfCutCharactersGoThrough) {
  Make({0});
  const RouterClient client = Ask(Asking("x"));
  const Attempt attempt = peers[0]->Take();
  ASSERT_NE(attempt, nullptr);
  attempt->Tokens({0xC3});
  attempt->Tokens({0xA4, 0xFF});
  attempt->End(FinishReason::kLength);
  const RecordedGeneration::Heard heard = client.sink->AwaitEnd();
  ExpectFinish(heard, api::FinishReason::kLength);
  EXPECT_EQ(heard.bytes, "\xC3\xA4\xFF");
  ASSERT_TRUE(heard.prompt.has_value()) << "the worker did not tell, the router knows";
  EXPECT_EQ(heard.prompt->prompt_tokens, 2U);
}

TEST_F(RequestRouterTest, SeedsDifferWhenNoneIsGiven) {
  Make({0});
  api::GenerateRequest request = Asking("x");
  request.sampling.seed.reset();
  const RouterClient one = Ask(request), two = Ask(request);
  const Attempt first = peers[0]->Take(), second = peers[0]->Take();
  ASSERT_TRUE(first != nullptr && second != nullptr);
  EXPECT_NE(first->task.sampler.seed, second->task.sampler.seed);
  EXPECT_NE(first->task.id, second->task.id);
}

TEST_F(RequestRouterTest, CountsTokensAsTheyAreSent) {
  Make({0});
  EXPECT_EQ(router->CountTokens(router->models().front(), "abc"), 4U);
  EXPECT_EQ(router->CountTokens(router->models().front(), "\xFDuser\xFE.\xFF"), 4U);
}

TEST_F(RequestRouterTest, RefusesAtOnceWhatCannotBe) {
  Make({100, 200});
  EXPECT_EQ(Refusal(Asking("x", 0)), StatusCode::kInvalidArgument);
  EXPECT_EQ(Refusal(Asking("x", 4095)), StatusCode::kInvalidArgument) << "the context";
  EXPECT_EQ(Refusal(Asking(std::string(100, 'x'), 100)), StatusCode::kInvalidArgument)
      << "201 tokens fit into no worker";
  api::GenerateRequest request = Asking("x");
  request.model = "other";
  EXPECT_EQ(Refusal(request), StatusCode::kInvalidArgument);
  request = Asking("x");
  request.tokens = {1};
  EXPECT_EQ(Refusal(request), StatusCode::kInvalidArgument) << "text and tokens";
  request.text.clear();
  request.tokens = {kTokens};
  EXPECT_EQ(Refusal(request), StatusCode::kInvalidArgument);
  request = Asking("x");
  request.sampling.top_p = 0;
  EXPECT_EQ(Refusal(request), StatusCode::kInvalidArgument);
  EXPECT_EQ(router->stats().refused, 7U);
  EXPECT_EQ(router->stats().requests, 0U);
  const RouterClient client = Ask(Asking(std::string(99, 'x'), 100));
  EXPECT_NE(peers[1]->Take(), nullptr) << "200 do fit into the second";
}

TEST_F(RequestRouterTest, CreateRefusesWhatCannotBe) {
  const auto code = [this](const RequestRouterOptions& options, const api::ModelInfo& model,
                           std::vector<std::shared_ptr<DecodePeer>> doors) {
    return RequestRouter::Create(options, model, std::move(doors), &registry).status().code();
  };
  const auto peer = std::make_shared<testing::ScriptedDecodePeer>("d");
  EXPECT_EQ(code({}, Model(), {peer}), StatusCode::kOk);
  EXPECT_EQ(code({}, Model(), {}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({}, Model(), {nullptr}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({}, Model(), {peer, peer}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.queue_max = 0}, Model(), {peer}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.heartbeat = Duration::zero()}, Model(), {peer}), StatusCode::kInvalidArgument);
  api::ModelInfo model = Model();
  model.vocabulary = kTokens - 1;
  EXPECT_EQ(code({}, model, {peer}), StatusCode::kInvalidArgument);
}

// --- Places.

TEST_F(RequestRouterTest, GoesWhereTheLeastKvIs) {
  Make({1000, 1000, 1000});
  const RouterClient long_one = Ask(Asking(std::string(300, 'a'), 10));
  ASSERT_NE(peers[0]->Take(), nullptr);
  const RouterClient short_one = Ask(Asking("b", 10));
  ASSERT_NE(peers[1]->Take(), nullptr);
  const RouterClient middle = Ask(Asking(std::string(100, 'c'), 10));
  ASSERT_NE(peers[2]->Take(), nullptr);
  const RouterClient next = Ask(Asking("d", 10));
  EXPECT_NE(peers[1]->Take(), nullptr);
}

TEST_F(RequestRouterTest, AnAnswerThatGrowsBeyondItsReserveIsCharged) {
  RequestRouterOptions options = QuickOptions();
  options.reserve_tokens = 4;
  Make({1000, 1000}, options);
  const RouterClient grows = Ask(Asking("a", 100));
  const Attempt attempt = peers[0]->Take();
  ASSERT_NE(attempt, nullptr);
  const RouterClient other = Ask(Asking(std::string(20, 'b'), 100));
  ASSERT_NE(peers[1]->Take(), nullptr);
  attempt->Tokens(std::vector<TokenId>(40, 'x'));
  ASSERT_EQ(grows.sink->AwaitTokens(40).tokens, 40U);
  const RouterClient next = Ask(Asking("c", 100));
  EXPECT_NE(peers[1]->Take(), nullptr) << "42 tokens there, 25 here";
}

TEST_F(RequestRouterTest, CountsKvInWholeBlocks) {
  RequestRouterOptions options = QuickOptions();
  options.kv_block_tokens = 16;
  Make({64}, options);
  // 2 + 1 tokens are a block each.
  std::vector<RouterClient> clients;
  clients.reserve(5);
  for (int i = 0; i < 5; ++i) clients.push_back(Ask(Asking("x", 1)));
  ASSERT_TRUE(peers[0]->WaitSubmits(4));
  Settle();
  EXPECT_EQ(peers[0]->submits(), 4U);
  EXPECT_EQ(router->stats().waiting, 1U);
}

TEST_F(RequestRouterTest, WaitsInOrderForAPlace) {
  RequestRouterOptions options = QuickOptions();
  options.batch_max = 1;
  Make({0}, options);
  const RouterClient a = Ask(Asking("a"));
  const Attempt first = peers[0]->Take();
  ASSERT_NE(first, nullptr);
  const RouterClient b = Ask(Asking("b")), c = Ask(Asking("c"));
  Settle();
  EXPECT_EQ(peers[0]->submits(), 1U);
  EXPECT_EQ(router->stats().waiting, 2U);
  EXPECT_EQ(router->stats().running, 1U);
  first->End(FinishReason::kStop);
  const Attempt second = peers[0]->Take();
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->task.prompt, Prompt("b"));
  Settle();
  EXPECT_EQ(peers[0]->submits(), 2U);
  second->End(Error(StatusCode::kInternal, "broken"));
  ExpectError(b.sink->AwaitEnd(), StatusCode::kInternal);
  const Attempt third = peers[0]->Take();
  ASSERT_NE(third, nullptr);
  EXPECT_EQ(third->task.prompt, Prompt("c"));
}

TEST_F(RequestRouterTest, ASmallRequestDoesNotOvertakeABigOne) {
  Make({100});
  const RouterClient a = Ask(Asking(std::string(50, 'a'), 10));
  const Attempt first = peers[0]->Take();
  ASSERT_NE(first, nullptr);
  const RouterClient big = Ask(Asking(std::string(80, 'b'), 10)), small = Ask(Asking("c", 1));
  Settle();
  EXPECT_EQ(peers[0]->submits(), 1U);
  first->End(FinishReason::kStop);
  const Attempt second = peers[0]->Take(), third = peers[0]->Take();
  ASSERT_TRUE(second != nullptr && third != nullptr);
  EXPECT_EQ(second->task.prompt.size(), 81U);
  EXPECT_EQ(third->task.prompt.size(), 2U);
}

TEST_F(RequestRouterTest, RefusesMoreThanMayWait) {
  RequestRouterOptions options = QuickOptions();
  options.batch_max = 1;
  options.queue_max = 1;
  Make({0}, options);
  const RouterClient a = Ask(Asking("a"));
  const Attempt first = peers[0]->Take();
  ASSERT_NE(first, nullptr);
  Settle();
  const RouterClient b = Ask(Asking("b"));
  EXPECT_EQ(Refusal(Asking("c")), StatusCode::kResourceExhausted);
  b.generation->Cancel();
  ExpectError(b.sink->AwaitEnd(), StatusCode::kCancelled);
  const RouterClient d = Ask(Asking("d"));
  EXPECT_EQ(router->stats().waiting, 1U);
}

TEST_F(RequestRouterTest, AWorkerWhoseQueueIsFullIsAskedAgain) {
  Make({0});
  peers[0]->SetRefusal(Error(StatusCode::kResourceExhausted, "full"));
  const RouterClient client = Ask(Asking("a"));
  ASSERT_TRUE(peers[0]->WaitSubmits(5));
  EXPECT_FALSE(client.sink->heard().ended());
  peers[0]->SetRefusal(OkStatus());
  const Attempt attempt = peers[0]->Take();
  ASSERT_NE(attempt, nullptr);
  attempt->End(FinishReason::kStop);
  ExpectFinish(client.sink->AwaitEnd(), api::FinishReason::kStop);
}

TEST_F(RequestRouterTest, WhatAWorkerCallsInvalidIsTheClientsToKnow) {
  Make({0, 0});
  peers[0]->SetRefusal(Error(StatusCode::kInvalidArgument, "a bad salt"));
  const RouterClient client = Ask(Asking("a"));
  ExpectError(client.sink->AwaitEnd(), StatusCode::kInvalidArgument);
  EXPECT_EQ(peers[1]->submits(), 0U);
}

TEST_F(RequestRouterTest, AnswersWithinSubmitAreHeard) {
  Make({0});
  peers[0]->SetAtOnce([](const Attempt& attempt) {
    attempt->Prompt();
    attempt->Tokens({'o', 'k'});
    attempt->End(FinishReason::kLength);
  });
  const RouterClient client = Ask(Asking("a"));
  const RecordedGeneration::Heard heard = client.sink->AwaitEnd();
  ExpectFinish(heard, api::FinishReason::kLength);
  EXPECT_EQ(heard.bytes, "ok");
}

TEST_F(RequestRouterTest, TokensBeyondTheEndAreNotTheAnswers) {
  Make({0});
  const RouterClient client = Ask(Asking("a", 3));
  const Attempt attempt = peers[0]->Take();
  ASSERT_NE(attempt, nullptr);
  attempt->Tokens(Tokens("abcdef"));
  attempt->Tokens(Tokens("g"));
  attempt->End(FinishReason::kLength);
  const RecordedGeneration::Heard heard = client.sink->AwaitEnd();
  ExpectFinish(heard, api::FinishReason::kLength);
  EXPECT_EQ(heard.bytes, "abc");
  EXPECT_EQ(heard.tokens, 3U);
}

// --- Cancel.

TEST_F(RequestRouterTest, CancelWhileItWaits) {
  RequestRouterOptions options = QuickOptions();
  options.batch_max = 1;
  Make({0}, options);
  const RouterClient a = Ask(Asking("a"));
  const Attempt first = peers[0]->Take();
  ASSERT_NE(first, nullptr);
  const RouterClient b = Ask(Asking("b"));
  b.generation->Cancel();
  ExpectError(b.sink->AwaitEnd(), StatusCode::kCancelled);
  first->End(FinishReason::kStop);
  ExpectFinish(a.sink->AwaitEnd(), api::FinishReason::kStop);
  Settle();
  EXPECT_EQ(peers[0]->submits(), 1U);
  EXPECT_EQ(router->stats().cancelled, 1U);
}

TEST_F(RequestRouterTest, CancelWhileAWorkerHasItEndsItThereAndFreesItsPlace) {
  RequestRouterOptions options = QuickOptions();
  options.batch_max = 1;
  for (const int phase : {0, 1, 2}) {
    peers.clear();
    Make({0}, options);
    const RouterClient client = Ask(Asking("a"));
    const Attempt attempt = peers[0]->Take();
    ASSERT_NE(attempt, nullptr);
    if (phase >= 1) attempt->Prompt();
    if (phase >= 2) {
      attempt->Tokens({'x'});
      ASSERT_EQ(client.sink->AwaitTokens(1).tokens, 1U);
    }
    client.generation->Cancel();
    client.generation->Cancel();
    ExpectError(client.sink->AwaitEnd(), StatusCode::kCancelled);
    EXPECT_TRUE(attempt->WaitCancelled());
    attempt->Tokens({'y'});
    attempt->End(Error(StatusCode::kCancelled, "cancelled"));
    const RouterClient next = Ask(Asking("b"));
    EXPECT_NE(peers[0]->Take(), nullptr);
    EXPECT_EQ(client.sink->heard().broken, "");
  }
}

TEST_F(RequestRouterTest, CancelWithinAnEvent) {
  Make({0});
  RouterClient client;
  std::atomic<api::Generation*> generation{nullptr};
  client.sink->SetOnEvent([&generation] {
    if (auto* known = generation.load(std::memory_order_acquire)) known->Cancel();
  });
  Start(Asking("a"), &client);
  generation.store(client.generation.get(), std::memory_order_release);  // with the load above
  const Attempt attempt = peers[0]->Take();
  ASSERT_NE(attempt, nullptr);
  attempt->Prompt();
  EXPECT_TRUE(attempt->WaitCancelled());
  ExpectError(client.sink->AwaitEnd(), StatusCode::kCancelled);
}

TEST_F(RequestRouterTest, CancelAfterTheEndDoesNothing) {
  Make({0});
  const RouterClient client = Ask(Asking("a"));
  const Attempt attempt = peers[0]->Take();
  ASSERT_NE(attempt, nullptr);
  attempt->End(FinishReason::kStop);
  ExpectFinish(client.sink->AwaitEnd(), api::FinishReason::kStop);
  client.generation->Cancel();
  Settle();
  EXPECT_FALSE(attempt->cancelled.IsSet());
  EXPECT_EQ(client.sink->heard().broken, "");
  router.reset();
  client.generation->Cancel();
}

// --- Deadlines.

TEST_F(RequestRouterTest, ADeadlineEndsWhatASilentWorkerHas) {
  Make({0});
  api::GenerateRequest request = Asking("a");
  request.deadline = Deadline::After(std::chrono::milliseconds(30));
  const RouterClient client = Ask(request);
  const Attempt attempt = peers[0]->Take();
  ASSERT_NE(attempt, nullptr);
  ExpectError(client.sink->AwaitEnd(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(request.deadline.Passed());
  EXPECT_TRUE(attempt->WaitCancelled());
}

TEST_F(RequestRouterTest, ADeadlineEndsWhatWaits) {
  RequestRouterOptions options = QuickOptions();
  options.batch_max = 1;
  options.heartbeat = std::chrono::hours(1);  // nothing else wakes the router
  Make({0}, options);
  const RouterClient first = Ask(Asking("a"));
  ASSERT_NE(peers[0]->Take(), nullptr);
  api::GenerateRequest request = Asking("b");
  request.deadline = Deadline::After(std::chrono::milliseconds(30));
  const RouterClient second = Ask(request);
  ExpectError(second.sink->AwaitEnd(), StatusCode::kDeadlineExceeded);
  request.deadline = Deadline::After(Duration::zero());
  const RouterClient third = Ask(request);
  ExpectError(third.sink->AwaitEnd(), StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(first.sink->heard().ended());
}

// --- The end, and what can be seen from outside.

TEST_F(RequestRouterTest, TheDestructorEndsAllThatIsUnderWay) {
  RequestRouterOptions options = QuickOptions();
  options.batch_max = 1;
  Make({0}, options);
  const RouterClient running = Ask(Asking("a"));
  const Attempt attempt = peers[0]->Take();
  ASSERT_NE(attempt, nullptr);
  const RouterClient waits = Ask(Asking("b"));
  router.reset();
  ExpectError(running.sink->heard(), StatusCode::kUnavailable);
  ExpectError(waits.sink->heard(), StatusCode::kUnavailable);
  EXPECT_TRUE(attempt->cancelled.IsSet());
  attempt->Tokens({'x'});
  attempt->End(Error(StatusCode::kCancelled, "cancelled"));
  running.generation->Cancel();
  EXPECT_EQ(running.sink->heard().broken, "");
  EXPECT_EQ(running.sink->heard().tokens, 0U);
}

TEST_F(RequestRouterTest, AfterStopThereIsNothingUnderWayAndNothingIsTaken) {
  Make({0});
  const RouterClient running = Ask(Asking("a"));
  const Attempt attempt = peers[0]->Take();
  ASSERT_NE(attempt, nullptr);
  router->Stop();
  ExpectError(running.sink->heard(), StatusCode::kUnavailable);
  EXPECT_TRUE(attempt->cancelled.IsSet());
  EXPECT_EQ(Refusal(Asking("b")), StatusCode::kUnavailable);
  router->Stop();
}

TEST_F(RequestRouterTest, MetricsShowWhatIsThere) {
  RequestRouterOptions options = QuickOptions();
  options.batch_max = 1;
  Make({0}, options);
  const RouterClient a = Ask(Asking("a"));
  ASSERT_NE(peers[0]->Take(), nullptr);
  const RouterClient b = Ask(Asking("b"));
  Settle();
  const std::string text = registry.Render();
  for (const char* line : {"ems_pdc_router_requests_total 2\n", "ems_pdc_router_attempts_total 1\n",
                           "ems_pdc_router_waiting 1\n", "ems_pdc_router_running 1\n",
                           "ems_pdc_router_peer_healthy{peer=\"d0\"} 1\n",
                           "ems_pdc_router_peer_requests{peer=\"d0\"} 1\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "in\n" << text;
}

}  // namespace
}  // namespace ems::pdc
