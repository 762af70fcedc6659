#include "ems_context/prefix_matcher.h"

#include <gtest/gtest.h>

namespace ems::context {
namespace {

using Present = std::vector<Result<bool>>;

TEST(PrefixMatcherTest, CountsUpToTheFirstAbsentBlock) {
  EXPECT_EQ(LeadingBlocks({}), 0u);
  EXPECT_EQ(LeadingBlocks(Present{true, true, true}), 3u);
  EXPECT_EQ(LeadingBlocks(Present{true, false, true}), 1u);
  EXPECT_EQ(LeadingBlocks(Present{false, true, true}), 0u);
}

TEST(PrefixMatcherTest, AnAnswerThatFailedIsAbsent) {
  EXPECT_EQ(LeadingBlocks(Present{true, Error(StatusCode::kUnavailable, "gone"), true}), 1u);
}

TEST(PrefixMatcherTest, CountsArrivedBlocksUpToTheFirstThatDidNot) {
  EXPECT_EQ(LeadingOk(std::vector<Result<uint64_t>>{}), 0u);
  EXPECT_EQ(LeadingOk(std::vector<Result<uint64_t>>{uint64_t{1}, uint64_t{0}, Miss(), uint64_t{1}}),
            2u);
}

}  // namespace
}  // namespace ems::context
