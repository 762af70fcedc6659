// What must hold: the text has every count, and a histogram of the calls that there were.
#include "mp_sdk/client_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems {
namespace {

using ::testing::HasSubstr;

TEST(ClientStatsTest, ThePrometheusTextHasCountsAndLatencies) {
  ClientStats stats;
  stats.gets = 10;
  stats.hits = 7;
  stats.bytes_read = 700;
  stats.one_sided = 4;
  LatencySet set(1);
  for (int i = 0; i < 100; ++i) set.Record(0, std::chrono::microseconds(i));
  stats.calls.push_back({.op = "multi_get", .path = "socket", .latencies = set.Of(0)});
  const std::string text = PrometheusText(stats);
  EXPECT_THAT(text, HasSubstr("# TYPE ems_client_gets_total counter\nems_client_gets_total 10\n"));
  EXPECT_THAT(text, HasSubstr("\nems_client_hits_total 7\n"));
  EXPECT_THAT(text, HasSubstr("\nems_client_read_bytes_total 700\n"));
  EXPECT_THAT(text, HasSubstr("\nems_client_one_sided_total 4\n"));
  EXPECT_THAT(text, HasSubstr("\nems_client_call_seconds_count{op=\"multi_get\",path=\"socket\"} "
                              "100\n"));
  EXPECT_NEAR(stats.calls[0].p50_us(), 50, 4);
  EXPECT_NEAR(stats.calls[0].p99_us(), 99, 7);
}

}  // namespace
}  // namespace ems
