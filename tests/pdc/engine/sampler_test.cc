// What must hold: what is drawn depends on seed and position alone, in the shares that the logits
// ask for, and never outside of the top.
#include "pdc/engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace ems::pdc {
namespace {

const std::vector<float> kLogits = {0.0F, std::log(2.0F), std::log(4.0F), std::log(1.0F)};

std::map<TokenId, double> Shares(const SamplerOptions& options) {
  Sampler sampler(options);
  std::map<TokenId, double> shares;
  constexpr int kDraws = 40'000;
  for (uint64_t position = 0; position < kDraws; ++position)
    shares[sampler.Pick(kLogits, position)] += 1.0 / kDraws;
  return shares;
}

TEST(SamplerTest, GreedyTakesTheLikeliestAndTheFirstOfEquals) {
  Sampler sampler;
  EXPECT_EQ(sampler.Pick(kLogits, 5), 2U);
  EXPECT_EQ(Greedy(std::vector<float>{1, 3, 3, 2}), 1U);
}

TEST(SamplerTest, SharesFollowLogitsAndTemperature) {
  auto shares = Shares({.temperature = 1, .seed = 9});
  EXPECT_NEAR(shares[0], 1.0 / 8, 0.01);
  EXPECT_NEAR(shares[1], 2.0 / 8, 0.01);
  EXPECT_NEAR(shares[2], 4.0 / 8, 0.01);
  shares = Shares({.temperature = 0.5F, .seed = 9});
  EXPECT_NEAR(shares[2], 16.0 / 22, 0.01);
}

TEST(SamplerTest, TopPLeavesTheRestOut) {
  auto shares = Shares({.temperature = 1, .top_p = 0.7F, .seed = 1});
  EXPECT_EQ(shares.size(), 2U);
  EXPECT_NEAR(shares[2], 4.0 / 6, 0.01);
  shares = Shares({.temperature = 1, .top_p = 0.01F, .seed = 1});
  EXPECT_EQ(shares.size(), 1U);
}

TEST(SamplerTest, SeedAndPositionDecide) {
  Sampler one({.temperature = 1, .seed = 3}), same({.temperature = 1, .seed = 3}),
      other({.temperature = 1, .seed = 4});
  std::vector<TokenId> forward, backward, others;
  for (uint64_t i = 0; i < 100; ++i) forward.push_back(one.Pick(kLogits, i));
  for (uint64_t i = 100; i > 0; --i) backward.insert(backward.begin(), same.Pick(kLogits, i - 1));
  for (uint64_t i = 0; i < 100; ++i) others.push_back(other.Pick(kLogits, i));
  EXPECT_EQ(forward, backward);
  EXPECT_NE(forward, others);
}

TEST(SamplerTest, LogitsThatAreNoNumbersAreNoCandidates) {
  const float nan = std::nanf(""), inf = HUGE_VALF;
  Sampler sampler({.temperature = 1, .top_p = 0.9F, .seed = 2});
  for (uint64_t position = 0; position < 50; ++position) {
    EXPECT_EQ(sampler.Pick(std::vector<float>{1, nan, -inf, nan}, position), 0U);
    EXPECT_LT(sampler.Pick(std::vector<float>{nan, nan, nan}, position), 3U);
    EXPECT_EQ(sampler.Pick(std::vector<float>{0, inf, 3}, position), 1U);
  }
}

TEST(SamplerTest, OptionsAreChecked) {
  EXPECT_TRUE(Sampler::Check({.temperature = 2, .top_p = 0.5F}).ok());
  for (const SamplerOptions& bad :
       {SamplerOptions{.temperature = -1}, SamplerOptions{.temperature = std::nanf("")},
        SamplerOptions{.top_p = 0}, SamplerOptions{.top_p = 1.5F}})
    EXPECT_EQ(Sampler::Check(bad).code(), StatusCode::kInvalidArgument);
}

TEST(SamplerTest, PromptsAreChecked) {
  const std::vector<TokenId> prompt = {1, 2, 9};
  EXPECT_EQ(CheckPrompt(prompt, 3, 10, {}), OkStatus());
  EXPECT_EQ(CheckPrompt({}, 3, 10, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckPrompt(prompt, 2, 10, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckPrompt(prompt, 3, 10, {.top_p = 0}).code(), StatusCode::kInvalidArgument);
  const Status unknown = CheckPrompt(prompt, 3, 9, {});
  EXPECT_EQ(unknown.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(ToString(unknown).find("token 2 of the prompt is 9"), std::string::npos);
}

}  // namespace
}  // namespace ems::pdc
