// What must hold: routes, limits and refusals of the API, over real sockets.
#include "pdc/api/api_server.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/pdc/api/api_harness.h"

namespace ems::pdc::api {
namespace {

using nlohmann::json;
using testing::AskHttp;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HttpAnswer;
using ::testing::Not;
using ::testing::StartsWith;
using testing::WirePeer;

constexpr const char* kText = "/v1/completions";
constexpr const char* kChat = "/v1/chat/completions";

json ErrorOfAnswer(const HttpAnswer& answer) { return json::parse(answer.body)["error"]; }

TEST(ApiServerTest, HandsOverWhatWasAskedFor) {
  ApiHarness api;
  WirePeer peer = api.Begin(
      kText, TextBody(R"("temperature": 0, "top_p": 0.5, "seed": 7, "stop": "x", "user": "u",
                         "cache_salt": "s", "ignore_eos": true)"));
  auto generation = api.generator.Take();
  ASSERT_NE(generation, nullptr);
  const GenerateRequest& request = generation->request;
  EXPECT_THAT(request.id, ::testing::StartsWith("cmpl-"));
  EXPECT_EQ(request.model, "scripted");
  EXPECT_EQ(request.text, "hello");
  EXPECT_EQ(request.tokens_max, 50u);
  EXPECT_EQ(request.sampling.temperature, 0);
  EXPECT_EQ(request.sampling.top_p, 0.5);
  EXPECT_EQ(request.sampling.seed, 7u);
  EXPECT_THAT(request.stop, ElementsAre("x"));
  EXPECT_EQ(request.user, "u");
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_GT(request.deadline.Remaining(), std::chrono::minutes(9));
  generation->sink->OnFinish(FinishReason::kStop);
  EXPECT_EQ(ApiHarness::End(&peer).status, 200);

  WirePeer chat = api.Begin(kChat, ChatBody(), "X-Request-Timeout-Ms: 30000\r\n");
  generation = api.generator.Take();
  ASSERT_NE(generation, nullptr);
  EXPECT_EQ(generation->request.text,
            "\xFDuser\xFEhello\xFF\xFD"
            "assistant\xFE");
  EXPECT_THAT(generation->request.stop, ElementsAre("\xFF"));
  EXPECT_LE(generation->request.deadline.Remaining(), std::chrono::seconds(30));
  // The rest of the context.
  EXPECT_EQ(generation->request.tokens_max, 1000 - generation->request.text.size());
  generation->sink->OnFinish(FinishReason::kStop);
  EXPECT_EQ(ApiHarness::End(&chat).status, 200);

  WirePeer tokens = api.Begin(kText, R"({"model": "scripted", "prompt": [1, 299]})");
  generation = api.generator.Take();
  ASSERT_NE(generation, nullptr);
  EXPECT_THAT(generation->request.tokens, ElementsAre(1u, 299u));
  EXPECT_EQ(generation->request.text, "");
  EXPECT_EQ(generation->request.tokens_max, 16u);
  generation->sink->OnFinish(FinishReason::kStop);
  EXPECT_EQ(ApiHarness::End(&tokens).status, 200);
}

TEST(ApiServerTest, ShowsAPageThatRunsNothingOfOthers) {
  ApiHarness api;
  const HttpAnswer page = api.Get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.body, HasSubstr("<title>EMS serving loop</title>"));
  for (const char* header :
       {"Content-Type: text/html; charset=utf-8", "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff", "Referrer-Policy: no-referrer", "X-Frame-Options: DENY"})
    EXPECT_THAT(page.head, HasSubstr(fmt::format("\r\n{}\r\n", header)));
  const std::string policy = page.head.substr(page.head.find("Content-Security-Policy: "));
  EXPECT_THAT(policy,
              StartsWith("Content-Security-Policy: default-src 'none'; script-src 'sha256-"));
  for (const char* source : {"http:", "https:", "unsafe", "*"})
    EXPECT_THAT(policy.substr(0, policy.find("\r\n")), Not(HasSubstr(source)));
}

TEST(ApiServerTest, ListsModels) {
  ApiHarness api;
  const json list = json::parse(api.Get("/v1/models").body);
  ASSERT_EQ(list["data"].size(), 2u);
  EXPECT_EQ(list["data"][0], json::parse(R"({"id": "scripted", "object": "model",
      "created": 1700000000, "owned_by": "ems", "max_model_len": 1000})"));
  EXPECT_EQ(json::parse(api.Get("/v1/models/scripted").body)["id"], "scripted");
  EXPECT_EQ(json::parse(api.Get("/v1/models/org%2Fother").body)["id"], "org/other");
  EXPECT_EQ(json::parse(api.Get("/v1/models/org/other").body)["id"], "org/other");
  const HttpAnswer unknown = api.Get("/v1/models/nope%2");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(ErrorOfAnswer(unknown)["code"], "model_not_found");
}

TEST(ApiServerTest, ServesHealthReadinessAndMetrics) {
  ApiHarness api;
  EXPECT_EQ(api.Get("/healthz").body, "ok\n");
  EXPECT_EQ(api.Get("/readyz").status, 200);
  api.generator.SetReady(Error(StatusCode::kUnavailable, "no decode worker"));
  const HttpAnswer unready = api.Get("/readyz");
  EXPECT_EQ(unready.status, 503);
  EXPECT_THAT(unready.body, HasSubstr("no decode worker"));
  EXPECT_EQ(api.Get("/healthz").status, 200);
  const HttpAnswer metrics = api.Get("/metrics");
  EXPECT_THAT(metrics.head, HasSubstr("version=0.0.4"));
  EXPECT_THAT(metrics.body,
              HasSubstr("ems_pdc_http_requests_total{code=\"200\",path=\"/healthz\"} 2"));
  EXPECT_EQ(AskHttp(api.server->address(), "HEAD", "/healthz").body, "");
}

TEST(ApiServerTest, RefusesWhatIsNotThereOrNotAllowed) {
  ApiHarness api;
  EXPECT_EQ(ErrorOfAnswer(api.Get("/v2"))["code"], "unknown_url");
  EXPECT_EQ(api.Get("/nowhere").status, 404);
  const HttpAnswer method = api.Get(kText);
  EXPECT_EQ(method.status, 405);
  EXPECT_THAT(method.head, HasSubstr("Allow: POST\r\n"));
  const HttpAnswer post = api.Post("/v1/models", "{}");
  EXPECT_EQ(post.status, 405);
  EXPECT_THAT(post.head, HasSubstr("Allow: GET, HEAD\r\n"));
  EXPECT_EQ(AskHttp(api.server->address(), "DELETE", "/v1/models/scripted").status, 405);
  EXPECT_TRUE(api.Shows("http_requests_total{code=\"404\",path=\"other\"} 2"));
}

TEST(ApiServerTest, RefusesBadBodies) {
  ApiHarness api;
  EXPECT_EQ(ErrorOfAnswer(api.Post(kText, "{"))["code"], "invalid_json");
  EXPECT_EQ(ErrorOfAnswer(api.Post(kText, TextBody("\"n\": 2")))["param"], "n");
  const HttpAnswer unknown = api.Post(kChat, R"({"model": "gpt-5", "messages":
      [{"role": "user", "content": "hi"}]})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(ErrorOfAnswer(unknown)["code"], "model_not_found");
  EXPECT_THAT(ErrorOfAnswer(unknown)["message"].get<std::string>(), HasSubstr("gpt-5"));
  WirePeer form = WirePeer::Connect(api.server->address());
  ASSERT_TRUE(
      form.Send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                "Content-Type: application/x-www-form-urlencoded\r\n"
                "Content-Length: 2\r\n\r\n{}"));
  EXPECT_EQ(ApiHarness::End(&form).status, 415);
  for (const std::string ms : {"0", "x", "-1", "600001", "1.5"}) {
    EXPECT_EQ(api.Post(kText, TextBody(), "X-Request-Timeout-Ms: " + ms + "\r\n").status, 400)
        << ms;
  }
}

