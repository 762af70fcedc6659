// What must hold: lines below the level are neither written nor formatted; unknown levels are
// refused by name.
#include "common/logging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ems::log {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(LoggingTest, WritesFromTheLevelUpwards) {
  ASSERT_TRUE(Init("warn").ok());
  ::testing::internal::CaptureStderr();
  EMS_LOG(kInfo, "common", "quiet={}", 1);
  EMS_LOG(kWarn, "common", "loud={}", 2);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("common: loud=2"));
  EXPECT_THAT(text, Not(HasSubstr("quiet")));
}

TEST(LoggingTest, DoesNotEvaluateWhatItDoesNotWrite) {
  ASSERT_TRUE(Init("off").ok());
  int evaluations = 0;
  EMS_LOG(kError, "common", "{}", ++evaluations);
  EXPECT_EQ(evaluations, 0);
}

TEST(LoggingTest, RefusesAnUnknownLevel) {
  const Status status = Init("loud");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("\"loud\""));
}

}  // namespace
}  // namespace ems::log
