// What must hold: copies that were sent here stay as long as is said and no longer, there are not
// more of them than is said, and what is this server's own stays.
#include "mp_server/hot/hot_guests.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/mp_server/forward/forward_rig.h"

namespace ems::server {
namespace {

using std::chrono::seconds;
using wire::WireStatus;

class HotGuestsTest : public ForwardTest {
 protected:
  HotGuestsTest() {
    immutable_ = true;
    Start(1);
    Start(2);
    Move({1, 2}, 1);
  }
  HotGuests& guests() { return Node(2).hot_guests(); }
  bool MayHold(SlotId slot) { return Node(2).store().Open(ForwardNode::kNs).HoldsCopies(slot); }
};

TEST_F(HotGuestsTest, ASlotTakesCopiesWhileOneIsExpectedThere) {
  EXPECT_FALSE(MayHold(kSlot));
  EXPECT_TRUE(guests().Admit(ForwardNode::kNs, kSlot, "a"));
  clock_.Advance(seconds(10));
  EXPECT_TRUE(guests().Admit(ForwardNode::kNs, kSlot, "b"));
  EXPECT_TRUE(MayHold(kSlot));
  clock_.Advance(seconds(10));
  guests().Expire();
  EXPECT_EQ(guests().size(), 1U);
  EXPECT_TRUE(MayHold(kSlot)) << "the other one stays";
  clock_.Advance(seconds(10));
  guests().Expire();
  EXPECT_EQ(guests().size(), 0U);
  EXPECT_FALSE(MayHold(kSlot));
}

TEST_F(HotGuestsTest, WhatIsSentAgainStaysLonger) {
  EXPECT_TRUE(guests().Admit(ForwardNode::kNs, kSlot, "a"));
  clock_.Advance(seconds(19));
  EXPECT_TRUE(guests().Admit(ForwardNode::kNs, kSlot, "a"));
  clock_.Advance(seconds(19));
  guests().Expire();
  EXPECT_TRUE(MayHold(kSlot));
  clock_.Advance(seconds(1));
  guests().Expire();
  EXPECT_FALSE(MayHold(kSlot));
}

TEST_F(HotGuestsTest, ThereAreNoMoreThanIsSaid) {
  for (size_t i = 0; i < HotGuests::kMost; ++i)
    ASSERT_TRUE(
        guests().Admit(ForwardNode::kNs, SlotId(static_cast<uint16_t>(i)), std::to_string(i)));
  EXPECT_FALSE(guests().Admit(ForwardNode::kNs, SlotId(5000), "one more"));
  EXPECT_FALSE(MayHold(SlotId(5000)));
  EXPECT_TRUE(guests().Admit(ForwardNode::kNs, SlotId(7), "7")) << "one that is there";
  guests().Clear();
  EXPECT_FALSE(MayHold(SlotId(7)));
  EXPECT_TRUE(guests().Admit(ForwardNode::kNs, SlotId(5000), "one more"));
}

TEST_F(HotGuestsTest, WhatIsThisServersOwnStays) {
  ASSERT_TRUE(Node(1).hot_guests().Admit(ForwardNode::kNs, kSlot, "own"));
  ASSERT_EQ(Node(1).Put(kSlot, "own", "value", /*overwrite=*/false), WireStatus::kOk);
  Node(1).hot_guests().Clear();
  EXPECT_TRUE(Node(1).HasItself("own"));
}

}  // namespace
}  // namespace ems::server
