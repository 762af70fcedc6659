// What must hold: the rate is that of the last seconds, another job starts from scratch, and
// nothing is forecast from nothing.
#include "ems_model/progress_meter.h"

#include <gtest/gtest.h>

namespace ems::model {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TimePoint At(Duration since) { return TimePoint(seconds(1000) + since); }

TEST(ProgressMeterTest, TwoLooksMakeARate) {
  ProgressMeter meter;
  EXPECT_EQ(meter.bytes_per_s(), 0);
  EXPECT_EQ(meter.TimeLeft(100), std::nullopt);
  meter.Add(At(seconds(0)), 1, 0);
  EXPECT_EQ(meter.bytes_per_s(), 0);
  meter.Add(At(seconds(2)), 1, 1000);
  EXPECT_DOUBLE_EQ(meter.bytes_per_s(), 500);
  EXPECT_EQ(meter.TimeLeft(2000), seconds(2));
  EXPECT_EQ(meter.TimeLeft(500), seconds(0));
}

TEST(ProgressMeterTest, OldLooksAreForgotten) {
  ProgressMeter meter;
  for (int i = 0; i <= 20; ++i) meter.Add(At(seconds(i)), 1, static_cast<uint64_t>(i) * 10);
  for (int i = 1; i <= 20; ++i)
    meter.Add(At(seconds(20 + i)), 1, 200 + static_cast<uint64_t>(i) * 1000);
  EXPECT_DOUBLE_EQ(meter.bytes_per_s(), 1000);
}

TEST(ProgressMeterTest, ManyLooksCoverTheSameTime) {
  ProgressMeter meter;
  for (int i = 0; i <= 5000; ++i) meter.Add(At(milliseconds(i)), 1, static_cast<uint64_t>(i));
  EXPECT_NEAR(meter.bytes_per_s(), 1000, 1);
}

TEST(ProgressMeterTest, AnotherJobBeginsAnew) {
  ProgressMeter meter;
  meter.Add(At(seconds(0)), 1, 0);
  meter.Add(At(seconds(1)), 1, 1000);
  meter.Add(At(seconds(2)), 2, 5000);
  EXPECT_EQ(meter.bytes_per_s(), 0);
  meter.Add(At(seconds(3)), 2, 5100);
  meter.Add(At(seconds(4)), 2, 100);  // a server that is gone has lost what it had done
  EXPECT_EQ(meter.bytes_per_s(), 0);
}

TEST(ProgressMeterTest, AJobThatStandsHasNoEnd) {
  ProgressMeter meter;
  meter.Add(At(seconds(0)), 1, 10);
  meter.Add(At(seconds(5)), 1, 10);
  EXPECT_EQ(meter.TimeLeft(100), std::nullopt);
}

}  // namespace
}  // namespace ems::model
