// What must hold: times are RFC 3339 in UTC, and are read back with any offset; what is none is not
// taken for one.
#include "common/wall_time.h"

#include <gtest/gtest.h>

namespace ems {
namespace {

TEST(WallTimeTest, IsWrittenInUtcWithMilliseconds) {
  EXPECT_EQ(TimeText(0), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(TimeText(1'795'782'078'788), "2026-11-27T12:21:18.788Z");
  EXPECT_EQ(TimeText(1'709'251'199'009), "2024-02-29T23:59:59.009Z");
}

TEST(WallTimeTest, IsReadBackWithAnyOffset) {
  const int64_t now = UnixMs();
  EXPECT_EQ(ParseTime(TimeText(now)), now);
  EXPECT_EQ(ParseTime("2026-11-27T13:21:18.788+01:00"), 1'795'782'078'788);
  EXPECT_EQ(ParseTime("2026-11-27T06:51:18.78890-05:30"), 1'795'782'078'788);
  EXPECT_EQ(ParseTime("2026-11-27T12:21:18Z"), 1'795'782'078'000);
}

TEST(WallTimeTest, OtherTextsAreNone) {
  for (const char* text : {"", "now", "2026-11-27", "2026-11-27T12:21:18", "2026-13-27T12:21:18Z",
                           "2026-02-30T12:21:18Z", "2026-11-27T24:21:18Z", "2026-11-27T12:21:18ZZ"})
    EXPECT_EQ(ParseTime(text), std::nullopt) << text;
}

}  // namespace
}  // namespace ems