TEST(ApiServerTest, RefusesWhatTheContextDoesNotHold) {
  ApiHarness api({.prompt_tokens_max = 900, .completion_tokens_max = 60});
  auto code = [&](const std::string& body) {
    return ErrorOfAnswer(api.Post(kText, body))["code"].get<std::string>();
  };
  auto small = [](const std::string& prompt, int tokens) {
    return R"({"model": "org/other", "prompt": )" + prompt + R"(, "max_tokens": )" +
           std::to_string(tokens) + "}";
  };
  const std::string too_long = "context_length_exceeded";
  EXPECT_EQ(code(small("\"0123456789\"", 1)), too_long);
  EXPECT_EQ(code(small("\"01234567\"", 3)), too_long);
  EXPECT_EQ(code(small("[1, 2, 3, 4, 5, 6, 7, 8]", 3)), too_long);
  EXPECT_EQ(code(small("[256]", 3)), "invalid_value");
  EXPECT_EQ(code(R"({"model": "scripted", "prompt": "x", "max_tokens": 61})"), too_long);
  EXPECT_EQ(code(R"({"model": "scripted", "prompt": ")" + std::string(901, 'x') + "\"}"), too_long);
  WirePeer peer = api.Begin(kText, small("\"01234567\"", 2));
  auto generation = api.generator.Take();
  ASSERT_NE(generation, nullptr);
  generation->sink->OnFinish(FinishReason::kLength);
  EXPECT_EQ(ApiHarness::End(&peer).status, 200);
}

