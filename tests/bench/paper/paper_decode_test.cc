#include "bench/paper/paper_decode.h"

#include <gtest/gtest.h>

#include <set>

namespace ems::bench {
namespace {

const pdc::CostConstants kConstants;

double Ours(const PaperSection& section, const std::string& id) {
  for (const PaperRow& row : section.rows)
    if (row.id == id) return row.ours;
  ADD_FAILURE() << "no row " << id;
  return 0;
}

TEST(PaperDecodeTest, ThroughputAndTpotBelongTogether) {
  const PaperSection section = Tables4And5(kConstants);
  ASSERT_EQ(section.rows.size(), 10U);
  EXPECT_NEAR(Ours(section, "table5_batch96_throughput"),
              96e3 / Ours(section, "table5_batch96_tpot"), 1e-6);
}

TEST(PaperDecodeTest, SmallerBatchesAnswerFasterAndYieldLess) {
  const PaperSection section = Tables4And5(kConstants);
  EXPECT_LT(Ours(section, "table5_batch8_tpot"), Ours(section, "table5_batch24_tpot"));
  EXPECT_LT(Ours(section, "table5_batch24_tpot"), Ours(section, "table5_batch96_tpot"));
  EXPECT_LT(Ours(section, "table5_batch8_throughput"), Ours(section, "table5_batch24_throughput"));
}

TEST(PaperDecodeTest, MtpGainsMostAtSmallBatches) {
  const PaperSection section = MtpAblation(kConstants);
  EXPECT_GT(Ours(section, "mtp_gain_small_batch"), Ours(section, "mtp_gain_large_batch"));
}

TEST(PaperDecodeTest, RowsHaveNamesOfTheirOwn) {
  std::set<std::string> ids;
  size_t rows = 0;
  for (const PaperSection& section :
       {Tables4And5(kConstants), DecodeMicrobatching(kConstants), MtpAblation(kConstants),
        XdsPeak(kConstants), XdsDisaggregated(kConstants)}) {
    for (const PaperRow& row : section.rows) ids.insert(row.id);
    rows += section.rows.size();
  }
  EXPECT_EQ(ids.size(), rows);
}

}  // namespace
}  // namespace ems::bench
