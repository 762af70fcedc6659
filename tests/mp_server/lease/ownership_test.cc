// What must hold: only the owner under a lease accepts writes, nobody does for a slot that its last
// owner may still believe to have, and views never go backwards.
#include "mp_server/lease/ownership.h"

#include <gtest/gtest.h>

#include <vector>

namespace ems::server {
namespace {

using std::chrono::seconds;

constexpr SlotId kSlot(7);
constexpr NodeId kSelf(2);

// All slots belong to `owner`, from the view of epoch `since` on (0: not told); `live` are the
// nodes of the view.
std::shared_ptr<const DhtView> MakeView(ViewVersion version, uint32_t owner,
                                        const std::vector<uint32_t>& live, uint64_t since = 0) {
  SlotTable slots;
  for (uint16_t s = 0; s < kSlotCount; ++s) slots.set_owner(SlotId(s), NodeId(owner));
  std::vector<NodeInfo> nodes(live.size());
  for (size_t i = 0; i < live.size(); ++i) nodes[i].id = NodeId(live[i]);
  SlotHistory history;
  if (since != 0) history = *SlotHistory::Make(9, std::vector(kSlotCount, since), version.epoch());
  return *DhtView::Make(version, nodes, slots, false, history);
}

class OwnershipTest : public ::testing::Test {
 protected:
  OwnershipTest() { ownership_.SetSelf(kSelf); }
  void Lease(Duration time) { ownership_.RenewLease(clock_.Now() + time); }
  Verdict Write(ViewVersion client) const { return ownership_.CheckWrite(kSlot, client); }
  Verdict Read(ViewVersion client) const { return ownership_.CheckRead(kSlot, client); }

