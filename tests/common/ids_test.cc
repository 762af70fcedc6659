// What must hold: view versions order by term, then epoch, and survive being packed into one word.
#include "common/ids.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <unordered_set>

namespace ems {
namespace {

static_assert(!std::is_convertible_v<uint32_t, NodeId>);
static_assert(!std::is_convertible_v<NodeId, NamespaceId>);

TEST(ViewVersionTest, OrdersByTermThenEpoch) {
  EXPECT_LT(ViewVersion(1, 9), ViewVersion(2, 1));
  EXPECT_LT(ViewVersion(2, 1), ViewVersion(2, 2));
  EXPECT_EQ(ViewVersion(2, 2), ViewVersion(2, 2));
  EXPECT_LT(ViewVersion(), ViewVersion(0, 1));
  EXPECT_LT(ViewVersion(1, ViewVersion::kEpochMax), ViewVersion(2, 0));
}

TEST(ViewVersionTest, PacksAndUnpacksAtItsLimits) {
  const ViewVersion version(ViewVersion::kTermMax, ViewVersion::kEpochMax);
  const ViewVersion copy = ViewVersion::FromPacked(version.packed());
  EXPECT_EQ(copy.term(), ViewVersion::kTermMax);
  EXPECT_EQ(copy.epoch(), ViewVersion::kEpochMax);
  EXPECT_EQ(copy, version);
}

TEST(NamespaceRefTest, GenerationTellsOldFromNew) {
  EXPECT_NE((NamespaceRef{NamespaceId(1), 1}), (NamespaceRef{NamespaceId(1), 2}));
  EXPECT_LT((NamespaceRef{NamespaceId(1), 2}), (NamespaceRef{NamespaceId(2), 1}));
}

TEST(StrongIdTest, HashesLikeItsValue) {
  const std::unordered_set<NodeId> ids = {NodeId(1), NodeId(2), NodeId(1)};
  EXPECT_EQ(ids.size(), 2U);
  EXPECT_EQ(kNoNode, NodeId());
}

}  // namespace
}  // namespace ems
