// What must hold: a thread stays awake between requests that follow each other closely, and never
// longer than the bound.
#include "fabric/internal/vigil.h"

#include <gtest/gtest.h>

namespace ems::fabric::internal {
namespace {

constexpr TimePoint kStart{std::chrono::hours(1)};

TEST(VigilTest, ALoneRequestKeepsNobodyAwake) {
  Vigil vigil;
  EXPECT_FALSE(vigil.IsOn(kStart));
  vigil.OnRequest(kStart);
  vigil.OnAnswer(kStart + Duration(1));
  EXPECT_FALSE(vigil.IsOn(kStart + Duration(2)));
}

TEST(VigilTest, OneThatFollowsCloselyDoesAndThenNoneComes) {
  Vigil vigil;
  vigil.OnRequest(kStart);
  vigil.OnAnswer(kStart);
  vigil.OnRequest(kStart + Vigil::kSoon / 2);
  const TimePoint answered = kStart + 2 * Vigil::kSoon;
  vigil.OnAnswer(answered);
  EXPECT_TRUE(vigil.IsOn(answered));
  EXPECT_TRUE(vigil.IsOn(answered + Vigil::kSoon - Duration(1)));
  EXPECT_FALSE(vigil.IsOn(answered + Vigil::kSoon));
  // The next comes too late: it is a lone one again.
  vigil.OnRequest(answered + Vigil::kSoon);
  vigil.OnAnswer(answered + 2 * Vigil::kSoon);
  EXPECT_FALSE(vigil.IsOn(answered + 2 * Vigil::kSoon));
}

}  // namespace
}  // namespace ems::fabric::internal
