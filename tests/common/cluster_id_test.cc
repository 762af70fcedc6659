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

TEST(ClusterIdTest, OnlyWhatItsTextIsIsParsed) {
  EXPECT_EQ(ParseCluster(ClusterText(ClusterId(0xab))), ClusterId(0xab));
  EXPECT_EQ(ParseCluster("ffffffffffffffff"), ClusterId(UINT64_MAX));
  for (const char* text : {"", "ab", "0000000000000000", "00000000000000abc", "000000000000000g",
                           "0x000000000000ab", "(unknown)"})
    EXPECT_EQ(ParseCluster(text), std::nullopt) << text;
}

}  // namespace
}  // namespace ems
