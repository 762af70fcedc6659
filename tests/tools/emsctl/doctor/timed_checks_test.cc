// What must hold: a check that does not return is a failure in time, and those after it go on.
#include "tools/emsctl/doctor/timed_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>

namespace ems::emsctl {
namespace {

TEST(TimedChecksTest, OneThatHangsFailsAndTheOthersGoOn) {
  const auto release = std::make_shared<StopFlag>();
  TimedChecks checks(std::chrono::milliseconds(100));
  checks.Run("disk", [release]() -> Finding {
    (void)release->WaitFor(std::chrono::minutes(1));
    return {.check = "disk", .found = "too late"};
  });
  EXPECT_TRUE(checks.stuck());
  checks.Add({.check = "swap", .found = "none"});
  checks.AddAll({{.check = "NUMA"}});
  ASSERT_EQ(checks.findings().size(), 3U);
  EXPECT_EQ(checks.findings()[0].level, Level::kFail);
  EXPECT_EQ(checks.findings()[0].check, "disk");
  EXPECT_EQ(checks.findings()[0].found, "no answer in 0.1 s");
  EXPECT_EQ(checks.findings()[2].check, "NUMA");
  release->Set();
}

TEST(TimedChecksTest, OneThatReturnsIsAddedAsItIs) {
  TimedChecks checks(std::chrono::minutes(1));
  checks.Run("seals", []() -> Finding { return {.check = "memfd seals", .found = "hold"}; });
  EXPECT_FALSE(checks.stuck());
  ASSERT_EQ(checks.findings().size(), 1U);
  EXPECT_EQ(checks.findings()[0].found, "hold");
}

}  // namespace
}  // namespace ems::emsctl
