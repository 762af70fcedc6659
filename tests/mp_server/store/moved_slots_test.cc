// What must hold: nothing becomes visible in a slot that is not open in that very era, or of a key
// that was changed in it; what is kept is for the next era, and nobody vouches for more than it has
// seen.
#include "mp_server/store/moved_slots.h"

#include <gtest/gtest.h>

#include "common/object_key.h"

namespace ems::server {
namespace {

constexpr NamespaceRef kNs{NamespaceId(1), 2};
constexpr uint64_t kHistory = 5;
constexpr SlotId kSlot{7};
constexpr NodeId kPeer{3};
constexpr Duration kKeepFor = std::chrono::seconds(100);

class MovedSlotsTest : public ::testing::Test {
 protected:
  // A view gives this server the slot since that epoch; it is open if `opens`.
  void Gain(uint64_t since, bool opens = true) {
    std::map<uint16_t, Origin> origins;
    if (opens) origins[kSlot.value()] = {{kHistory, since}, kPeer};
    moved_.Gain(kHistory, Since(since), Owned(true), origins);
  }
  void Lose(uint64_t since, bool keeps = true) {
    moved_.Lose(kHistory, Since(since), Owned(false), Owned(keeps));
  }
  bool MayLand(uint64_t since, std::string_view key = "k") const {
    return moved_.MayLand(kSlot, since, kNs, KeyHash(key));
  }
  std::optional<Origin> Untouched(uint64_t since, std::string_view key = "k") {
    return moved_.Untouched(kSlot, {kHistory, since}, kNs, KeyHash(key));
  }
  void Mark(std::string_view key) { moved_.Mark(kSlot, kNs, KeyHash(key)); }

  static std::vector<uint64_t> Since(uint64_t since) {
    return std::vector<uint64_t>(kSlotCount, since);
  }
  static std::bitset<kSlotCount> Owned(bool owned) {
    std::bitset<kSlotCount> slots;
    slots[kSlot.value()] = owned;
    return slots;
  }