  ManualClock clock_;
  Ownership ownership_{&clock_};
};

TEST_F(OwnershipTest, OwnsNothingBeforeTheFirstView) {
  Lease(seconds(5));
  EXPECT_EQ(Read(ViewVersion()), Verdict::kWrongOwner);
  EXPECT_EQ(Write(ViewVersion()), Verdict::kWrongOwner);
  EXPECT_EQ(Read(ViewVersion(1, 1)), Verdict::kBehind);
  EXPECT_EQ(ownership_.owned_slots(), 0U);
}

TEST_F(OwnershipTest, AnOwnerUnderALeaseSaysYes) {
  ownership_.SetActive(1);
  EXPECT_EQ(ownership_.Install(*MakeView({1, 1}, 2, {1, 2})).count(), kSlotCount);
  Lease(seconds(5));
  EXPECT_EQ(Read({1, 1}), Verdict::kYes);
  EXPECT_EQ(Write({1, 1}), Verdict::kYes);
  EXPECT_EQ(Write(ViewVersion()), Verdict::kYes) << "an old client that guessed right";
  EXPECT_EQ(Write({1, 2}), Verdict::kBehind);
  EXPECT_EQ(Write({2, 0}), Verdict::kBehind);
  EXPECT_EQ(ownership_.owned_slots(), kSlotCount);
}

TEST_F(OwnershipTest, AllSlotsAreHeldUntilTheViewThatWasNamedIsActive) {
  ownership_.SetActive(4);
  ownership_.HoldUntil(6);
  for (const uint64_t epoch : {uint64_t{5}, uint64_t{7}}) {
    ownership_.Install(*MakeView({1, epoch}, 2, {1, 2}, /*since=*/3));
    Lease(seconds(5));
    EXPECT_EQ(Read({1, 5}), Verdict::kYes);
    EXPECT_EQ(Write({1, 5}), Verdict::kHold);
    EXPECT_TRUE(ownership_.HoldsSlots());
  }
  ownership_.SetActive(5);
  EXPECT_EQ(Write({1, 5}), Verdict::kHold);
  ownership_.SetActive(6);
  EXPECT_EQ(Write({1, 5}), Verdict::kYes);
  EXPECT_FALSE(ownership_.HoldsSlots());
}

TEST_F(OwnershipTest, TheLeaseEndsExactlyAndOnlyForWrites) {
  ownership_.SetActive(1);
  ownership_.Install(*MakeView({1, 1}, 2, {2}));
  EXPECT_EQ(Write({1, 1}), Verdict::kFenced) << "no lease yet";
  Lease(seconds(5));
  clock_.Advance(seconds(5) - Duration(1));
  EXPECT_EQ(Write({1, 1}), Verdict::kYes);
  clock_.Advance(Duration(1));
  EXPECT_EQ(Write({1, 1}), Verdict::kFenced);
  EXPECT_EQ(Read({1, 1}), Verdict::kYes);
  Lease(seconds(5));
  EXPECT_EQ(Write({1, 1}), Verdict::kYes);
}

TEST_F(OwnershipTest, ALeaseNeverMovesBackwards) {
  Lease(seconds(5));
  Lease(seconds(1));  // a late answer to an earlier heartbeat
  EXPECT_EQ(ownership_.lease_until(), clock_.Now() + seconds(5));
}

TEST_F(OwnershipTest, ARevokedServerStaysFenced) {
  ownership_.SetActive(1);
  ownership_.Install(*MakeView({1, 1}, 2, {2}));
  Lease(seconds(5));
  ownership_.Revoke();
  Lease(seconds(50));
  EXPECT_FALSE(ownership_.LeaseValid());
  EXPECT_EQ(Write({1, 1}), Verdict::kFenced);
}

TEST_F(OwnershipTest, ViewsNeverGoBackwards) {
  ownership_.Install(*MakeView({2, 5}, 2, {1, 2}));
  for (const ViewVersion old : {ViewVersion(2, 5), ViewVersion(2, 4), ViewVersion(1, 99)}) {
    EXPECT_EQ(ownership_.Install(*MakeView(old, 1, {1, 2})).count(), kSlotCount);
    EXPECT_EQ(ownership_.version(), ViewVersion(2, 5));
    EXPECT_EQ(Read({2, 5}), Verdict::kYes);
  }
  EXPECT_EQ(ownership_.Install(*MakeView({3, 1}, 1, {1, 2})).count(), 0U);
  EXPECT_EQ(Read({3, 1}), Verdict::kWrongOwner);
}

TEST_F(OwnershipTest, AViewIsToldWhenItIsSettledAndRequestsAreCheckedAtOnce) {
  Lease(seconds(5));
  ownership_.Install(*MakeView({1, 1}, 2, {1, 2}));
  ownership_.Settle();
  const uint64_t before = ownership_.installed().fingerprint;
  ownership_.Install(*MakeView({1, 2}, 1, {1, 2}));
  EXPECT_EQ(Write({1, 2}), Verdict::kWrongOwner) << "no Put for what is lost, from here on";
  EXPECT_EQ(Read({1, 2}), Verdict::kWrongOwner);
  EXPECT_EQ(ownership_.version(), ViewVersion(1, 2));
  EXPECT_EQ(ownership_.installed().version, ViewVersion(1, 1));
  EXPECT_EQ(ownership_.installed().fingerprint, before) << "of the view that it goes with";
  EXPECT_EQ(ownership_.told_version(), ViewVersion(1, 1));
  ownership_.Settle();
  EXPECT_EQ(ownership_.installed().version, ViewVersion(1, 2));
  EXPECT_EQ(ownership_.told_version(), ViewVersion(1, 2));
}

TEST_F(OwnershipTest, ASlotThatWasGainedIsHeldUntilItsViewIsActive) {
  Lease(seconds(50));
  ownership_.Install(*MakeView({1, 1}, 1, {1, 2}));
  EXPECT_EQ(Write({1, 1}), Verdict::kWrongOwner);
  ownership_.Install(*MakeView({1, 2}, 2, {2}));
  EXPECT_EQ(Write({1, 2}), Verdict::kHold);
  EXPECT_EQ(Read({1, 2}), Verdict::kYes) << "a miss is legal at once";
  EXPECT_TRUE(ownership_.HoldsSlots());
  ownership_.SetActive(1);
  EXPECT_EQ(Write({1, 2}), Verdict::kHold);
  ownership_.SetActive(2);
  EXPECT_EQ(Write({1, 2}), Verdict::kYes);
  EXPECT_FALSE(ownership_.HoldsSlots());
}

TEST_F(OwnershipTest, AnotherViewDoesNotEndTheHold) {
  Lease(seconds(50));
  ownership_.Install(*MakeView({1, 1}, 1, {1, 2}));
  ownership_.Install(*MakeView({1, 2}, 2, {2}));
  ownership_.Install(*MakeView({1, 3}, 2, {2, 3}));  // somebody joins
  EXPECT_EQ(Write({1, 3}), Verdict::kHold);
  ownership_.SetActive(2);
  EXPECT_EQ(Write({1, 3}), Verdict::kYes) << "it has had the slot since the second view";
  ownership_.Install(*MakeView({1, 4}, 2, {2}));
  EXPECT_EQ(Write({1, 4}), Verdict::kYes) << "what was not lost is not held again";
}

// With a history the view itself says since when the slot is this server's: one that comes back, or
// has missed views, holds exactly what others may have had.
TEST_F(OwnershipTest, TheHistorySaysSinceWhen) {
  Lease(seconds(50));
  std::vector<uint64_t> since(kSlotCount, 5);
  since[kSlot.value()] = 3;
  ownership_.SetActive(3);
  SlotTable slots;
  for (uint16_t s = 0; s < kSlotCount; ++s) slots.set_owner(SlotId(s), kSelf);
  NodeInfo self;
  self.id = kSelf;
  ownership_.Install(
      **DhtView::Make({1, 6}, {self}, slots, false, *SlotHistory::Make(9, std::move(since), 6)));
  EXPECT_EQ(Write({1, 6}), Verdict::kYes);
  EXPECT_EQ(ownership_.CheckWrite(SlotId(8), {1, 6}), Verdict::kHold);
  ownership_.SetActive(2);
  EXPECT_EQ(Write({1, 6}), Verdict::kYes) << "late news of an earlier view";
}

TEST_F(OwnershipTest, WhatMayChangeIsReadUnderALeaseAlone) {
  ownership_.Install(*MakeView({1, 1}, 2, {2}));
  EXPECT_FALSE(ownership_.MayReadMutable());
  Lease(seconds(5));
  EXPECT_TRUE(ownership_.MayReadMutable());
  clock_.Advance(seconds(5));
  EXPECT_FALSE(ownership_.MayReadMutable());
}

TEST_F(OwnershipTest, NobodyOwnsAnythingWithoutAName) {
  Ownership nameless(&clock_);
  nameless.RenewLease(clock_.Now() + seconds(5));
  EXPECT_EQ(nameless.Install(*MakeView({1, 1}, 0, {1})).count(), 0U);
  EXPECT_EQ(nameless.CheckWrite(kSlot, {1, 1}), Verdict::kWrongOwner);
}

}  // namespace
}  // namespace ems::server
