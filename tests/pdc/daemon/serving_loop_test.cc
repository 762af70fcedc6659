// What must hold: the loop answers over HTTP, whole or in parts, with the same tokens; each part
// says when it would serve; a configuration that cannot be is refused; a stop lets what is in hand
// end, here or elsewhere.
#include "pdc/daemon/serving_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/thread_pool.h"
#include "tests/pdc/daemon/loop_testing.h"
#include "tests/support/eventually.h"
#include "tests/support/http_client.h"

namespace ems::pdc {
namespace {

using ems::testing::AskHttp;
using ems::testing::Eventually;
using ems::testing::HttpAnswer;
using ems::testing::HttpText;
using ems::testing::ReadHttpAnswer;
using ems::testing::WirePeer;
using std::chrono::seconds;
using test::TinyLoop;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr Duration kPatience = seconds(30);

std::string Ask(const std::string& prompt, int tokens, bool stream = false,
                const std::string& model = "ems-tiny") {
  return nlohmann::json{{"model", model},     {"prompt", prompt}, {"max_tokens", tokens},
                        {"ignore_eos", true}, {"seed", 5},        {"stream", stream},
                        {"temperature", 0.8}}
      .dump();
}

// The text of a whole answer; how it failed otherwise.
std::string TextOf(const HttpAnswer& answer) {
  const auto body = nlohmann::json::parse(answer.body, nullptr, false);
  if (answer.status != 200 || body.is_discarded()) return "failed: " + answer.body;
  return body["choices"][0]["text"];
}

// One generation as a stream, held open.
class Stream {
 public:
  Stream(const std::string& address, const std::string& body) : peer_(WirePeer::Connect(address)) {
    EXPECT_TRUE(peer_.Send(HttpText("POST", "/v1/completions", body)));
  }
  // The first event has come.
  bool HasBegun() {
    while (head_.find("data: ") == std::string::npos) {
      const auto byte = peer_.Receive(1, kPatience);
      if (!byte) return false;
      head_ += *byte;
    }
    return true;
  }
  HttpAnswer Rest() { return ReadHttpAnswer(head_ + peer_.ReceiveAll(kPatience).value_or("")); }

 private:
  WirePeer peer_;
  std::string head_;
};

std::string TextOfEvents(const std::string& body) {
  std::string text;
  size_t at = 0;
  while ((at = body.find("data: {", at)) != std::string::npos) {
    at += 6;
    const auto event =
        nlohmann::json::parse(body.substr(at, body.find("\n\n", at) - at), nullptr, false);
    if (event.is_discarded() || event.contains("error")) return "failed: " + body.substr(at);
    for (const auto& choice : event["choices"]) text += std::string(choice["text"]);
  }
  return text;
}

class ServingLoopTest : public ::testing::Test {
 protected:
  ServingLoopTest() { std::filesystem::create_directories(folder_); }
  ~ServingLoopTest() override {
    loops_.clear();
    std::filesystem::remove_all(folder_);
  }
  ServingLoop* Start(const std::vector<std::string>& more) {
    auto loop = ServingLoop::Start(TinyLoop(more));
    EXPECT_TRUE(loop.ok()) << loop.status();
    if (!loop.ok()) return nullptr;
    loops_.push_back(*std::move(loop));
    return loops_.back().get();
  }
  // Where a part's calls are taken, known before it starts.
  std::string CallsOf(const std::string& name) const { return "unix:" + folder_ + "/" + name; }
  ServingLoop* StartPrefill(const std::string& name) {
    return Start({"role=prefill", "name=" + name, "listen=" + CallsOf(name),
                  "unix_path=" + folder_ + "/" + name + ".rings"});
  }
  ServingLoop* StartDecode(const std::string& name, const std::string& prefills) {
    return Start(
        {"role=decode", "name=" + name, "listen=" + CallsOf(name), "prefill_peers=" + prefills});
  }
  ServingLoop* StartRouter(const std::string& decodes) {
    return Start({"role=router", "decode_peers=" + decodes});
  }
  static bool IsReady(ServingLoop* loop) {
    return Eventually([&] { return loop->Ready().ok(); }, kPatience);
  }
  // What a loop in one process answers.
  std::string Reference(const std::string& prompt, int tokens) {
    auto loop = ServingLoop::Start(TinyLoop());
    EXPECT_TRUE(loop.ok()) << loop.status();
    return TextOf(AskHttp((*loop)->http_address(), "POST", "/v1/completions", Ask(prompt, tokens)));
  }
  static int StatusOf(const ServingLoop* loop, const char* path) {
    return AskHttp(loop->http_address(), "GET", path).status;
  }

