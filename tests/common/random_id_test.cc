#include "common/random_id.h"

#include <gtest/gtest.h>

#include <set>

namespace ems {
namespace {

TEST(RandomIdTest, IsNotTheSameTwice) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(RandomId());
  EXPECT_EQ(seen.size(), 1000u);
}

TEST(RandomIdTest, NeitherItNorItsLowerHalfIsZero) {
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(RandomId() & 1, 1u) << "one bit that is always set";
}

}  // namespace
}  // namespace ems
