// What must hold: calls are short while small requests come and for a while after, and long when
// only large ones do.
#include "fabric/net/send_pace.h"

#include <gtest/gtest.h>

namespace ems::fabric {
namespace {

constexpr TimePoint kStart{std::chrono::hours(1)};

TEST(SendPaceTest, SmallRequestsShortenTheCallsOfTheNextWhile) {
  SendPace pace;
  EXPECT_EQ(pace.BytesOfCall(kStart), SendPace::kLongBytes);
  pace.OnServed(kStart, SendPace::kSmallBytes);
  EXPECT_EQ(pace.BytesOfCall(kStart), SendPace::kShortBytes);
  EXPECT_EQ(pace.BytesOfCall(kStart + SendPace::kQuiet - Duration(1)), SendPace::kShortBytes);
  EXPECT_EQ(pace.BytesOfCall(kStart + SendPace::kQuiet), SendPace::kLongBytes);
}

TEST(SendPaceTest, LargeRequestsDoNot) {
  SendPace pace;
  pace.OnServed(kStart, SendPace::kSmallBytes + 1);
  EXPECT_EQ(pace.BytesOfCall(kStart), SendPace::kLongBytes);
}

}  // namespace
}  // namespace ems::fabric
