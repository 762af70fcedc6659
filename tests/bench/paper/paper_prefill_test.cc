#include "bench/paper/paper_prefill.h"

#include <gtest/gtest.h>

namespace ems::bench {
namespace {

const pdc::CostConstants kConstants;

TEST(PaperPrefillTest, ReuseRaisesThroughputAndLowersTtftOnBothPlanes) {
  for (const pdc::CachePlane plane : {pdc::CachePlane::kUb, pdc::CachePlane::kVpc}) {
    PrefillFigure before = RunPrefill(kConstants, {.reuse = 0.125, .plane = plane});
    for (const double reuse : {0.25, 0.5, 0.75}) {
      const PrefillFigure now = RunPrefill(kConstants, {.reuse = reuse, .plane = plane});
      EXPECT_GT(now.tokens_per_s_per_npu, before.tokens_per_s_per_npu) << reuse;
      EXPECT_LT(now.ttft_ms, before.ttft_ms) << reuse;
      before = now;
    }
  }
}

TEST(PaperPrefillTest, ReuseIsOfWholeBlocks) {
  EXPECT_EQ(RunPrefill(kConstants, {.reuse = 0.90}).ttft_ms,
            RunPrefill(kConstants, {.reuse = 0.875}).ttft_ms);
  EXPECT_EQ(RunPrefill(kConstants, {.reuse = 0.03}).ttft_ms, RunPrefill(kConstants, {}).ttft_ms);
}

TEST(PaperPrefillTest, AWorseLinkMovesTheRowThatItShould) {
  pdc::CostConstants slow = kConstants;
  slow.hardware.vpc_node.bytes_per_s /= 2;
  const PaperSection normal = Fig23(kConstants), changed = Fig23(slow);
  for (size_t i = 0; i < normal.rows.size(); ++i) {
    if (normal.rows[i].id == "fig23_ub_vs_vpc")
      EXPECT_GT(changed.rows[i].ours, 1.2 * normal.rows[i].ours);
    else
      EXPECT_EQ(changed.rows[i].ours, normal.rows[i].ours) << normal.rows[i].id;
  }
}

TEST(PaperPrefillTest, TheLinesOfFig23BeginWithoutEmsAndHaveAllRates) {
  const std::vector<ReusePoint> points = Fig23Points(kConstants);
  ASSERT_EQ(points.size(), 6U);
  EXPECT_EQ(points[0].reuse, 0);
  EXPECT_EQ(points[0].ub_throughput, 1);
  EXPECT_EQ(points[0].ub_ttft_ms, RunPrefill(kConstants, {}).ttft_ms);
  EXPECT_EQ(points[5].reuse, 0.9);
  EXPECT_GT(points[5].ub_throughput, points[5].vpc_throughput);
  EXPECT_LT(points[5].ub_ttft_ms, points[5].vpc_ttft_ms);
}

}  // namespace
}  // namespace ems::bench
