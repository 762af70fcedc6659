#include "bench/paper_prefill.h"

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

TEST(PaperPrefillTest, ThePlotHasBothPanelsAndAllRates) {
  const Plot plot = Fig23Plot(kConstants);
  ASSERT_EQ(plot.panels.size(), 2U);
  for (const PlotPanel& panel : plot.panels) {
    EXPECT_EQ(panel.places.size(), 6U);
    ASSERT_EQ(panel.series.size(), 3U);
    for (const PlotSeries& series : panel.series) EXPECT_EQ(series.values.size(), 6U);
  }
}

}  // namespace
}  // namespace ems::bench
