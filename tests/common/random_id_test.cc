#include "common/random_id.h"

#include <gtest/gtest.h>

#include <set>

namespace ems {
namespace {

TEST(RandomIdTest, IsNeverZeroAndNotTheSameTwice) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(RandomId());
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_FALSE(seen.contains(0));
}

}  // namespace
}  // namespace ems
