// What must hold: the word is of the last answers alone, and there is none before there were
// enough.
#include "mp_sdk/internal/recent_latencies.h"

#include <gtest/gtest.h>

namespace ems::internal {
namespace {

using std::chrono::microseconds;

TEST(RecentLatenciesTest, NothingIsSaidOfTooFew) {
  RecentLatencies latencies;
  for (size_t i = 1; i < RecentLatencies::kLeast; ++i) latencies.Add(microseconds(100));
  EXPECT_FALSE(latencies.P95());
  latencies.Add(microseconds(100));
  EXPECT_EQ(latencies.P95(), microseconds(100));
}

TEST(RecentLatenciesTest, OneInTwentyMayBeSlower) {
  RecentLatencies latencies;
  for (size_t i = 0; i < RecentLatencies::kKept; ++i)
    latencies.Add(i % 32 == 0 ? microseconds(90'000) : microseconds(100 + i));
  EXPECT_LT(*latencies.P95(), microseconds(200));
  EXPECT_GE(*latencies.P95(), microseconds(155));
}

TEST(RecentLatenciesTest, TheLastOnesCount) {
  RecentLatencies latencies;
  for (int i = 0; i < 1000; ++i) latencies.Add(microseconds(100));
  for (size_t i = 0; i < RecentLatencies::kKept; ++i) latencies.Add(microseconds(5000));
  EXPECT_EQ(*latencies.P95(), microseconds(5000));
}

}  // namespace
}  // namespace ems::internal
