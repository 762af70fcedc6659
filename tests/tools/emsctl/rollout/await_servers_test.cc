// What must hold: whatever of a cluster moves or is not well is in the way of the next change, and
// is named; a wait ends with the last of it.
#include "tools/emsctl/rollout/await_servers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/controller.pb.h"

namespace ems::emsctl {
namespace {

using ::testing::HasSubstr;

class UnrestTest : public ::testing::Test {
 protected:
  UnrestTest() {
    std::vector<NodeInfo> infos(2);
    SlotTable slots;
    for (size_t i = 0; i < infos.size(); ++i) {
      infos[i].id = NodeId(static_cast<uint32_t>(i + 1));
      infos[i].name = i == 0 ? "a" : "b";
      v1::NodeStatus* const node = nodes_.add_nodes();
      node->mutable_node()->set_id(static_cast<uint32_t>(i + 1));
      node->mutable_node()->set_name(infos[i].name);
      node->mutable_node()->set_state(v1::NODE_LIVE);
      node->set_slots(kSlotCount / 2);
      node->set_term(1);
      node->set_epoch(4);
    }
    for (uint16_t i = 0; i < kSlotCount; ++i) slots.set_owner(SlotId(i), NodeId(1 + i % 2));
    view_ = *DhtView::Make({1, 4}, infos, slots, false);
    nodes_.set_heartbeat_ms(1000);
    nodes_.set_lease_ms(5000);
  }
  v1::NodeStatus& a() { return *nodes_.mutable_nodes(0); }
  std::string Unrest() { return UnrestOf(nodes_, view_.get()).value_or("none"); }

  v1::ListNodesReply nodes_;
  ViewCache::View view_;
};

TEST_F(UnrestTest, AQuietClusterIsFree) {
  EXPECT_EQ(Unrest(), "none");
  a().set_drain(v1::DRAIN_DRAINED);
  a().set_slots(0);
  EXPECT_EQ(Unrest(), "none") << "an operator has taken it out";
}

TEST_F(UnrestTest, WhatMovesIsNamed) {
  a().set_pulls_from(2);
  EXPECT_THAT(Unrest(), HasSubstr("server a still fetches what 2 others keep"));
  a().set_pulls_from(0);
  a().set_behind_ms(5);
  EXPECT_THAT(Unrest(), HasSubstr("server a has not the newest view"));
  a().set_behind_ms(0);
  a().set_drain(v1::DRAIN_DRAINING);
  EXPECT_THAT(Unrest(), HasSubstr("server a is being drained: 8192 slots"));
  a().set_drain(v1::DRAIN_NONE);
  a().set_waited_for(true);
  EXPECT_THAT(Unrest(), HasSubstr("Puts wait for an earlier process of server a"));
  a().set_waited_for(false);
  a().set_slots(0);
  EXPECT_THAT(Unrest(), HasSubstr("server a has no slots yet"));
}

TEST_F(UnrestTest, WhatIsNotWellIsNamed) {
  a().mutable_node()->set_state(v1::NODE_DOWN);
  EXPECT_THAT(Unrest(), HasSubstr("server a is not well"));
  a().mutable_node()->set_state(v1::NODE_LEFT);
  EXPECT_THAT(Unrest(), HasSubstr("server a is stopped"));
  a().set_slots(0);
  EXPECT_EQ(Unrest(), "none") << "it has left";
  nodes_.set_store_is_old(true);
  EXPECT_THAT(Unrest(), HasSubstr("health is DEGRADED"));
}

TEST(AwaitTest, AWaitEndsWithWhatIsInTheWay) {
  ControllerClient nobody("127.0.0.1:1", "test");
  const Patience short_one{.call = std::chrono::milliseconds(50),
                           .whole = std::chrono::milliseconds(100)};
  const auto nothing = [](const v1::ListNodesReply&, const DhtView*) {
    return std::optional<std::string>();
  };
  const Status waited = AwaitFree(&nobody, nothing, short_one);
  EXPECT_EQ(waited.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(waited), HasSubstr("127.0.0.1:1"));
  EXPECT_FALSE(AwaitDrained(&nobody, "a", short_one).ok());
  EXPECT_FALSE(AwaitSettled(&nobody, "a", short_one).ok());
}

}  // namespace
}  // namespace ems::emsctl
