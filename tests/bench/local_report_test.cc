// What must hold: tables set EMS beside the others, the document has every lane, the plot has every
// side that was measured.
#include "bench/local_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/bench/local_lanes.h"

namespace ems::bench {
namespace {

using test::GoodResults;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(LocalReportTest, TablesHaveARowASideAndSizeAndRatios) {
  const std::string text = LocalTables(GoodResults());
  EXPECT_THAT(text, HasSubstr("Get: copy a value out"));
  EXPECT_THAT(text, HasSubstr("memcached unix"));
  EXPECT_THAT(text, HasSubstr("16 MiB"));
  EXPECT_THAT(text, HasSubstr("1.36"));     // EMS's Get beside memcpy
  EXPECT_THAT(text, HasSubstr("100.0 %"));  // one-sided
  EXPECT_THAT(text, HasSubstr("0.10 % of one core"));
  EXPECT_THAT(text, Not(HasSubstr("Exists")));  // was not measured
}

TEST(LocalReportTest, DocumentHasEveryLane) {
  LocalResults results = GoodResults();
  results.missing.push_back("redis tcp: not installed");
  const nlohmann::ordered_json json = LocalJson(results);
  EXPECT_EQ(json["lanes"].size(), results.lanes.size());
  EXPECT_EQ(json["lanes"][0]["side"], "memcpy");
  EXPECT_EQ(json["lanes"][0]["rounds"]["gb_per_second"].size(), 5U);
  EXPECT_EQ(json["storms"][0]["value_bytes"], 4096);
  EXPECT_EQ(json["missing"][0], "redis tcp: not installed");
}

TEST(LocalReportTest, PlotHasAPlaceASizeAndAFigureWhereThereIsOne) {
  const Plot plot = LocalPlot(GoodResults(), "subtitle");
  ASSERT_EQ(plot.panels.size(), 2U);
  EXPECT_EQ(plot.panels[0].places.size(), 6U);
  EXPECT_EQ(plot.panels[0].places[0], "4 KiB");
  for (const PlotPanel& panel : plot.panels) {
    ASSERT_EQ(panel.series.size(), 8U);
    for (const PlotSeries& series : panel.series) {
      ASSERT_EQ(series.values.size(), 6U);
      const bool view = series.name.find("GetView") != std::string::npos;  // copies nothing
      const bool there = series.name.find("TCP") == std::string::npos;
      EXPECT_EQ(series.values[3].has_value(), there && (!view || panel.log_y)) << series.name;
    }
  }
  EXPECT_EQ(plot.panels[0].series[1].values[0], 9.5);
  EXPECT_EQ(plot.panels[1].series[1].values[0], 1.2);
}

}  // namespace
}  // namespace ems::bench
