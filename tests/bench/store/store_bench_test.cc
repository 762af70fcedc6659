// What must hold: rates and ratios come from the median round; one disturbed round does not move
// them.
#include "bench/store/store_bench.h"

#include <gtest/gtest.h>

namespace ems::bench {
namespace {

using std::chrono::milliseconds;

RoundSeries SeriesOf(std::initializer_list<milliseconds> walls, milliseconds call) {
  RoundSeries series;
  for (const milliseconds wall : walls) {
    LatencyRecorder calls;
    calls.Record(call);
    series.AddRound(calls, wall);
  }
  return series;
}

TEST(StoreBenchTest, ResultDerivesRatesFromTheMedianRound) {
  SectionResult result;
  result.section = Section::kLoad;
  result.value_bytes = 1'000'000;
  result.keys = 10;
  result.batch = 5;
  result.ems = SeriesOf({milliseconds(10), milliseconds(10), milliseconds(500)}, milliseconds(5));
  result.raw = SeriesOf({milliseconds(9), milliseconds(9), milliseconds(9)}, milliseconds(4));
  EXPECT_DOUBLE_EQ(result.gb_per_second(), 1);
  EXPECT_DOUBLE_EQ(result.ops_per_second(), 1000);
  EXPECT_DOUBLE_EQ(result.ms_per_key(), 1);
  EXPECT_DOUBLE_EQ(result.throughput_vs_raw(), 0.9);
  EXPECT_DOUBLE_EQ(result.p50_vs_raw(), 1.25);
  result.section = Section::kLookup;  // moves no payload
  EXPECT_EQ(result.gb_per_second(), 0);
}

TEST(StoreBenchTest, EmptyResultHasNoRates) {
  const SectionResult result;
  EXPECT_EQ(result.gb_per_second(), 0);
  EXPECT_EQ(result.ops_per_second(), 0);
  EXPECT_EQ(result.throughput_vs_raw(), 0);
}

}  // namespace
}  // namespace ems::bench
