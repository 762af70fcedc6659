// What must hold: of a slot that has come here the holders of copies are asked for a while, and of
// no other.
#include "mp_server/forward/copy_sources.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace ems::server {
namespace {

constexpr SlotId kSlot{7};
constexpr NodeId kSelf{1};

// kSlot has this owner; nodes 2 and 3 hold copies of it, or nobody does.
std::shared_ptr<const DhtView> View(uint32_t owner, bool copies = true, uint64_t boot_id = 9) {
  static uint64_t epoch = 0;
  std::vector<NodeInfo> nodes;
  for (uint32_t i = 1; i <= 4; ++i) {
    NodeInfo& node = nodes.emplace_back();
    node.id = NodeId(i);
    node.name = "n" + std::to_string(i);
    node.boot_id = boot_id;
  }
  SlotTable slots;
  slots.set_owner(kSlot, NodeId(owner));
  SlotCopies holders;
  if (copies) holders.Set(kSlot, std::array<NodeId, 2>{NodeId(2), NodeId(3)});
  return *DhtView::Make(ViewVersion(1, ++epoch), nodes, slots, false, {}, kNoCluster, {},
                        std::move(holders));
}

TEST(CopySourcesTest, ASlotThatCameIsSoughtForAWhile) {
  ManualClock clock;
  CopySources sources(std::chrono::seconds(60), &clock);
  sources.SetView(*View(4), kSelf);
  EXPECT_FALSE(sources.MaySeekAny());
  const TimePoint until = sources.SetView(*View(1), kSelf);
  EXPECT_EQ(until, clock.Now() + std::chrono::seconds(60));
  EXPECT_TRUE(sources.MaySeek(kSlot));
  EXPECT_EQ(sources.Of(kSlot, 3), std::vector({NodeId(2), NodeId(3)}));
  EXPECT_EQ(sources.Of(kSlot, 2), std::vector({NodeId(2)}));
  EXPECT_TRUE(sources.Of(kSlot, 1).empty());
  sources.SetView(*View(1), kSelf);
  EXPECT_TRUE(sources.MaySeek(kSlot)) << "it is this server's still";
  clock.Advance(std::chrono::seconds(61));
  EXPECT_TRUE(sources.Of(kSlot, 3).empty());
  EXPECT_FALSE(sources.MaySeek(kSlot));
}

TEST(CopySourcesTest, ASlotThatWasHereAndOneWithoutCopiesAreNot) {
  ManualClock clock;
  CopySources sources(std::chrono::seconds(60), &clock);
  sources.SetView(*View(1, false), kSelf);
  EXPECT_FALSE(sources.MaySeek(kSlot));
  sources.SetView(*View(1), kSelf);
  EXPECT_FALSE(sources.MaySeek(kSlot)) << "what its copies have came from here";
  sources.SetView(*View(4), kSelf);
  sources.SetView(*View(1), kSelf);
  EXPECT_TRUE(sources.MaySeek(kSlot));
  sources.SetView(*View(4), kSelf);
  EXPECT_FALSE(sources.MaySeek(kSlot)) << "it has gone again";
}

TEST(CopySourcesTest, AProcessThatBeginsSeeksWhatItIsGiven) {
  ManualClock clock;
  CopySources sources(std::chrono::seconds(60), &clock);
  sources.SetView(*View(1), kSelf);
  EXPECT_TRUE(sources.MaySeek(kSlot));
}

}  // namespace
}  // namespace ems::server