  const std::string folder_ = fmt::format("/tmp/ems-loop-{}", ::getpid());
  std::vector<std::unique_ptr<ServingLoop>> loops_;
};

TEST_F(ServingLoopTest, OneProcessServesAll) {
  ServingLoop* const loop = Start({"prefill.workers=2", "decode.workers=2"});
  ASSERT_NE(loop, nullptr);
  EXPECT_EQ(loop->Ready(), OkStatus());
  EXPECT_EQ(loop->address(), "");
  EXPECT_EQ(StatusOf(loop, "/healthz"), 200);
  EXPECT_EQ(StatusOf(loop, "/readyz"), 200);
  const auto ask = [&] {
    return TextOf(AskHttp(loop->http_address(), "POST", "/v1/completions", Ask("the sea", 60)));
  };
  const std::string text = ask();
  EXPECT_EQ(text.find("failed"), std::string::npos) << text;
  EXPECT_EQ(ask(), text);
  const std::string metrics = AskHttp(loop->http_address(), "GET", "/metrics").body;
  for (const char* worker : {"prefill-0", "prefill-1", "decode-0", "decode-1"})
    EXPECT_THAT(metrics, HasSubstr(fmt::format("free_blocks{{worker=\"{}\"}}", worker)));
  EXPECT_THAT(metrics, HasSubstr("link=\"prefill-1:decode-0\""));
}

TEST_F(ServingLoopTest, PartsAnswerAsOneProcessAndSayWhenTheyAreReady) {
  ServingLoop* const router = StartRouter(CallsOf("d"));
  ASSERT_NE(router, nullptr);
  EXPECT_EQ(router->Ready().code(), StatusCode::kUnavailable);
  EXPECT_EQ(StatusOf(router, "/healthz"), 200);
  EXPECT_EQ(StatusOf(router, "/readyz"), 503);
  ServingLoop* const decode = StartDecode("d", CallsOf("p"));
  ASSERT_NE(decode, nullptr);
  EXPECT_EQ(decode->Ready().code(), StatusCode::kUnavailable);
  EXPECT_EQ(StatusOf(decode, "/readyz"), 503);
  EXPECT_TRUE(Eventually(
      [&] { return ToString(router->Ready()).find("no prefill peer") != std::string::npos; },
      kPatience))
      << router->Ready();
  ServingLoop* const prefill = StartPrefill("p");
  ASSERT_NE(prefill, nullptr);
  EXPECT_EQ(prefill->Ready(), OkStatus());
  ASSERT_TRUE(IsReady(decode)) << decode->Ready();
  ASSERT_TRUE(IsReady(router)) << router->Ready();
  EXPECT_EQ(StatusOf(decode, "/readyz"), 200);
  EXPECT_EQ(StatusOf(router, "/readyz"), 200);

  const HttpAnswer answer =
      AskHttp(router->http_address(), "POST", "/v1/completions", Ask("the sea", 60));
  EXPECT_EQ(TextOf(answer), Reference("the sea", 60));
  EXPECT_THAT(AskHttp(prefill->http_address(), "GET", "/metrics").body,
              HasSubstr("ems_pdc_handovers_total{link=\"all\"} 1\n"));
  EXPECT_THAT(
      AskHttp(decode->http_address(), "GET", "/metrics").body,
      HasSubstr(fmt::format("ems_pdc_decode_peer_healthy{{peer=\"{}\"}} 1\n", CallsOf("p"))));
}

TEST_F(ServingLoopTest, APartOfAnotherModelIsNotUsed) {
  ServingLoop* const decode = StartDecode("d", CallsOf("p"));
  ASSERT_NE(decode, nullptr);
  ASSERT_NE(Start({"role=prefill", "model.seed=2", "listen=" + CallsOf("p"),
                   "unix_path=" + folder_ + "/p.rings"}),
            nullptr);
  EXPECT_TRUE(Eventually([&] { return decode->Ready().code() == StatusCode::kFailedPrecondition; },
                         kPatience))
      << decode->Ready();
  EXPECT_THAT(ToString(decode->Ready()), HasSubstr("another model"));
}

TEST_F(ServingLoopTest, APartWithLessKvIsRefusedBeforeAnythingIsAsked) {
  // It would refuse a prompt that comes back with most of its answer.
  ServingLoop* const decode = StartDecode("d", CallsOf("p"));
  ASSERT_NE(decode, nullptr);
  ServingLoop* const router =
      Start({"role=router", "kv.bytes=8MiB", "patience_ms=100", "decode_peers=" + CallsOf("d")});
  ASSERT_NE(router, nullptr);
  ASSERT_NE(Start({"role=prefill", "kv.bytes=65536", "listen=" + CallsOf("p"),
                   "unix_path=" + folder_ + "/p.rings"}),
            nullptr);
  for (ServingLoop* const part : {decode, router}) {
    EXPECT_TRUE(Eventually(
        [&] { return ToString(part->Ready()).find("the same kv.bytes") != std::string::npos; },
        kPatience))
        << part->Ready();
  }
  const HttpAnswer answer =
      AskHttp(router->http_address(), "POST", "/v1/completions", Ask("the sea", 60));
  EXPECT_EQ(answer.status, 503) << answer.body;
}

TEST_F(ServingLoopTest, WhatCannotBeIsRefused) {
  std::ofstream(folder_ + "/torn.safetensors") << "no tensors";
  const struct {
    std::vector<std::string> more;
    StatusCode code;
    const char* says;
  } cases[] = {
      {{"role=router"}, StatusCode::kInvalidArgument, "decode_peers"},
      {{"role=decode"}, StatusCode::kInvalidArgument, "prefill_peers"},
      {{"role=prefill"}, StatusCode::kInvalidArgument, "unix_path"},
      {{"role=prefill", "unix_path=/tmp/x", "prefill.workers=2"},
       StatusCode::kInvalidArgument,
       "one process for each"},
      {{"role=decode", "prefill_peers=x:1", "decode.workers=2"},
       StatusCode::kInvalidArgument,
       "one process for each"},
      {{"model.file=" + folder_ + "/torn.safetensors", "model.ems=x"},
       StatusCode::kInvalidArgument,
       "both set"},
      {{"model.file=" + folder_ + "/torn.safetensors"}, StatusCode::kInvalidArgument, "torn"},
      {{"kv.bytes=65536", "kv.block_tokens=512"}, StatusCode::kInvalidArgument, "kv.bytes"},
      {{"role=router", "decode_peers=a:1 a:1"}, StatusCode::kInvalidArgument, "a:1"},
      {{"http_listen=999.1.1.1:0"}, StatusCode::kUnavailable, "999.1.1.1"},
  };
  for (const auto& [more, code, says] : cases) {
    const Status status = ServingLoop::Start(TinyLoop(more)).status();
    EXPECT_EQ(status.code(), code) << more[0] << ": " << status;
    EXPECT_THAT(ToString(status), HasSubstr(says)) << more[0];
  }
}

TEST_F(ServingLoopTest, AnAddressThatIsTakenIsSaid) {
  ServingLoop* const loop = Start({});
  ASSERT_NE(loop, nullptr);
  EXPECT_EQ(ServingLoop::Start(TinyLoop({"http_listen=" + loop->http_address()})).status().code(),
            StatusCode::kUnavailable);
}

TEST_F(ServingLoopTest, APromptThatFitsNowhereIsABadRequest) {
  ServingLoop* const loop = Start({"kv.bytes=65536"});  // some 14 blocks of 16 tokens
  ASSERT_NE(loop, nullptr);
  const HttpAnswer answer =
      AskHttp(loop->http_address(), "POST", "/v1/completions", Ask(std::string(1000, 'x'), 10));
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr("context_length_exceeded"));
}

TEST_F(ServingLoopTest, StopLetsRequestsInHandEnd) {
  ServingLoop* const loop = Start({});
  ASSERT_NE(loop, nullptr);
  const std::string address = loop->http_address();
  const std::string wanted = Reference("tell me", 700);
  Stream stream(address, Ask("tell me", 700, true));
  ASSERT_TRUE(stream.HasBegun());
  HttpAnswer answer;
  Thread reader("reader", [&] { answer = stream.Rest(); });
  loop->Stop(kPatience);
  reader.Join();
  EXPECT_THAT(answer.body, EndsWith("data: [DONE]\n\n"));
  EXPECT_EQ(TextOfEvents(answer.body), wanted);
  EXPECT_NE(AskHttp(address, "POST", "/v1/completions", Ask("more", 1)).status, 200);
}

TEST_F(ServingLoopTest, StopWithoutPatienceEndsThemWithAnError) {
  // Some seconds of answer at least.
  ServingLoop* const loop = Start({"model.preset=base", "kv.bytes=256MiB"});
  ASSERT_NE(loop, nullptr);
  Stream stream(loop->http_address(), Ask("tell me", 8000, true, "ems-base"));
  ASSERT_TRUE(stream.HasBegun());
  HttpAnswer answer;
  Thread reader("reader", [&] { answer = stream.Rest(); });
  loop->Stop(Duration::zero());
  reader.Join();
  EXPECT_EQ(answer.body.find("[DONE]"), std::string::npos);
  EXPECT_THAT(answer.body, HasSubstr("\"error\""));
}

TEST_F(ServingLoopTest, ADecodePartThatStopsGivesItsRequestsToAnother) {
  ASSERT_NE(StartPrefill("p"), nullptr);
  auto first = ServingLoop::Start(
      TinyLoop({"role=decode", "listen=" + CallsOf("d0"), "prefill_peers=" + CallsOf("p")}));
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(IsReady(first->get()));
  ServingLoop* const router = StartRouter(CallsOf("d0") + " " + CallsOf("d1"));
  ASSERT_NE(router, nullptr);
  ASSERT_TRUE(IsReady(router));
  Stream stream(router->http_address(), Ask("tell me", 700, true));
  ASSERT_TRUE(stream.HasBegun());
  ServingLoop* const second = StartDecode("d1", CallsOf("p"));
  ASSERT_NE(second, nullptr);
  (*first)->Stop(kPatience);
  first->reset();
  EXPECT_EQ(TextOfEvents(stream.Rest().body), Reference("tell me", 700));
}

}  // namespace
}  // namespace ems::pdc
