// What must hold: what the generator says becomes the answer; a client that leaves, is late or has
// enough cancels it; one last word, and everything that was taken is given back.
#include "pdc/api/completion_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pdc/api/api_harness.h"

namespace ems::pdc::api {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::HttpAnswer;
using ::testing::Not;
using testing::ScriptedGeneration;
using testing::WirePeer;

constexpr Duration kPatience = std::chrono::seconds(10);
constexpr const char* kText = "/v1/completions";
constexpr const char* kChat = "/v1/chat/completions";

void Say(const std::shared_ptr<ScriptedGeneration>& generation,
         const std::vector<std::string>& steps) {
  generation->sink->OnPrompt({.prompt_tokens = 5, .cached_tokens = 4});
  for (const std::string& step : steps) generation->sink->OnTokens(step, 1);
}

std::string Reason(const std::string& reason) {
  return "request_success_total{finished_reason=\"" + reason + "\",model_name=\"scripted\"} ";
}

TEST(CompletionJobTest, AWholeAnswerWithUsage) {
  ApiHarness api;
  WirePeer peer = api.Begin(kText, TextBody());
  auto generation = api.generator.Take();
  ASSERT_NE(generation, nullptr);
  EXPECT_TRUE(api.Shows("num_requests_waiting{model_name=\"scripted\"} 1"));
  Say(generation, {"a\xC3", "\xA4", "\xE2\x82"});
  EXPECT_TRUE(api.Shows("num_requests_running{model_name=\"scripted\"} 1"));
  generation->sink->OnFinish(FinishReason::kLength);
  const HttpAnswer answer = ApiHarness::End(&peer);
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.head, HasSubstr("X-Request-Id: cmpl-"));
  const json body = json::parse(answer.body);
  EXPECT_EQ(body["choices"][0]["text"], "a\xC3\xA4\xEF\xBF\xBD");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
  EXPECT_TRUE(api.Shows("num_requests_running{model_name=\"scripted\"} 0"));
  EXPECT_TRUE(api.Shows(Reason("length") + "1"));
  EXPECT_TRUE(api.Shows("prefix_cache_hits_total{model_name=\"scripted\"} 4"));
}

TEST(CompletionJobTest, AStreamIsSentAsItComes) {
  ApiHarness api;
  WirePeer peer =
      api.Begin(kChat, ChatBody(R"("stream": true, "stream_options": {"include_usage": true})"));
  auto generation = api.generator.Take();
  ASSERT_NE(generation, nullptr);
  Say(generation, {"one"});
  // The first token is on its way before there is a second one.
  std::string begun;
  while (begun.find("one") == std::string::npos) {
    const auto byte = peer.Receive(1);
    ASSERT_TRUE(byte.has_value());
    begun += *byte;
  }
  generation->sink->OnTokens(" two", 1);
  generation->sink->OnFinish(FinishReason::kStop);
  const HttpAnswer answer = testing::ReadHttpAnswer(begun + peer.ReceiveAll().value_or(""));
  EXPECT_TRUE(answer.whole);
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: text/event-stream"));
  const std::vector<json> events = EventsOf(answer.body);
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(events[1]["choices"][0]["delta"]["content"], "one");
  EXPECT_EQ(events[2]["choices"][0]["delta"]["content"], " two");
  EXPECT_EQ(events[3]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(events[4]["usage"]["completion_tokens"], 2);
  EXPECT_EQ(events[5], "[DONE]");
}

TEST(CompletionJobTest, AStopStringEndsItAndCancelsTheRest) {
  for (const bool stream : {false, true}) {
    ApiHarness api;
    WirePeer peer = api.Begin(kText, TextBody(std::string(R"("stop": ["END", "zz"], "stream": )") +
                                              (stream ? "true" : "false")));
    auto generation = api.generator.Take();
    ASSERT_NE(generation, nullptr);
    Say(generation, {"text E", "N", "D more", "late"});
    EXPECT_TRUE(generation->cancelled.WaitFor(kPatience));  // once Start has given the handle
    const HttpAnswer answer = ApiHarness::End(&peer);
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(answer.whole);
    EXPECT_THAT(answer.body, HasSubstr("\"text \""));
    EXPECT_THAT(answer.body, HasSubstr("\"stop\""));
    for (const char* leaked : {"E\"", "END", "more", "late"}) {
      EXPECT_THAT(answer.body, Not(HasSubstr(leaked)));
    }
    // It counts as running until the generator releases it.
    EXPECT_TRUE(api.Shows("num_requests_running{model_name=\"scripted\"} 1"));
    generation->sink->OnError(Error(StatusCode::kCancelled, "cancelled"));
    EXPECT_TRUE(api.Shows("num_requests_running{model_name=\"scripted\"} 0"));
    EXPECT_TRUE(api.Shows(Reason("stop") + "1"));
    EXPECT_TRUE(api.Shows(Reason("abort") + "0"));
  }
}

TEST(CompletionJobTest, AClientThatLeavesCancels) {
  for (const bool stream : {false, true}) {
    ApiHarness api;
    WirePeer peer = api.Begin(kText, TextBody(stream ? R"("stream": true)" : R"("stream": false)"));
    auto generation = api.generator.Take();
    ASSERT_NE(generation, nullptr);
    Say(generation, {"a"});
    EXPECT_FALSE(generation->cancelled.IsSet());
    peer.Close();
    EXPECT_TRUE(generation->cancelled.WaitFor(kPatience));
    generation->sink->OnTokens("late", 1);
    generation->sink->OnError(Error(StatusCode::kCancelled, "cancelled"));
    EXPECT_TRUE(api.Shows(Reason("abort") + "1"));
    EXPECT_TRUE(api.Shows("num_requests_running{model_name=\"scripted\"} 0"));
  }
}

TEST(CompletionJobTest, ADeadlineEndsBothKindsWithAnError) {
  ApiHarness api;
  const std::string header = "X-Request-Timeout-Ms: 1\r\n";
  WirePeer whole = api.Begin(kText, TextBody(), header);
  auto generation = api.generator.Take();
  ASSERT_NE(generation, nullptr);
  EXPECT_TRUE(generation->cancelled.WaitFor(kPatience));
  generation->sink->OnError(Error(StatusCode::kCancelled, "cancelled"));
  const HttpAnswer late = ApiHarness::End(&whole);
  EXPECT_EQ(late.status, 504);
  EXPECT_EQ(json::parse(late.body)["error"]["code"], "deadline_exceeded");

  WirePeer stream = api.Begin(kText, TextBody(R"("stream": true)"), header);
  generation = api.generator.Take();
  ASSERT_NE(generation, nullptr);
  Say(generation, {"a"});
  EXPECT_TRUE(generation->cancelled.WaitFor(kPatience));
  generation->sink->OnError(Error(StatusCode::kDeadlineExceeded, "too late"));
  const HttpAnswer cut = ApiHarness::End(&stream);
  const std::vector<json> events = EventsOf(cut.body);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1]["error"]["code"], "deadline_exceeded");
  EXPECT_TRUE(cut.whole);
  EXPECT_TRUE(api.Shows(Reason("error") + "2"));
}

