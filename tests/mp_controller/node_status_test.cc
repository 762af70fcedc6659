// What must hold: operators see what membership knows of a node, and each state as what it is.
#include "mp_controller/node_status.h"

#include <gtest/gtest.h>

#include "proto/controller.pb.h"

namespace ems::controller {
namespace {

TEST(NodeStatusTest, SaysAllThatIsKnownOfAMember) {
  MemberStatus member;
  member.info.id = NodeId(7);
  member.info.name = "a";
  member.info.capacity_bytes = 1 << 20;
  member.state = NodeState::kLive;
  member.usage.objects = 5;
  member.installed = ViewVersion(2, 9);
  member.ahead = true;
  member.heartbeat_age = std::chrono::microseconds(1'999'999);
  member.never_heard = true;
  member.times = {.joined_unix_ms = 11, .left_unix_ms = 12};
  v1::NodeStatus status;
  ToProto(member, &status);
  EXPECT_EQ(status.node().id(), 7u);
  EXPECT_EQ(status.node().name(), "a");
  EXPECT_EQ(status.node().capacity_bytes(), 1u << 20);
  EXPECT_EQ(status.usage().objects(), 5u);
  EXPECT_EQ(status.term(), 2u);
  EXPECT_EQ(status.epoch(), 9u);
  EXPECT_TRUE(status.ahead());
  EXPECT_EQ(status.heartbeat_age_ms(), 1999u);
  EXPECT_TRUE(status.never_heard());
  EXPECT_EQ(status.node().joined_unix_ms(), 11);
  EXPECT_EQ(status.node().left_unix_ms(), 12);
}

TEST(NodeStatusTest, EachStateIsWhatItIs) {
  for (const auto& [state, shown] :
       {std::pair(NodeState::kLive, v1::NODE_LIVE), std::pair(NodeState::kDown, v1::NODE_DOWN),
        std::pair(NodeState::kLeft, v1::NODE_LEFT),
        std::pair(NodeState::kUnknown, v1::NODE_UNKNOWN)}) {
    MemberStatus member;
    member.state = state;
    v1::NodeStatus status;
    ToProto(member, &status);
    EXPECT_EQ(status.node().state(), shown);
  }
}

TEST(NodeStatusTest, CurvesAreThoseOfLiveServersAndOfNamespacesThatThereAre) {
  v1::ListNamespacesReply reply;
  v1::Namespace* known = reply.add_namespaces();
  known->set_id(3);
  known->set_generation(9);
  HitCurve curve;
  curve.ref = {NamespaceId(3), 9};
  curve.lookups = 10;
  HitCurve gone = curve;
  gone.ref.generation = 8;
  MemberStatus live, down;
  live.state = NodeState::kLive;
  live.usage.curves = {curve, gone};
  down.state = NodeState::kDown;
  down.usage.curves = {curve};
  AddHitCurves({live, down, live}, &reply);
  ASSERT_EQ(reply.curves_size(), 1);
  EXPECT_EQ(reply.curves(0).generation(), 9u);
  EXPECT_EQ(reply.curves(0).lookups(), 20u);
  v1::NodeStatus status;
  ToProto(live, &status);
  EXPECT_EQ(status.usage().curves_size(), 0) << "a list of thousands of servers stays small";
}

}  // namespace
}  // namespace ems::controller