  ManualClock clock_;
  MovedSlots moved_{kKeepFor, &clock_};
};

TEST_F(MovedSlotsTest, ASlotIsOpenInItsEraAlone) {
  EXPECT_FALSE(MayLand(4));
  EXPECT_FALSE(MayLand(0));
  Gain(4);
  EXPECT_TRUE(moved_.AnyOpen());
  EXPECT_TRUE(MayLand(4));
  EXPECT_FALSE(MayLand(3));
  EXPECT_EQ(moved_.OriginOf(kSlot)->node, kPeer);
  EXPECT_EQ(moved_.OriginOf(SlotId(8)), std::nullopt);
  Gain(4, false);  // the next view says nothing else of it
  EXPECT_TRUE(MayLand(4));
  Gain(9, false);  // it went to another server and came back unseen
  EXPECT_FALSE(MayLand(4));
  EXPECT_FALSE(moved_.AnyOpen());
}

TEST_F(MovedSlotsTest, AChangedKeyIsMarked) {
  Mark("before");
  Gain(4);
  Mark("k");
  moved_.Mark(kNs, KeyHash("removed"));
  EXPECT_FALSE(MayLand(4, "k"));
  EXPECT_FALSE(MayLand(4, "removed"));
  EXPECT_TRUE(MayLand(4, "before")) << "that was not in this era";
  EXPECT_TRUE(moved_.MayLand(kSlot, 4, {NamespaceId(1), 3}, KeyHash("k"))) << "another namespace";
}

TEST_F(MovedSlotsTest, MarksOfAnEarlierTimeAreForgottenWhenNothingIsOpen) {
  Gain(4);
  Mark("k");
  Lose(5, false);
  Gain(6);
  EXPECT_TRUE(MayLand(6));
}

TEST_F(MovedSlotsTest, WhatIsKeptIsForTheNextEraAlone) {
  Lose(5);
  EXPECT_TRUE(moved_.Keeps(kSlot, {kHistory, 5}));
  EXPECT_FALSE(moved_.Keeps(kSlot, {kHistory, 4}));
  EXPECT_FALSE(moved_.Keeps(kSlot, {kHistory, 6}));
  EXPECT_FALSE(moved_.Keeps(kSlot, {kHistory + 1, 5}));
  EXPECT_FALSE(moved_.Keeps(SlotId(8), {kHistory, 5}));
  EXPECT_EQ(moved_.kept_slots().count(), 1U);
}

TEST_F(MovedSlotsTest, WhoMarkedAllTheTimeVouchesForWhatItDidNotMark) {
  Gain(4);
  Mark("k");
  Lose(6);
  EXPECT_EQ(Untouched(6, "k"), std::nullopt);
  const auto before = Untouched(6, "other");
  ASSERT_TRUE(before.has_value());
  EXPECT_EQ(before->node, kPeer);
  EXPECT_EQ(before->era, (Era{kHistory, 4}));
  EXPECT_EQ(Untouched(5, "other"), std::nullopt) << "another era";
  // It is not forgotten while it counts.
  Gain(8);
  EXPECT_EQ(Untouched(6, "k"), std::nullopt);
}

TEST_F(MovedSlotsTest, WhoDidNotMarkVouchesForNothing) {
  Gain(4, false);
  Lose(6);
  EXPECT_EQ(Untouched(6), std::nullopt);
}

TEST_F(MovedSlotsTest, AFinishedSlotIsClosedForGood) {
  Gain(4);
  EXPECT_EQ(moved_.opened().size(), 1U);
  EXPECT_FALSE(moved_.Finish(kSlot, {kHistory, 3})) << "another era";
  EXPECT_FALSE(moved_.Finish(SlotId(8), {kHistory, 4}));
  EXPECT_TRUE(MayLand(4));
  EXPECT_TRUE(moved_.Finish(kSlot, {kHistory, 4}));
  EXPECT_FALSE(moved_.AnyOpen());
  EXPECT_FALSE(MayLand(4)) << "what was on its way";
  EXPECT_EQ(moved_.OriginOf(kSlot), std::nullopt);
  EXPECT_TRUE(moved_.opened().empty());
  EXPECT_FALSE(moved_.Finish(kSlot, {kHistory, 4}));
  Gain(4, false);  // the next view of the era
  EXPECT_FALSE(MayLand(4));
}

// It does not mark any more.
TEST_F(MovedSlotsTest, WhoHasFinishedVouchesForNothing) {
  Gain(4);
  EXPECT_TRUE(moved_.Finish(kSlot, {kHistory, 4}));
  Lose(6);
  EXPECT_EQ(Untouched(6), std::nullopt);
  EXPECT_EQ(moved_.Before(kSlot, {kHistory, 6}), std::nullopt);
}

TEST_F(MovedSlotsTest, OriginsAreThoseOfOpenSlots) {
  EXPECT_TRUE(moved_.origins().empty());
  Gain(4);
  moved_.Reach(kSlot, {kHistory, 3}, NodeId(9));
  EXPECT_EQ(moved_.origins(), std::vector{kPeer});
  moved_.Reach(kSlot, {kHistory, 4}, NodeId(1));
  EXPECT_EQ(moved_.origins(), (std::vector{NodeId(1), kPeer}));
  EXPECT_TRUE(moved_.Finish(kSlot, {kHistory, 4}));
  EXPECT_TRUE(moved_.origins().empty());
}

TEST_F(MovedSlotsTest, EverythingHasItsTime) {
  Gain(4);
  clock_.Advance(kKeepFor / 2);
  EXPECT_TRUE(moved_.Expire().none());
  clock_.Advance(kKeepFor / 2);
  EXPECT_TRUE(moved_.Expire().none());
  EXPECT_FALSE(moved_.AnyOpen());
  Lose(6);
  EXPECT_EQ(Untouched(6), std::nullopt) << "changes have not been marked to the end";
  clock_.Advance(kKeepFor);
  EXPECT_FALSE(moved_.Keeps(kSlot, {kHistory, 6}));
  EXPECT_EQ(moved_.Expire().count(), 1U);
  EXPECT_TRUE(moved_.kept_slots().none());
}

TEST_F(MovedSlotsTest, AFullFilterLetsNothingLand) {
  Gain(4);
  uint64_t marks = 0;
  while (moved_.AnyOpen() && marks < 4 * MovedSlots::kMarksMax) {
    for (int i = 0; i < 1000; ++i) {
      const uint64_t number = marks++ * 0x9e3779b97f4a7c15;
      moved_.Mark(kSlot, kNs, Hash128{number, ~number});
    }
    clock_.Advance(std::chrono::seconds(2) / 10000);
    (void)moved_.Expire();
  }
  EXPECT_GE(marks, MovedSlots::kMarksMax);
  EXPECT_LT(marks, 2 * MovedSlots::kMarksMax);
  EXPECT_FALSE(moved_.AnyOpen());
  EXPECT_FALSE(MayLand(4));
}

}  // namespace
}  // namespace ems::server
