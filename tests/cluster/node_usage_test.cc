#include "cluster/node_usage.h"

#include <gtest/gtest.h>

#include "proto/controller.pb.h"

namespace ems {
namespace {

TEST(NodeUsageTest, ComesBackFromTheWireAsItWas) {
  for (const SsdState state :
       {SsdState::kNone, SsdState::kOk, SsdState::kDegraded, SsdState::kOffline}) {
    v1::NodeUsage proto;
    ToProto({.dram_used_bytes = 1,
             .dram_total_bytes = 2,
             .objects = 3,
             .ssd_used_bytes = 4,
             .ssd_total_bytes = 5,
             .ssd_state = state,
             .gets = 7,
             .hits = 6,
             .damaged_objects = 8},
            &proto);
    const NodeUsage usage = FromProto(proto);
    EXPECT_EQ(usage.dram_used_bytes, 1U);
    EXPECT_EQ(usage.dram_total_bytes, 2U);
    EXPECT_EQ(usage.objects, 3U);
    EXPECT_EQ(usage.ssd_used_bytes, 4U);
    EXPECT_EQ(usage.ssd_total_bytes, 5U);
    EXPECT_EQ(usage.ssd_state, state);
    EXPECT_EQ(usage.gets, 7U);
    EXPECT_EQ(usage.hits, 6U);
    EXPECT_EQ(usage.damaged_objects, 8U);
  }
}

TEST(NodeUsageTest, StatesMeanTheSameOnTheWire) {
  EXPECT_EQ(static_cast<int>(SsdState::kOk), v1::SSD_OK);
  EXPECT_EQ(static_cast<int>(SsdState::kDegraded), v1::SSD_DEGRADED);
  EXPECT_EQ(static_cast<int>(SsdState::kOffline), v1::SSD_OFFLINE);
}

TEST(NodeUsageTest, AStateOfANewerServerIsNone) {
  v1::NodeUsage proto;
  proto.set_ssd_state(static_cast<v1::SsdState>(77));
  EXPECT_EQ(FromProto(proto).ssd_state, SsdState::kNone);
}

TEST(NodeUsageTest, CurvesAreBounded) {
  NodeUsage usage;
  usage.curves.resize(kHitCurvesMax + 1);
  usage.curves[0].lookups = 5;
  v1::NodeUsage proto;
  ToProto(usage, &proto);
  const NodeUsage back = FromProto(proto);
  ASSERT_EQ(back.curves.size(), kHitCurvesMax);
  EXPECT_EQ(back.curves[0].lookups, 5U);
}

}  // namespace
}  // namespace ems
