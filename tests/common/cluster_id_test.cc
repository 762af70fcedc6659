#include "common/cluster_id.h"

#include <gtest/gtest.h>

namespace ems {
namespace {

TEST(ClusterIdTest, OnlyKnownClustersAreStrangers) {
  EXPECT_TRUE(AreStrangers(ClusterId(1), ClusterId(2)));
  EXPECT_FALSE(AreStrangers(ClusterId(2), ClusterId(2)));
  EXPECT_FALSE(AreStrangers(kNoCluster, ClusterId(2)));
  EXPECT_FALSE(AreStrangers(ClusterId(1), kNoCluster));
}

TEST(ClusterIdTest, TextHasAFixedWidth) {
  EXPECT_EQ(ClusterText(ClusterId(0xab)), "00000000000000ab");
  EXPECT_EQ(ClusterText(kNoCluster), "(unknown)");
}

}  // namespace
}  // namespace ems
