// What must hold: a broken invariant ends the process and says what was expected, with the numbers.
#include "common/check.h"

#include <gtest/gtest.h>

namespace ems {
namespace {

TEST(CheckTest, PassesAndEvaluatesOnce) {
  int evaluations = 0;
  EMS_CHECK(++evaluations == 1);
  EXPECT_EQ(evaluations, 1);
}

TEST(CheckDeathTest, FailureNamesConditionAndNumbers) {
  const int used = 5, capacity = 4;
  EXPECT_DEATH(EMS_CHECK(used <= capacity, "used {} of {}", used, capacity),
               "used <= capacity.*used 5 of 4");
}

}  // namespace
}  // namespace ems
