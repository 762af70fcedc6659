#include "bench/paper/paper_trace.h"

#include <gtest/gtest.h>

namespace ems::bench {
namespace {

// Conversations of 4 turns that grow by 3 blocks each.
Trace Conversations(int count) {
  Trace trace;
  for (uint64_t turn = 1; turn <= 4; ++turn) {
    for (uint64_t i = 0; i < static_cast<uint64_t>(count); ++i) {
      TraceRequest r{.timestamp_ms = turn * 60'000 + i * 100,
                     .input_tokens = turn * 3 * kTraceBlockTokens,
                     .output_tokens = 50,
                     .blocks = {}};
      for (uint64_t block = 0; block < turn * 3; ++block) r.blocks.push_back(i * 100 + block);
      trace.requests.push_back(std::move(r));
    }
  }
  return trace;
}

TEST(PaperTraceTest, ThePoolHelpsAndUbMoreThanVpc) {
  const auto outcomes = ReplayInVirtualTime(Conversations(50), {}, {});
  ASSERT_TRUE(outcomes.ok());
  ASSERT_EQ(outcomes->size(), 3U);
  for (const TraceOutcome& o : *outcomes) EXPECT_EQ(o.result.served, 200U);
  const TraceOutcome &none = (*outcomes)[0], &vpc = (*outcomes)[1], &ub = (*outcomes)[2];
  EXPECT_EQ(none.hit_rate(), 0);
  // 3 + 6 + 9 of 3 + 6 + 9 + 12 blocks.
  EXPECT_NEAR(ub.hit_rate(), 18.0 / 30, 1e-9);
  EXPECT_EQ(vpc.hit_rate(), ub.hit_rate());
  EXPECT_LT(ub.result.mean_ttft_s(), vpc.result.mean_ttft_s());
  EXPECT_LT(ub.result.mean_ttft_s(), none.result.mean_ttft_s());
  EXPECT_LT(ub.prefill_busy(), none.prefill_busy());
}

TEST(PaperTraceTest, RepeatedPromptsAreNewOnes) {
  const auto outcomes = ReplayInVirtualTime(Conversations(10), {.repeat = 3}, {});
  ASSERT_TRUE(outcomes.ok());
  EXPECT_EQ((*outcomes)[2].result.served, 120U);
  EXPECT_NEAR((*outcomes)[2].hit_rate(), 18.0 / 30, 1e-9);
}

TEST(PaperTraceTest, RefusesMoreNpusThanThereAre) {
  const auto outcomes =
      ReplayInVirtualTime(Conversations(1), {.prefill_instances = 20, .decode_npus = 160}, {});
  EXPECT_EQ(outcomes.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReplayInVirtualTime({}, {}, {}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::bench
