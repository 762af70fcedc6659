#pragma once
// A router over scripted decode workers, and its clients.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/metrics.h"
#include "pdc/router/prompt_tokens.h"
#include "pdc/router/request_router.h"
#include "tests/support/recorded_generation.h"
#include "tests/support/scripted_decode_peer.h"

namespace ems::pdc {

struct RouterClient {
  std::shared_ptr<testing::RecordedGeneration> sink =
      std::make_shared<testing::RecordedGeneration>();
  std::shared_ptr<api::Generation> generation{};
};

inline RequestRouterOptions QuickOptions() {
  return {.failover_patience = std::chrono::minutes(1), .heartbeat = std::chrono::milliseconds(1)};
}

class RouterTestBase : public ::testing::Test {
 protected:
  using Attempt = testing::ScriptedDecodePeer::Attempt;

  // Workers are called "d0", "d1", …; how much KV each has room for, 0: it does not say.
  void Make(const std::vector<uint64_t>& kv_tokens_max,
            const RequestRouterOptions& options = QuickOptions()) {
    std::vector<std::shared_ptr<DecodePeer>> doors;
    for (const uint64_t tokens : kv_tokens_max) {
      peers.push_back(std::make_shared<testing::ScriptedDecodePeer>(
          "d" + std::to_string(peers.size()), tokens));
      doors.push_back(peers.back());
    }
    auto made = RequestRouter::Create(options, Model(), std::move(doors), &registry);
    ASSERT_TRUE(made.ok()) << ToString(made.status());
    router = *std::move(made);
  }
  static api::ModelInfo Model() {
    return {.name = "m", .context_tokens_max = 4096, .vocabulary = kTokens};
  }
  static api::GenerateRequest Asking(const std::string& text, uint64_t tokens_max = 16) {
    api::GenerateRequest request;
    request.id = "cmpl-1";
    request.model = "m";
    request.text = text;
    request.tokens_max = tokens_max;
    request.sampling.seed = 7;
    return request;
  }
  RouterClient Ask(api::GenerateRequest request) {
    RouterClient client;
    Start(std::move(request), &client);
    return client;
  }
  void Start(api::GenerateRequest request, RouterClient* client) {
    auto started = router->Start(std::move(request), client->sink);
    ASSERT_TRUE(started.ok()) << ToString(started.status());
    client->generation = *std::move(started);
  }
  StatusCode Refusal(api::GenerateRequest request) {
    return router->Start(std::move(request), std::make_shared<testing::RecordedGeneration>())
        .status()
        .code();
  }
  // The router has been through its loop, and has done what could be done.
  void Settle() {
    for (const auto& peer : peers) ASSERT_TRUE(peer->WaitLooks(3));
  }
  static std::vector<TokenId> Tokens(const std::string& text) { return {text.begin(), text.end()}; }
  static std::vector<TokenId> Prompt(const std::string& text, const std::string& answer = "") {
    std::vector<TokenId> tokens = PromptTokens(text);
    AppendTokens(answer, &tokens);
    return tokens;
  }
  static Status Gone() { return Error(StatusCode::kUnavailable, "gone"); }

  MetricsRegistry registry;
  std::vector<std::shared_ptr<testing::ScriptedDecodePeer>> peers;
  std::unique_ptr<RequestRouter> router;
};

// It ended so, and no rule was broken.
inline void ExpectError(const testing::RecordedGeneration::Heard& heard, StatusCode code) {
  ASSERT_TRUE(heard.error.has_value());
  EXPECT_EQ(heard.error->code(), code) << ToString(*heard.error);
  EXPECT_EQ(heard.broken, "");
}
inline void ExpectFinish(const testing::RecordedGeneration::Heard& heard,
                         api::FinishReason reason) {
  ASSERT_TRUE(heard.finish.has_value())
      << (heard.error ? ToString(*heard.error) : "no end in time");
  EXPECT_EQ(*heard.finish, reason);
  EXPECT_EQ(heard.broken, "");
}

}  // namespace ems::pdc
