// What must hold: over real daemons changes are made in the middle of the requests, all of which
// are done, and the ideal loses what the server that went had.
#include "bench/elastic/elastic_bench.h"

#include <gtest/gtest.h>

#include "bench/trace/trace_maker.h"
#include "common/bytes.h"
#include "tests/support/paths.h"

namespace ems::bench {
namespace {

ElasticSettings SmallElastic() {
  return {.programs = ems::testing::BinDir(),
          .dram_bytes = 64 * kMiB,
          .capacity_bytes = 32 * kMiB,
          .block_bytes = 4 * kKiB,
          .rate = 50,
          .warm_requests = 100,
          .quiet_requests = 10,
          .window_requests = 60,
          .lease_ms = 1000};
}

TEST(ElasticBenchTest, AServerJoinsWhileRequestsGoOn) {
  const ElasticSettings settings = SmallElastic();
  const Trace trace = MakeTrace(TraceShape::kSteep, 100 + 10 + 60, 1);
  const auto run = RunElastic(Scenario::kJoin, trace, settings);
  ASSERT_TRUE(run.ok()) << ToString(run.status());
  ASSERT_EQ(run->timed.requests.size(), 70u);
  for (const RequestOutcome& one : run->timed.requests) EXPECT_TRUE(one.done);
  EXPECT_EQ(run->timed.totals.wrong_bytes, 0u);
  ASSERT_EQ(run->changes.size(), 1u);
  const Change& join = run->changes[0];
  EXPECT_EQ(join.name, "join");
  EXPECT_GE(join.window.begin, 10u);
  EXPECT_GT(join.window.end, join.window.begin);
  EXPECT_EQ(join.before->nodes().size(), 3u);
  EXPECT_GE(join.in_view, Duration::zero()) << "it is in the view when it is ready";
  EXPECT_GT(BytesToMove(*join.before, *join.after, join.held), 0);
  EXPECT_TRUE(LossesOf(*run, settings).empty());
}

TEST(ElasticBenchTest, WhatAKilledServerHadIsLostToTheIdeal) {
  const ElasticSettings settings = SmallElastic();
  const Trace trace = MakeTrace(TraceShape::kSteep, 100 + 10 + 2 * 60, 1);
  const auto run = RunElastic(Scenario::kKill, trace, settings);
  ASSERT_TRUE(run.ok()) << ToString(run.status());
  EXPECT_EQ(run->timed.totals.wrong_bytes, 0u);
  ASSERT_EQ(run->changes.size(), 2u);
  EXPECT_EQ(run->changes[0].name, "kill");
  EXPECT_EQ(run->changes[1].name, "return after kill");
  const std::vector<Loss> losses = LossesOf(*run, settings);
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_EQ(losses[0].at_request, 100 + run->changes[0].window.begin);
  uint64_t lost = 0;
  for (uint64_t block = 0; block < 3000; ++block) lost += losses[0].lost(block) ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(lost), 1000, 150) << "one server of three";
}

}  // namespace
}  // namespace ems::bench
