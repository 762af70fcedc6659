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

TEST_F(MovedSlotsTest, WhatWasChangedInAnEarlierEraMayLandInALaterOne) {
  Gain(4);
  Mark("k");
  moved_.Mark(kNs, KeyHash("removed"));
  Lose(5);
  Gain(6);
  EXPECT_EQ(Untouched(5), std::nullopt) << "of that era it counts";
  EXPECT_TRUE(MayLand(6));
  EXPECT_FALSE(MayLand(6, "removed")) << "nobody knows in which slot it is";
  Mark("k");
  EXPECT_FALSE(MayLand(6));
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

TEST_F(MovedSlotsTest, WhoIsVouchedForIsNamedUntilNothingIsKeptAnyMore) {
  Gain(4);
  EXPECT_TRUE(moved_.vouched_for().empty());
  Lose(5);
  EXPECT_EQ(moved_.vouched_for(), std::vector{kPeer});
  clock_.Advance(kKeepFor);
  (void)moved_.Expire();
  EXPECT_TRUE(moved_.vouched_for().empty());
  Gain(6, false);
  Lose(7);
  EXPECT_TRUE(moved_.vouched_for().empty()) << "it was not open";
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

class FullGroupTest : public MovedSlotsTest {
 protected:
  static constexpr SlotId kElsewhere{8};
  static_assert(MovedSlots::GroupOf(kSlot) != MovedSlots::GroupOf(kElsewhere));
  // Of the same group.
  static constexpr SlotId kBeside{7 + MovedSlots::kGroups};
  static_assert(MovedSlots::GroupOf(kSlot) == MovedSlots::GroupOf(kBeside));

  void GainAll(uint64_t since) {
    std::bitset<kSlotCount> owned;
    std::map<uint16_t, Origin> origins;
    for (const SlotId slot : {kSlot, kBeside, kElsewhere}) {
      owned.set(slot.value());
      origins[slot.value()] = {{kHistory, since}, kPeer};
    }
    moved_.Gain(kHistory, Since(since), owned, origins);
  }
  static Hash128 HashOf(uint64_t number) {
    const uint64_t mixed = number * 0x9e3779b97f4a7c15;
    return {mixed ^ mixed >> 29, ~mixed};
  }
  // So many changes of other keys each time.
  void MarkMany(SlotId slot, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) moved_.Mark(slot, kNs, HashOf(marks_++));
  }
  // Of a thousand keys that were not changed, how many count as changed.
  int FalseMarks(SlotId slot) const {
    int marked = 0;
    for (uint64_t i = 0; i < 1000; ++i)
      marked += moved_.IsMarked(slot, kNs, HashOf((uint64_t{1} << 40) + i), 4) ? 1 : 0;
    return marked;
  }
  void Fill(SlotId slot) {
    for (int i = 0; i < 200 && moved_.IsOpen(slot); ++i) {
      MarkMany(slot, 1000);
      (void)moved_.Expire();
    }
  }

  uint64_t marks_ = 0;
};

TEST_F(FullGroupTest, OnlyTheSlotsOfAFullGroupClose) {
  GainAll(4);
  Fill(kSlot);
  EXPECT_FALSE(moved_.IsOpen(kSlot));
  EXPECT_FALSE(moved_.IsOpen(kBeside)) << "its changes are marked in the same part of the filter";
  EXPECT_FALSE(MayLand(4));
  EXPECT_TRUE(moved_.MayLand(kElsewhere, 4, kNs, KeyHash("k")));
  EXPECT_EQ(moved_.open_slots(), 1U);
  EXPECT_EQ(FalseMarks(kElsewhere), 0);
}

TEST_F(FullGroupTest, NothingLandsInAFullGroupBeforeItIsClosed) {
  GainAll(4);
  MarkMany(kSlot, 200'000);
  EXPECT_TRUE(moved_.IsOpen(kSlot)) << "Expire has not been called";
  EXPECT_EQ(FalseMarks(kSlot), 1000);
  Lose(6);
  EXPECT_EQ(moved_.Before(kSlot, {kHistory, 6}), std::nullopt) << "too many keys count as marked";
}

TEST_F(FullGroupTest, AGroupFillsSlowly) {
  GainAll(4);
  MarkMany(kSlot, 16'384);
  EXPECT_LT(FalseMarks(kSlot), 50);
  MarkMany(kSlot, 16'384);
  EXPECT_LT(FalseMarks(kSlot), 250);
  (void)moved_.Expire();
  EXPECT_TRUE(moved_.IsOpen(kSlot));
  Fill(kSlot);
  EXPECT_GT(marks_, 50'000U) << "closed too early";
  EXPECT_LT(marks_, 80'000U) << "closed too late: most of what lands is lost before";
}

TEST_F(FullGroupTest, AGroupIsEmptyAgainOnceNobodyAsksAboutIt) {
  GainAll(4);
  Fill(kSlot);
  moved_.Mark(kElsewhere, kNs, KeyHash("changed"));
  Gain(6);  // the slot elsewhere goes by the view, and with it what was marked there
  EXPECT_TRUE(MayLand(6));
  EXPECT_EQ(FalseMarks(kSlot), 0);
}

TEST_F(FullGroupTest, MarksStayWhereASlotOfTheGroupIsOpen) {
  GainAll(4);
  Mark("k");
  std::bitset<kSlotCount> owned;
  owned.set(kSlot.value()).set(kBeside.value());
  // Another one of the group opens.
  moved_.Gain(kHistory, Since(4), owned, {{kBeside.value(), {{kHistory, 6}, kPeer}}});
  EXPECT_FALSE(MayLand(4));
  // The same for what is vouched for.
  moved_.Lose(kHistory, Since(8), {}, owned);
  moved_.Gain(kHistory, Since(9), owned, {{kBeside.value(), {{kHistory, 9}, kPeer}}});
  EXPECT_TRUE(Untouched(8, "other").has_value());
  EXPECT_EQ(Untouched(8), std::nullopt);
}

TEST_F(FullGroupTest, AChangeInNoKnownSlotIsMarkedInAll) {
  GainAll(4);
  moved_.Mark(kNs, KeyHash("k"));
  for (const SlotId slot : {kSlot, kBeside, kElsewhere})
    EXPECT_FALSE(moved_.MayLand(slot, 4, kNs, KeyHash("k")));
}

}  // namespace
}  // namespace ems::server