TEST(ApiServerTest, RefusesTooManyBytesAndTooManyRequests) {
  ApiHarness api({.requests_max = 1, .body_bytes_max = 1000});
  const HttpAnswer too_long =
      api.Post(kText, TextBody("\"x\": \"" + std::string(1000, 'x') + "\""));
  EXPECT_EQ(too_long.status, 413);
  EXPECT_THAT(ErrorOfAnswer(too_long)["message"].get<std::string>(), HasSubstr("1000 bytes"));
  WirePeer first = api.Begin(kText, TextBody());
  auto generation = api.generator.Take();
  ASSERT_NE(generation, nullptr);
  const HttpAnswer second = api.Post(kText, TextBody());
  EXPECT_EQ(second.status, 429);
  EXPECT_THAT(second.head, HasSubstr("Retry-After: 1\r\n"));
  generation->sink->OnFinish(FinishReason::kStop);
  EXPECT_EQ(ApiHarness::End(&first).status, 200);
  WirePeer third = api.Begin(kText, TextBody());
  generation = api.generator.Take();
  ASSERT_NE(generation, nullptr);
  generation->sink->OnFinish(FinishReason::kStop);
  EXPECT_EQ(ApiHarness::End(&third).status, 200);
}

TEST(ApiServerTest, StoppingEndsWhatIsInHandAndCancelsTheRest) {
  ApiHarness api;
  WirePeer ends = api.Begin(kText, TextBody());
  auto generation = api.generator.Take();
  ASSERT_NE(generation, nullptr);
  Thread stopper("stopper", [&api] { api.server->Stop(std::chrono::seconds(10)); });
  generation->sink->OnFinish(FinishReason::kStop);
  EXPECT_EQ(ApiHarness::End(&ends).status, 200);
  stopper.Join();

  ApiHarness hasty;
  WirePeer waits = hasty.Begin(kText, TextBody());
  generation = hasty.generator.Take();
  ASSERT_NE(generation, nullptr);
  hasty.server.reset();
  EXPECT_TRUE(generation->cancelled.IsSet());
  EXPECT_TRUE(waits.WaitClosed());
  // Its last word comes after the server.
  generation->sink->OnError(Error(StatusCode::kCancelled, "cancelled"));
  EXPECT_TRUE(hasty.Shows("num_requests_waiting{model_name=\"scripted\"} 0"));
}

TEST(ApiServerTest, BadAddressesAreErrors) {
  MetricsRegistry metrics;
  testing::ScriptedGenerator generator;
  EXPECT_EQ(ApiServer::Start({.listen = "nonsense"}, &generator, &metrics).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::pdc::api
