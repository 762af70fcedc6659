// What must hold: an outcome says what the stream said and when; what failed, broke or was cut is
// an error and never a shorter answer.
#include "bench/serve/serve_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/thread_pool.h"
#include "tests/pdc/api/api_harness.h"
#include "tests/support/http_script.h"

namespace ems::bench {
namespace {

using pdc::api::ApiHarness;
using pdc::api::FinishReason;
using ::testing::HasSubstr;
using testing::ScriptedGeneration;

TimePoint Now() { return Clock::System().Now(); }

ServeOutcome Ask(const ApiHarness& harness, const ServeRequest& request) {
  return ServeClient(harness.server->address(), "scripted", std::chrono::seconds(10))
      .Ask(request, Now());
}

std::string TextOf(const Status& status) { return ToString(status); }

TEST(ServeClientTest, AnOutcomeIsWhatTheStreamSaid) {
  ApiHarness harness;
  pdc::api::GenerateRequest asked;
  harness.generator.SetAtOnce([&](ScriptedGeneration* one) {
    asked = one->request;
    one->sink->OnPrompt({.prompt_tokens = 1000, .cached_tokens = 640});
    one->sink->OnTokens("he", 2);
    one->sink->OnTokens("\xc3", 1);  // half a character: no event
    one->sink->OnTokens("\xa9llo", 4);
    one->sink->OnFinish(FinishReason::kLength);
  });
  const TimePoint before = Now();
  const ServeOutcome outcome = Ask(harness, {.prompt = "a \"prompt\"\n",
                                             .output_tokens = 7,
                                             .temperature = 0.5,
                                             .seed = 42,
                                             .cache_salt = "salt"});
  const Duration all = Now() - before;
  ASSERT_TRUE(outcome.status.ok()) << TextOf(outcome.status);
  EXPECT_EQ(outcome.text, "he\xc3\xa9llo");
  EXPECT_EQ(outcome.prompt_tokens, 1000U);
  EXPECT_EQ(outcome.cached_tokens, 640U);
  EXPECT_EQ(outcome.completion_tokens, 7U);
  EXPECT_EQ(outcome.itl.size(), 1U);
  EXPECT_GT(outcome.ttft, Duration{0});
  EXPECT_LE(outcome.ttft, outcome.e2e);
  EXPECT_LE(outcome.e2e, all);
  EXPECT_EQ(outcome.tpot(), (outcome.e2e - outcome.ttft) / 6);

  EXPECT_EQ(asked.text, "a \"prompt\"\n");
  EXPECT_EQ(asked.tokens_max, 7U);
  EXPECT_EQ(asked.sampling.temperature, 0.5);
  EXPECT_EQ(asked.sampling.seed, 42U);
  EXPECT_EQ(asked.cache_salt, "salt");
  EXPECT_TRUE(asked.ignore_eos);
}

TEST(ServeClientTest, TimesCountFromWhenTheRequestWasDueToItsTokens) {
  ApiHarness harness;
  constexpr Duration kLate = std::chrono::seconds(100);
  ServeOutcome outcome;
  const ServeClient client(harness.server->address(), "scripted");
  Thread asker("asker", [&] { outcome = client.Ask({.prompt = "x"}, Now() - kLate); });
  const auto one = harness.generator.Take();
  ASSERT_NE(one, nullptr);
  one->sink->OnPrompt({.prompt_tokens = 1});
  one->sink->OnTokens("a", 1);
  const TimePoint first = Now();
  StopFlag never;
  never.WaitFor(std::chrono::milliseconds(20));  // what is measured, not what is waited for
  const TimePoint second = Now();
  one->sink->OnTokens("b", 1);
  one->sink->OnFinish(FinishReason::kLength);
  asker.Join();
  ASSERT_TRUE(outcome.status.ok()) << TextOf(outcome.status);
  EXPECT_GE(outcome.ttft, kLate);
  EXPECT_GE(outcome.e2e, kLate + (second - first));
  EXPECT_EQ(outcome.text, "ab");
}

TEST(ServeClientTest, AnAnswerOfBytesThatAreNoTextHasATtft) {
  ApiHarness harness;
  harness.generator.SetAtOnce([](ScriptedGeneration* one) {
    one->sink->OnPrompt({.prompt_tokens = 1});
    one->sink->OnTokens("", 1);
    one->sink->OnFinish(FinishReason::kLength);
  });
  const ServeOutcome outcome = Ask(harness, {.prompt = "x"});
  ASSERT_TRUE(outcome.status.ok()) << TextOf(outcome.status);
  EXPECT_EQ(outcome.text, "");
  EXPECT_GT(outcome.ttft, Duration{0});
  EXPECT_EQ(outcome.tpot(), Duration{0});
}

TEST(ServeClientTest, RefusalsSayTheirTextAndKind) {
  ApiHarness harness;
  ServeOutcome outcome = Ask(harness, {.prompt = std::string(2000, 'x')});
  EXPECT_EQ(outcome.status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(TextOf(outcome.status), HasSubstr("HTTP 400"));
  EXPECT_THAT(TextOf(outcome.status), HasSubstr("context"));
  harness.generator.SetRefusal(Error(StatusCode::kResourceExhausted, "the queue is full"));
  outcome = Ask(harness, {.prompt = "x"});
  EXPECT_EQ(outcome.status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(TextOf(outcome.status), HasSubstr("the queue is full"));
  harness.generator.SetRefusal(Error(StatusCode::kUnavailable, "nobody is there"));
  EXPECT_EQ(Ask(harness, {.prompt = "x"}).status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(ServeClient("127.0.0.1:1", "m").Ask({.prompt = "x"}, Now()).status.code(),
            StatusCode::kUnavailable);
}

TEST(ServeClientTest, AStreamThatBreaksIsAnError) {
  ApiHarness harness;
  harness.generator.SetAtOnce([](ScriptedGeneration* one) {
    one->sink->OnPrompt({.prompt_tokens = 1});
    one->sink->OnTokens("so far", 6);
    one->sink->OnError(Error(StatusCode::kUnavailable, "the worker was lost"));
  });
  const ServeOutcome outcome = Ask(harness, {.prompt = "x"});
  EXPECT_EQ(outcome.status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(TextOf(outcome.status), HasSubstr("the stream broke: "));
}

// Streams of a server that breaks the protocol.
TEST(ServeClientTest, AStreamThatIsNoneIsAnError) {
  const std::string text = "data: {\"choices\": [{\"text\": \"a\", \"finish_reason\": null}]}\n\n";
  const std::string usage =
      "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 1, \"completion_tokens\": 1}}\n\n";
  const std::string done = "data: [DONE]\n\n";
  const std::pair<std::string, StatusCode> cases[] = {
      {text + usage + done, StatusCode::kOk},
      {text + usage, StatusCode::kUnavailable},
      {text + done, StatusCode::kInternal},
      {usage + done, StatusCode::kInternal},
      {"event: x\n\n", StatusCode::kInternal},
      {"data: [1, 2]\n\n", StatusCode::kInternal},
      {"data: {\"choices\": [7], \"usage\": 3}\n\n" + done, StatusCode::kInternal},
      {"data: " + std::string(2'000'000, 'x'), StatusCode::kInternal}};
  for (const auto& [body, code] : cases) {
    const testing::HttpScript server([&body = body](const testing::ScriptRequest&) {
      return testing::ScriptReply{.bytes = "HTTP/1.1 200 OK\r\n\r\n" + body,
                                  .end = testing::ScriptReply::End::kClose};
    });
    const ServeClient client("127.0.0.1:" + std::to_string(server.port()), "m");
    EXPECT_EQ(client.Ask({.prompt = "x"}, Now()).status.code(), code) << body.substr(0, 80);
  }
}

TEST(ServeClientTest, TheModelIsTheOneThatIsServed) {
  const ApiHarness harness;
  const auto model = ServedModel(harness.server->address(), std::chrono::seconds(10));
  ASSERT_TRUE(model.ok()) << ToString(model.status());
  EXPECT_EQ(*model, "scripted");
  const testing::HttpScript other([](const testing::ScriptRequest&) {
    return testing::Reply(200, {}, "{\"data\": [{\"id\": 5}]}");
  });
  EXPECT_EQ(ServedModel("127.0.0.1:" + std::to_string(other.port()), std::chrono::seconds(10))
                .status()
                .code(),
            StatusCode::kInternal);
}

}  // namespace
}  // namespace ems::bench