TEST(CompletionJobTest, ErrorsHaveTheirStatusUntilTheStreamBegins) {
  ApiHarness api;
  const std::vector<std::pair<Status, int>> table = {
      {Error(StatusCode::kUnavailable, "no worker"), 503},
      {Error(StatusCode::kResourceExhausted, "no room"), 429},
      {Error(StatusCode::kInternal, "secret"), 500},
      {Error(StatusCode::kDataLoss, "secret"), 500},
      {Error(StatusCode::kCancelled, "stopping"), 503},
  };
  for (const auto& [why, status] : table) {
    WirePeer peer = api.Begin(kText, TextBody(R"("stream": true)"));
    auto generation = api.generator.Take();
    ASSERT_NE(generation, nullptr);
    generation->sink->OnPrompt({});
    generation->sink->OnError(why);
    const HttpAnswer answer = ApiHarness::End(&peer);
    EXPECT_EQ(answer.status, status);
    EXPECT_THAT(answer.body, Not(HasSubstr("secret")));
  }
  WirePeer peer = api.Begin(kText, TextBody(R"("stream": true)"));
  auto generation = api.generator.Take();
  ASSERT_NE(generation, nullptr);
  Say(generation, {"a"});
  generation->sink->OnError(Error(StatusCode::kUnavailable, "worker lost"));
  const HttpAnswer answer = ApiHarness::End(&peer);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(EventsOf(answer.body).back()["error"]["message"], "worker lost");
}

TEST(CompletionJobTest, AFullQueueIs429) {
  ApiHarness api;
  api.generator.SetRefusal(Error(StatusCode::kResourceExhausted, "64 requests are waiting"));
  const HttpAnswer answer = api.Post(kText, TextBody());
  EXPECT_EQ(answer.status, 429);
  EXPECT_THAT(answer.head, HasSubstr("Retry-After: 1\r\n"));
  EXPECT_EQ(json::parse(answer.body)["error"]["type"], "rate_limit_error");
  EXPECT_TRUE(api.Shows("num_requests_waiting{model_name=\"scripted\"} 0"));
}

TEST(CompletionJobTest, AGeneratorThatSaysAllAtOnceIsFine) {
  ApiHarness api;
  api.generator.SetAtOnce([](ScriptedGeneration* generation) {
    generation->sink->OnTokens("first STOP", 3);
    EXPECT_FALSE(generation->cancelled.IsSet());  // there is no handle yet
    generation->sink->OnError(Error(StatusCode::kCancelled, "cancelled"));
  });
  const HttpAnswer answer = api.Post(kText, TextBody(R"("stop": "STOP")"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(json::parse(answer.body)["choices"][0]["text"], "first ");
}

TEST(CompletionJobTest, AGenerationThatIsDroppedIsAnError) {
  ApiHarness api;
  WirePeer peer = api.Begin(kText, TextBody());
  {
    auto generation = api.generator.Take();
    ASSERT_NE(generation, nullptr);
    generation->sink.reset();
  }
  EXPECT_EQ(ApiHarness::End(&peer).status, 500);
  EXPECT_TRUE(api.Shows("num_requests_waiting{model_name=\"scripted\"} 0"));
}

}  // namespace
}  // namespace ems::pdc::api
