// What must hold: the version is three numbers, so that those of two programs can be compared.
#include "common/version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace ems {
namespace {

TEST(VersionTest, IsThreeNumbers) {
  EXPECT_THAT(std::string(Version()), ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

}  // namespace
}  // namespace ems
