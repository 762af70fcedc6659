// What must hold: tokens are the same ones with the pool and without it, and logits are, to the
// bit: whatever the plane, whether the pool is cold or warm, and whichever worker saved the loaded
// KV.
#include <gtest/gtest.h>

#include "tests/e2e/serving_round.h"
#include "tests/support/cluster.h"

namespace ems::pdc::test {
namespace {

using ::ems::testing::Cluster;

// One cluster for all: what one test saves has salts of its own.
class ServingIdentityTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto started = Cluster::Start({.servers = 3, .controller_flags = {}, .server_flags = {}});
    ASSERT_TRUE(started.ok()) << started.status();
    cluster_ = *std::move(started);
  }
  static void TearDownTestSuite() { cluster_.reset(); }
  void SetUp() override { ASSERT_NE(cluster_, nullptr); }

  static RigOptions On(const std::string& plane, context::SavePolicy policy) {
    return {.controller = cluster_->controller_address(), .plane = plane, .policy = policy};
  }
  // Cold, then warm. What the plane is worth is known by the caller.
  static void ServeColdAndWarm(const RigOptions& options, KnownBlocks* known) {
    for (const auto& asked : AllAsked()) {
      const auto conversations = Apart(asked->conversations, options.plane);
      std::vector<Conversation> first_turns;
      first_turns.reserve(conversations.size());
      for (const Conversation& one : conversations) first_turns.push_back({one.front()});
      const Served cold = Serve(asked->engine.model(), options, first_turns, Sharing::kNone, known);
      EXPECT_EQ(cold.looked_tokens, 0U);
      EXPECT_EQ(cold.cached_tokens, 0U);
      EXPECT_GT(cold.loadable_tokens, 20 * cold.requests);
      // First turns are warm now; later ones find prompt and answer of those before.
      const Served talk =
          Serve(asked->engine.model(), options, conversations, Sharing::kNone, known);
      EXPECT_GT(talk.cached_tokens, cold.loadable_tokens);
      EXPECT_GT(talk.decoded_blocks, conversations.size() / 10);
      const Served warm =
          Serve(asked->engine.model(), options, conversations, Sharing::kNone, known);
      EXPECT_EQ(warm.requests, talk.requests);
      EXPECT_EQ(warm.looked_tokens, warm.loadable_tokens);
      EXPECT_EQ(warm.cached_tokens, warm.loadable_tokens);
      EXPECT_EQ(cold.reads_failed + talk.reads_failed + warm.reads_failed, 0U);
      EXPECT_EQ(warm.drafts > 0, asked->engine.model()->config().mtp);
      EXPECT_EQ(warm.one_sided > 0, options.plane == "ub") << "as the transport says";
    }
  }

  static inline std::unique_ptr<Cluster> cluster_;
};

TEST_F(ServingIdentityTest, OverUbColdAndWarm) {
  KnownBlocks known;
  ServeColdAndWarm(On("ub", context::SavePolicy::kFinalResponse), &known);
}

TEST_F(ServingIdentityTest, OverTheVpcPlaneColdAndWarm) {
  KnownBlocks known;
  ServeColdAndWarm(On("vpc", context::SavePolicy::kAll), &known);
}

TEST_F(ServingIdentityTest, PromptsThatShareTheirBeginningsShareBlocks) {
  for (const auto& asked : AllAsked()) {
    KnownBlocks known;
    Served sum;
    const std::vector<Conversation>& all = asked->conversations;
    for (size_t begin = 0; begin < all.size(); begin += 60) {
      const std::vector<Conversation> some(
          all.begin() + static_cast<ptrdiff_t>(begin),
          all.begin() + static_cast<ptrdiff_t>(std::min(begin + 60, all.size())));
      // What one plane has brought the other one takes.
      const std::string plane = begin / 60 % 2 == 0 ? "vpc" : "ub";
      const Served served =
          Serve(asked->engine.model(), On(plane, context::SavePolicy::kPrefillOnly), some,
                Sharing::kSome, &known);
      sum.looked_tokens += served.looked_tokens;
      sum.loadable_tokens += served.loadable_tokens;
    }
    EXPECT_GT(sum.looked_tokens, sum.loadable_tokens / 10) << "of turns that nobody asked before";
    EXPECT_LT(sum.looked_tokens, sum.loadable_tokens);
  }
}

}  // namespace
}  // namespace ems::pdc::test
