// What must hold: each request is served exactly once and never before it could be, the same input
// gives the same result, a lone request takes the time of its parts, and caching and load show.
#include "pdc/cost_model/serving_simulator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace ems::pdc {
namespace {

std::vector<SimulatedRequest> RandomRequests(size_t count, double per_second, uint64_t seed = 5) {
  std::mt19937_64 random(seed);
  std::vector<SimulatedRequest> requests(count);
  double now = 0;
  for (SimulatedRequest& r : requests) {
    now += static_cast<double>(random() % 2000) * 1e-3 / per_second;
    r.arrival_s = now;
    r.input_tokens = 1 + random() % 8000;
    r.output_tokens = 1 + random() % 600;
    const uint64_t family = random() % 20;
    for (uint64_t block = 0; block * 512 < r.input_tokens; ++block)
      r.blocks.push_back(family * 1000 + block);
  }
  return requests;
}

SimulatorOptions Small() {
  SimulatorOptions options;
  options.prefill_instances = 2;
  options.decode_dies = 32;
  options.decode_batch_max = 8;
  options.pool_blocks = 1000;
  return options;
}

TEST(ServingSimulatorTest, ALoneRequestTakesTheTimeOfItsParts) {
  const SimulatorOptions options = Small();
  SimulatedRequest request;
  request.arrival_s = 3;
  request.input_tokens = 4096;
  request.output_tokens = 171;
  const SimulationResult result = Simulate(options, std::vector{request});
  ASSERT_EQ(result.served, 1U);
  std::vector<PrefillWork> work(8);
  work[0].Add(4096, 0);
  const double ttft =
      PrefillCost(options.constants).Step(options.prefill, work).total_ms() * 1e-3 + 2e-3;
  EXPECT_NEAR(result.requests[0].ttft_s, ttft, 1e-9);
  EXPECT_EQ(result.decode_iterations, 100U) << "170 tokens, 1.7 an iteration";
  const double hand_off = KvTransfer(options.constants).HandOffSeconds(4096);
  EXPECT_NEAR(result.end_s, 3 + ttft + hand_off + result.decode_busy_s, 1e-9);
  EXPECT_NEAR(result.requests[0].tpot_s, (hand_off + result.decode_busy_s) / 170, 1e-12);
}

TEST(ServingSimulatorTest, EveryRequestIsServedOnceAndInTime) {
  const std::vector<SimulatedRequest> requests = RandomRequests(3000, 20);
  const SimulationResult result = Simulate(Small(), requests);
  EXPECT_EQ(result.served, requests.size());
  EXPECT_EQ(result.refused, 0U);
  uint64_t input = 0, output = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const ServedRequest& r = result.requests[i];
    input += requests[i].input_tokens;
    output += requests[i].output_tokens;
    ASSERT_GT(r.ttft_s, 0);
    ASSERT_LT(r.cached_tokens, requests[i].input_tokens);
    ASSERT_EQ(r.tpot_s > 0, requests[i].output_tokens > 1);
    ASSERT_GE(r.end_s + 1e-9, requests[i].arrival_s + r.ttft_s);
    ASSERT_LE(r.end_s, result.end_s);
  }
  EXPECT_EQ(result.input_tokens, input);
  EXPECT_EQ(result.output_tokens, output);
  EXPECT_GT(result.cached_tokens, 0U);
  EXPECT_LE(result.prefill_busy_s, 2 * result.end_s);
  EXPECT_LE(result.decode_busy_s, result.end_s);
}

TEST(ServingSimulatorTest, TheSameInputGivesTheSameResult) {
  const std::vector<SimulatedRequest> requests = RandomRequests(1000, 30);
  const SimulationResult a = Simulate(Small(), requests), b = Simulate(Small(), requests);
  EXPECT_EQ(a.end_s, b.end_s);
  EXPECT_EQ(a.decode_iterations, b.decode_iterations);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_EQ(a.requests[i].ttft_s, b.requests[i].ttft_s);
    ASSERT_EQ(a.requests[i].end_s, b.requests[i].end_s);
  }
}

TEST(ServingSimulatorTest, RequestSecondsAreThoseOfTheBatch) {
  const std::vector<SimulatedRequest> requests = RandomRequests(500, 5);
  const SimulationResult result = Simulate(Small(), requests);
  // Little: what was in the batch, summed over time, is at most the time from first token to end.
  double most = 0;
  for (size_t i = 0; i < requests.size(); ++i)
    most += result.requests[i].tpot_s * static_cast<double>(requests[i].output_tokens - 1);
  EXPECT_GT(result.decode_request_seconds, 0.8 * most);
  EXPECT_LE(result.decode_request_seconds, most * (1 + 1e-9));
}

TEST(ServingSimulatorTest, FullDecodeHoldsHandOffsBackAndLosesNone) {
  SimulatorOptions options = Small();
  options.decode_dies = 4;
  options.decode_batch_max = 1;
  const std::vector<SimulatedRequest> requests = RandomRequests(200, 50);
  const SimulationResult result = Simulate(options, requests);
  EXPECT_EQ(result.served, requests.size());
  EXPECT_GT(result.hand_offs_held_back, 50U);
}

TEST(ServingSimulatorTest, WhatNoDieCanHoldIsRefusedAtOnce) {
  SimulatorOptions options = Small();
  options.decode_kv_tokens_max = 5000;
  std::vector<SimulatedRequest> requests(3);
  requests[1].input_tokens = 6000;
  const SimulationResult result = Simulate(options, requests);
  EXPECT_EQ(result.served, 2U);
  EXPECT_EQ(result.refused, 1U);
  EXPECT_TRUE(result.requests[1].refused);
}

TEST(ServingSimulatorTest, APoolShortensTtftAndUbMoreThanVpc) {
  const std::vector<SimulatedRequest> requests = RandomRequests(1500, 10);
  SimulatorOptions options = Small();
  const double ub = Simulate(options, requests).mean_ttft_s();
  options.prefill.plane = CachePlane::kVpc;
  const double vpc = Simulate(options, requests).mean_ttft_s();
  options.pool_blocks = 0;
  const double none = Simulate(options, requests).mean_ttft_s();
  EXPECT_LT(ub, vpc);
  EXPECT_LT(ub, none);
}

TEST(ServingSimulatorTest, MoreLoadMeansLongerWaits) {
  const double calm = Simulate(Small(), RandomRequests(1000, 2)).mean_ttft_s();
  const double busy = Simulate(Small(), RandomRequests(1000, 60)).mean_ttft_s();
  EXPECT_LT(calm, busy);
}

TEST(ServingSimulatorTest, NothingToServeTakesNoTime) {
  const SimulationResult result = Simulate(Small(), {});
  EXPECT_EQ(result.served, 0U);
  EXPECT_EQ(result.end_s, 0);
  EXPECT_EQ(result.mean_ttft_s(), 0);
  EXPECT_EQ(result.ttft_quantile_s(0.99), 0);
}

}  // namespace
}  // namespace ems::pdc
