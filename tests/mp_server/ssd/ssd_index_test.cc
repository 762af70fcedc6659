// What must hold: of all writes and drops of a name the last one counts, and a name is owed a
// delete until the delete of that very owing has been written.
#include "mp_server/ssd/ssd_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>

#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::ssd {
namespace {

using ::ems::testing::BeginWrite;
using ::ems::testing::kNs;
using ::ems::testing::kOtherNs;
using ::ems::testing::MakeObject;
using ::ems::testing::NameOf;
using Fate = SsdIndex::Fate;

const ObjectName kName = NameOf("a");

Row RowOf(uint64_t sequence, uint64_t region_sequence = 1, uint64_t value_bytes = 100,
          uint16_t slot = 0) {
  Row row;
  row.sequence = sequence;
  row.region_sequence = region_sequence;
  row.value_bytes = value_bytes;
  row.slot = slot;
  return row;
}

OwedDelete Begin(SsdIndex* index, const ObjectName& name, uint64_t sequence, uint16_t slot = 0) {
  const auto object = MakeObject("any", 1, 8, name.ns, slot);
  const SsdIndex::Begun begun = BeginWrite(index, name, sequence, *object);
  EXPECT_TRUE(begun.begun);
  return begun.owed;
}

void Store(SsdIndex* index, const ObjectName& name, const Row& row) {
  (void)Begin(index, name, row.sequence, row.slot);
  ASSERT_TRUE(index->Commit(name, row));
}

enum class Is : uint8_t { kNothing, kPending, kStored, kBoth };
Is StateOf(SsdIndex* index, const ObjectName& name) {
  const SsdIndex::Found found = index->Find(name, false);
  if (found.stored && found.pending) return Is::kBoth;
  if (found.stored) return Is::kStored;
  return found.pending ? Is::kPending : Is::kNothing;
}

bool Owes(SsdIndex* index, const ObjectName& name) {
  const std::vector<OwedDelete> all = index->Owed();
  return std::any_of(all.begin(), all.end(), [&](const auto& one) { return one.name == name; });
}

void EndOwing(SsdIndex* index, const OwedDelete& owed) { index->EndOwing(std::span(&owed, 1)); }

struct SsdIndexTest : ::testing::Test {
  SsdIndex index;
};

TEST_F(SsdIndexTest, OfANewNameNothingIsKnownAndNothingIsOwed) {
  EXPECT_EQ(StateOf(&index, kName), Is::kNothing);
  EXPECT_FALSE(index.Counts(kName, 0));
  EXPECT_FALSE(index.Commit(kName, RowOf(0))) << "no write of it has begun";
  EXPECT_FALSE(index.Drop(kName));
  EXPECT_FALSE(index.DropRecord(kName, RowOf(0)));
  EXPECT_EQ(index.Reclaim(kName, 0, true).fate, Fate::kGone);
  index.AbandonWrite(kName, 0);
  EXPECT_EQ(StateOf(&index, kName), Is::kNothing);
  EXPECT_TRUE(index.Owed().empty());
}

TEST_F(SsdIndexTest, AWriteIsPendingUntilItsRowIsThere) {
  EXPECT_FALSE(Begin(&index, kName, 5)) << "there was nothing before";
  EXPECT_EQ(StateOf(&index, kName), Is::kPending);
  EXPECT_TRUE(index.Counts(kName, 5));
  EXPECT_FALSE(index.Counts(kName, 4));
  EXPECT_TRUE(index.Commit(kName, RowOf(5, 9, 77)));
  EXPECT_EQ(StateOf(&index, kName), Is::kStored);
  EXPECT_FALSE(index.Counts(kName, 5)) << "it is no write any more";
  const Row row = index.Find(kName, false).row;
  EXPECT_EQ(row.sequence, 5);
  EXPECT_EQ(row.region_sequence, 9);
  EXPECT_EQ(row.value_bytes, 77);
  EXPECT_TRUE(index.Owed().empty());
}

TEST_F(SsdIndexTest, AnAbandonedWriteLeavesNothing) {
  (void)Begin(&index, kName, 5);
  index.AbandonWrite(kName, 5);
  EXPECT_EQ(StateOf(&index, kName), Is::kNothing);
  EXPECT_FALSE(index.Commit(kName, RowOf(5)));
  EXPECT_FALSE(index.Drop(kName));
  EXPECT_EQ(index.totals().objects, 0);
}

TEST_F(SsdIndexTest, AWriteOverAStoredObjectOwesTheOldRowUntilItsOwnIsThere) {
  Store(&index, kName, RowOf(1));
  EXPECT_TRUE(Begin(&index, kName, 2));
  EXPECT_EQ(StateOf(&index, kName), Is::kPending) << "the old one does not count any more";
  EXPECT_TRUE(Owes(&index, kName));
  EXPECT_TRUE(index.Commit(kName, RowOf(2)));
  EXPECT_FALSE(Owes(&index, kName)) << "the new row is where the old one was";
}

TEST_F(SsdIndexTest, AWriteThatFailsOverAStoredObjectLeavesTheNameOwed) {
  Store(&index, kName, RowOf(1));
  (void)Begin(&index, kName, 2);
  index.AbandonWrite(kName, 2);
  EXPECT_EQ(StateOf(&index, kName), Is::kNothing);
  EXPECT_TRUE(Owes(&index, kName));
  EXPECT_TRUE(index.Drop(kName)) << "a Remove has something to wait for";
  EXPECT_TRUE(Begin(&index, kName, 3)) << "and so has a Put";
}

TEST_F(SsdIndexTest, OfTwoWritesTheOneThatBeganLastCounts) {
  (void)Begin(&index, kName, 2);
  EXPECT_TRUE(Begin(&index, kName, 1)) << "a row of the first may get there";
  EXPECT_FALSE(index.Counts(kName, 2));
  EXPECT_TRUE(index.Counts(kName, 1)) << "also with a smaller sequence: it began later";
  EXPECT_FALSE(index.Commit(kName, RowOf(2)));
  EXPECT_EQ(StateOf(&index, kName), Is::kPending);
  EXPECT_TRUE(Owes(&index, kName)) << "the refused row is there, and must go";
  index.AbandonWrite(kName, 2);
  EXPECT_TRUE(index.Counts(kName, 1)) << "the end of the first is none of the second's";
  EXPECT_TRUE(index.Commit(kName, RowOf(1)));
  EXPECT_EQ(index.Find(kName, false).row.sequence, 1);
  EXPECT_EQ(index.totals().objects, 1);
}

TEST_F(SsdIndexTest, CommitOfAWriteThatWasDroppedSaysNo) {
  (void)Begin(&index, kName, 1);
  const OwedDelete owed = index.Drop(kName);
  EXPECT_TRUE(owed);
  EXPECT_EQ(owed.name, kName);
  EXPECT_FALSE(index.Counts(kName, 1));
  EXPECT_FALSE(index.Commit(kName, RowOf(1)));
  EXPECT_EQ(StateOf(&index, kName), Is::kNothing);
  EXPECT_TRUE(Owes(&index, kName));
}

TEST_F(SsdIndexTest, ANameIsOwedUntilTheDeleteIsWritten) {
  Store(&index, kName, RowOf(1));
  const OwedDelete owed = index.Drop(kName);
  EXPECT_TRUE(owed);
  EXPECT_EQ(StateOf(&index, kName), Is::kNothing);
  EXPECT_EQ(index.Drop(kName).since, owed.since) << "a second Remove waits for the same";
  EndOwing(&index, owed);
  EXPECT_FALSE(index.Drop(kName));
  EXPECT_FALSE(Begin(&index, kName, 2));
}

TEST_F(SsdIndexTest, ADeleteThatIsWrittenLateDoesNotEndANewerOwing) {
  Store(&index, kName, RowOf(1));
  const OwedDelete first = index.Drop(kName);
  Store(&index, kName, RowOf(2));
  const OwedDelete second = index.Drop(kName);
  EXPECT_NE(first.since, second.since);
  EndOwing(&index, first);
  EXPECT_EQ(index.Drop(kName).since, second.since) << "the row of the second write may be there";
  EndOwing(&index, second);
  EXPECT_FALSE(index.Drop(kName));
}

TEST_F(SsdIndexTest, ADeleteThatIsWrittenLateDoesNotEndTheOwingOfAWriteThatWasOvertaken) {
  Store(&index, kName, RowOf(1));
  const OwedDelete first = index.Drop(kName);
  (void)Begin(&index, kName, 2);
  const OwedDelete second = Begin(&index, kName, 3);
  EndOwing(&index, first);
  EXPECT_TRUE(Owes(&index, kName));
  EXPECT_TRUE(index.Counts(kName, 3));
  EndOwing(&index, second);
  EXPECT_FALSE(Owes(&index, kName));
  EXPECT_TRUE(index.Counts(kName, 3)) << "what is pending is not the delete's";
}

TEST_F(SsdIndexTest, ADeleteThatIsWrittenLateLeavesWhatIsStoredSince) {
  Store(&index, kName, RowOf(1));
  const OwedDelete first = index.Drop(kName);
  Store(&index, kName, RowOf(2));
  EndOwing(&index, first);
  EXPECT_EQ(StateOf(&index, kName), Is::kStored);
}

TEST_F(SsdIndexTest, AnEndOfManyOwingsEndsEachOnItsOwn) {
  std::vector<OwedDelete> owed;
  for (uint64_t i = 0; i < 100; ++i) {
    const ObjectName name = NameOf(std::to_string(i));
    Store(&index, name, RowOf(i + 1));
    owed.push_back(index.Drop(name));
  }
  const ObjectName again = NameOf("42");
  Store(&index, again, RowOf(1000));
  (void)index.Drop(again);
  index.EndOwing(owed);
  const std::vector<OwedDelete> left = index.Owed();
  ASSERT_EQ(left.size(), 1);
  EXPECT_EQ(left[0].name, again);
}

TEST_F(SsdIndexTest, AWriteThatMayHaveReachedTheRowsIsOwedUntilAnotherIsCommitted) {
  (void)Begin(&index, kName, 1);
  index.Owe(kName);
  index.AbandonWrite(kName, 1);
  EXPECT_TRUE(Owes(&index, kName));
  const OwedDelete before = index.Drop(kName);
  index.Owe(kName);
  EndOwing(&index, before);
  EXPECT_TRUE(Owes(&index, kName)) << "owed another since";
  Store(&index, kName, RowOf(2));
  EXPECT_TRUE(index.Owed().empty());
}

TEST_F(SsdIndexTest, DropRecordTakesThatVeryRecordOnly) {
  Store(&index, kName, RowOf(5, 9));
  EXPECT_FALSE(index.DropRecord(kName, RowOf(4, 9))) << "an older one";
  EXPECT_FALSE(index.DropRecord(kName, RowOf(5, 8))) << "the same, before it was moved";
  EXPECT_FALSE(index.DropRecord(NameOf("b"), RowOf(5, 9)));
  EXPECT_EQ(StateOf(&index, kName), Is::kStored);
  EXPECT_TRUE(index.DropRecord(kName, RowOf(5, 9)));
  EXPECT_EQ(StateOf(&index, kName), Is::kNothing);
  EXPECT_TRUE(Owes(&index, kName));
  EXPECT_FALSE(index.DropRecord(kName, RowOf(5, 9))) << "once";
}

TEST_F(SsdIndexTest, DropRecordOfWhatIsBeingReplacedLeavesTheNewWrite) {
  Store(&index, kName, RowOf(5));
  (void)Begin(&index, kName, 6);
  EXPECT_FALSE(index.DropRecord(kName, RowOf(5)));
  EXPECT_TRUE(index.Commit(kName, RowOf(6)));
}

TEST_F(SsdIndexTest, WhatMovesIsStoredAllTheWhile) {
  Store(&index, kName, RowOf(1, 9));
  EXPECT_FALSE(index.Wanted(kName, 9)) << "nobody has read it";
  (void)index.Find(kName, true);
  EXPECT_FALSE(index.Wanted(kName, 8)) << "it is not there";
  ASSERT_TRUE(index.Wanted(kName, 9));
  EXPECT_TRUE(index.LiesIn(kName, 1, 9));
  EXPECT_EQ(StateOf(&index, kName), Is::kStored);
  EXPECT_TRUE(index.Move(kName, RowOf(1, 12), 9));
  EXPECT_EQ(index.Find(kName, false).row.region_sequence, 12);
  EXPECT_EQ(index.totals().objects, 1);
  EXPECT_FALSE(Owes(&index, kName));
  EXPECT_FALSE(index.LiesIn(kName, 1, 9));
  EXPECT_FALSE(index.Wanted(kName, 12)) << "nobody has read it there";
}

TEST_F(SsdIndexTest, WhatWasReplacedOrRemovedWhileItMovedStaysWhatItIs) {
  Store(&index, kName, RowOf(1, 9));
  (void)index.Find(kName, true);
  (void)Begin(&index, kName, 2);
  EXPECT_FALSE(index.Move(kName, RowOf(1, 12), 9));
  EXPECT_EQ(StateOf(&index, kName), Is::kPending);
  ASSERT_TRUE(index.Commit(kName, RowOf(2, 9)));
  EXPECT_FALSE(index.LiesIn(kName, 1, 9));
  EXPECT_FALSE(index.Move(kName, RowOf(1, 12), 9)) << "another Put, in the same region";
  EXPECT_EQ(index.Find(kName, false).row.sequence, 2);
  (void)index.Drop(kName);
  EXPECT_FALSE(index.Move(kName, RowOf(2, 12), 9));
  EXPECT_EQ(StateOf(&index, kName), Is::kNothing);
}

TEST_F(SsdIndexTest, ReclaimDropsWhatNobodyWantedAndOwesIt) {
  Store(&index, kName, RowOf(1, 9));
  (void)index.Find(kName, false);
  const SsdIndex::Reclaimed reclaimed = index.Reclaim(kName, 9, true);
  EXPECT_EQ(reclaimed.fate, Fate::kDropped);
  EXPECT_EQ(reclaimed.row.sequence, 1);
  EXPECT_TRUE(reclaimed.owed);
  EXPECT_EQ(reclaimed.owed.name, kName);
  EXPECT_EQ(StateOf(&index, kName), Is::kNothing);
  EXPECT_EQ(index.Drop(kName).since, reclaimed.owed.since);
}

TEST_F(SsdIndexTest, ReclaimKeepsWhatWasWantedAsAWriteOfTheSameSequence) {
  Store(&index, kName, RowOf(1, 9));
  (void)index.Find(kName, true);
  EXPECT_EQ(index.Reclaim(kName, 9, true).fate, Fate::kPending);
  EXPECT_EQ(StateOf(&index, kName), Is::kPending);
  EXPECT_FALSE(Owes(&index, kName)) << "its row is right until the new one is there";
  EXPECT_TRUE(index.Counts(kName, 1));
  EXPECT_TRUE(index.Commit(kName, RowOf(1, 12)));
  EXPECT_EQ(index.Find(kName, false).row.region_sequence, 12);
  EXPECT_EQ(index.Reclaim(kName, 12, true).fate, Fate::kDropped)
      << "nobody has wanted it since it was moved";
}

TEST_F(SsdIndexTest, ReclaimDropsWhatWasWantedWhenItMayNotMove) {
  Store(&index, kName, RowOf(1, 9));
  (void)index.Find(kName, true);
  EXPECT_EQ(index.Reclaim(kName, 9, false).fate, Fate::kDropped);
  EXPECT_TRUE(Owes(&index, kName));
}

TEST_F(SsdIndexTest, ReclaimLeavesWhatIsElsewhereByNow) {
  Store(&index, kName, RowOf(1, 10));
  EXPECT_EQ(index.Reclaim(kName, 9, true).fate, Fate::kGone);
  EXPECT_EQ(StateOf(&index, kName), Is::kStored);
  (void)Begin(&index, kName, 2);
  EXPECT_EQ(index.Reclaim(kName, 10, true).fate, Fate::kGone) << "it is being replaced";
  EXPECT_TRUE(index.Counts(kName, 2));
}

TEST_F(SsdIndexTest, AMoveThatIsOvertakenDoesNotCount) {
  Store(&index, kName, RowOf(1, 9));
  (void)index.Find(kName, true);
  (void)index.Reclaim(kName, 9, true);
  EXPECT_TRUE(Begin(&index, kName, 2)) << "the row of the first may still be there";
  EXPECT_FALSE(index.Commit(kName, RowOf(1, 12)));
  EXPECT_TRUE(index.Commit(kName, RowOf(2, 12)));
  EXPECT_EQ(index.Find(kName, false).row.sequence, 2);
}

TEST_F(SsdIndexTest, AMoveThatIsDroppedIsOwed) {
  Store(&index, kName, RowOf(1, 9));
  (void)index.Find(kName, true);
  (void)index.Reclaim(kName, 9, true);
  EXPECT_TRUE(index.Drop(kName));
  EXPECT_FALSE(index.Commit(kName, RowOf(1, 12)));
}

TEST_F(SsdIndexTest, HitsWithoutEndAreStillHits) {
  Store(&index, kName, RowOf(1, 9));
  for (int i = 0; i < (1 << 16) + 1; ++i) (void)index.Find(kName, true);
  EXPECT_EQ(index.Reclaim(kName, 9, true).fate, Fate::kPending);
}

TEST_F(SsdIndexTest, OfTwoLoadedRowsTheLargerSequenceWinsWhicheverComesFirst) {
  for (const bool larger_first : {false, true}) {
    SsdIndex of_two;
    of_two.Load(kName, larger_first ? RowOf(2, 1, 20) : RowOf(1, 1, 10));
    of_two.Load(kName, larger_first ? RowOf(1, 1, 10) : RowOf(2, 1, 20));
    EXPECT_EQ(of_two.Find(kName, false).row.sequence, 2);
    EXPECT_EQ(of_two.totals().objects, 1);
    EXPECT_EQ(of_two.totals().value_bytes, 20);
  }
}

TEST_F(SsdIndexTest, WhatIsLoadedHasNotBeenWantedYet) {
  Row row = RowOf(1, 9);
  row.reserved = 5;
  index.Load(kName, row);
  EXPECT_EQ(index.Reclaim(kName, 9, true).fate, Fate::kDropped);
}

TEST_F(SsdIndexTest, DropIfDropsWhatItIsToldAndSaysWhatIsOwed) {
  for (uint16_t i = 0; i < 200; ++i)
    Store(&index, NameOf(std::to_string(i)), RowOf(i + 1U, 1, 10, i % 2));
  std::vector<OwedDelete> owed;
  index.DropIf([](const ObjectName&, const Row& row) { return row.slot == 1; }, &owed);
  EXPECT_EQ(owed.size(), 100);
  EXPECT_EQ(index.totals().objects, 100);
  EXPECT_EQ(index.totals().value_bytes, 1000);
  EXPECT_EQ(StateOf(&index, NameOf("0")), Is::kStored);
  EXPECT_EQ(StateOf(&index, NameOf("1")), Is::kNothing);
  EXPECT_TRUE(index.Drop(NameOf("1"))) << "its row is not gone yet";
  index.EndOwing(owed);
  EXPECT_FALSE(index.Drop(NameOf("1")));
}

TEST_F(SsdIndexTest, AWriteOfWhatTheKeyNoMoreLeadsToDoesNotBegin) {
  const auto object = MakeObject("any", 1, 8);
  object->current_flag()->store(false);
  EXPECT_FALSE(BeginWrite(&index, kName, 1, *object).begun);
  EXPECT_EQ(StateOf(&index, kName), Is::kNothing);
  (void)Begin(&index, kName, 2);
  EXPECT_FALSE(BeginWrite(&index, kName, 3, *object).begun);
  EXPECT_TRUE(index.Counts(kName, 2)) << "the other one goes on";
  EXPECT_TRUE(index.Commit(kName, RowOf(2)));
  EXPECT_FALSE(BeginWrite(&index, kName, 4, *object).begun);
  EXPECT_EQ(StateOf(&index, kName), Is::kStored);
  EXPECT_TRUE(index.Owed().empty());
}

// No row of it can be in the durable index, so that there is none to delete.
TEST_F(SsdIndexTest, AWriteThatIsHeldOwesNothingWhenItIsReplacedOrDropped) {
  const auto object = MakeObject("a", 1, 8);
  EXPECT_FALSE(BeginWrite(&index, kName, 1, *object, true).held) << "it overwrites nothing";
  ASSERT_TRUE(index.Commit(kName, RowOf(1)));
  const SsdIndex::Begun first = BeginWrite(&index, kName, 2, *object, true);
  EXPECT_TRUE(first.held && first.owed);
  EndOwing(&index, first.owed);
  const SsdIndex::Begun second = BeginWrite(&index, kName, 3, *object, true);
  EXPECT_TRUE(second.held);
  EXPECT_FALSE(second.owed);
  index.EndHold(kName, 2);
  EXPECT_FALSE(index.Drop(kName)) << "the hold of another one has ended";
  EXPECT_EQ(StateOf(&index, kName), Is::kNothing);
}

TEST_F(SsdIndexTest, AWriteWhoseHoldHasEndedIsOwedAsAnyOther) {
  const auto object = MakeObject("a", 1, 8);
  Store(&index, kName, RowOf(1));
  EndOwing(&index, BeginWrite(&index, kName, 2, *object, true).owed);
  index.EndHold(kName, 2);
  const OwedDelete owed = Begin(&index, kName, 3);
  EXPECT_TRUE(owed);
  EndOwing(&index, owed);
  EXPECT_TRUE(index.Drop(kName)) << "that one was never held";
}

TEST_F(SsdIndexTest, WhatIsOwedIsKnownByItsName) {
  EXPECT_FALSE(index.OwedTo(kName));
  Store(&index, kName, RowOf(1));
  EXPECT_FALSE(index.OwedTo(kName));
  const OwedDelete first = index.Drop(kName);
  EXPECT_EQ(index.OwedTo(kName).since, first.since);
  index.Owe(kName);
  EXPECT_GT(index.OwedTo(kName).since, first.since) << "it is owed another";
  Store(&index, kName, RowOf(2));
  EXPECT_FALSE(index.OwedTo(kName));
}

TEST_F(SsdIndexTest, DropIfDropsWhatIsPendingBySlotAndNamespace) {
  (void)Begin(&index, NameOf("a"), 1, 5);
  (void)Begin(&index, NameOf("b"), 2, 6);
  (void)Begin(&index, NameOf("a", kOtherNs), 3, 6);
  std::vector<OwedDelete> owed;
  index.DropIf(
      [](const ObjectName& name, const Row& row) { return row.slot == 5 || name.ns == kOtherNs; },
      &owed);
  EXPECT_EQ(owed.size(), 2);
  EXPECT_FALSE(index.Commit(NameOf("a"), RowOf(1)));
  EXPECT_FALSE(index.Commit(NameOf("a", kOtherNs), RowOf(3)));
  EXPECT_TRUE(index.Commit(NameOf("b"), RowOf(2)));
  index.EndOwing(owed);
  EXPECT_TRUE(index.Owed().empty());
}

// What moves was stored under its slot and its namespace like everything else.
TEST_F(SsdIndexTest, DropIfDropsWhatIsJustBeingMoved) {
  Store(&index, kName, RowOf(1, 9, 100, 5));
  (void)index.Find(kName, true);
  ASSERT_EQ(index.Reclaim(kName, 9, true).fate, Fate::kPending);
  std::vector<OwedDelete> owed;
  index.DropIf([](const ObjectName&, const Row& row) { return row.slot == 5; }, &owed);
  EXPECT_EQ(owed.size(), 1);
  EXPECT_FALSE(index.Commit(kName, RowOf(1, 12)));
  EXPECT_EQ(StateOf(&index, kName), Is::kNothing);
}

TEST_F(SsdIndexTest, TotalsAreOfWhatIsStored) {
  Store(&index, NameOf("a"), RowOf(1, 1, 10));
  Store(&index, NameOf("b"), RowOf(2, 1, 20));
  Store(&index, NameOf("a", kOtherNs), RowOf(3, 1, 40));
  EXPECT_EQ(index.totals().objects, 3);
  EXPECT_EQ(index.totals().value_bytes, 70);
  (void)Begin(&index, NameOf("a"), 4);
  EXPECT_EQ(index.totals().objects, 2) << "what is pending is not stored";
  EXPECT_TRUE(index.Commit(NameOf("a"), RowOf(4, 1, 11)));
  EXPECT_EQ(index.totals().value_bytes, 71);
  (void)index.Drop(NameOf("a", kOtherNs));
  EXPECT_EQ(index.totals().objects, 2);
  EXPECT_EQ(index.totals().value_bytes, 31);
  (void)index.Reclaim(NameOf("a"), 1, true);
  (void)index.DropRecord(NameOf("b"), RowOf(2));
  EXPECT_EQ(index.totals().objects, 0);
}

TEST_F(SsdIndexTest, ClearLeavesNothingAndOwesNothing) {
  Store(&index, NameOf("a"), RowOf(1));
  (void)Begin(&index, NameOf("b"), 2);
  index.Owe(NameOf("c"));
  index.Clear();
  EXPECT_EQ(StateOf(&index, NameOf("a")), Is::kNothing);
  EXPECT_FALSE(index.Counts(NameOf("b"), 2));
  EXPECT_TRUE(index.Owed().empty());
  EXPECT_EQ(index.totals().objects, 0);
}

TEST_F(SsdIndexTest, NamesThatDifferInOnePartOnlyAreStrangers) {
  const Hash128 hash = kName.hash;
  const std::array<ObjectName, 6> names{{
      {kNs, hash},
      {kOtherNs, hash},
      {{kNs.id, kNs.generation + 1}, hash},
      {{NamespaceId(kNs.id.value() + 1), kNs.generation}, hash},
      {kNs, {hash.lo, hash.hi ^ 1}},
      {kNs, {hash.lo ^ 1, hash.hi}},
  }};
  for (uint64_t i = 0; i < names.size(); ++i) Store(&index, names[i], RowOf(i + 1));
  for (uint64_t i = 0; i < names.size(); ++i)
    EXPECT_EQ(index.Find(names[i], false).row.sequence, i + 1);
  const OwedDelete owed = index.Drop(names[0]);
  for (uint64_t i = 1; i < names.size(); ++i) {
    EXPECT_EQ(StateOf(&index, names[i]), Is::kStored) << i;
    EXPECT_FALSE(Owes(&index, names[i])) << i;
    index.AbandonWrite(names[i], 1);
  }
  EndOwing(&index, owed);
  EXPECT_EQ(index.totals().objects, names.size() - 1);
}

// Names whose hashes are equal in the bits that tables look at: found all the same.
TEST_F(SsdIndexTest, NamesOfOneBucketAreAllFound) {
  const auto name_of = [](uint32_t i) {
    // The namespace's part is taken out of what the table hashes by.
    const uint64_t lo = uint64_t{i} * 0x9e3779b97f4a7c15;
    return ObjectName{{NamespaceId(i), 1}, {lo, 0}};
  };
  for (uint32_t i = 1; i <= 300; ++i) Store(&index, name_of(i), RowOf(i));
  for (uint32_t i = 1; i <= 300; i += 2) EXPECT_TRUE(index.Drop(name_of(i)));
  for (uint32_t i = 1; i <= 300; ++i)
    EXPECT_EQ(StateOf(&index, name_of(i)), i % 2 == 1 ? Is::kNothing : Is::kStored) << i;
}

TEST_F(SsdIndexTest, ManyThreadsLeaveNoNameInTwoStates) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 2000;
  const std::array<ObjectName, 3> names{NameOf("a"), NameOf("b"), NameOf("c")};
  std::atomic<uint64_t> sequence{0};
  std::atomic<uint64_t> wrong{0};
  {
    std::vector<Thread> threads;
    threads.reserve(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back("index-" + std::to_string(t), [&, t] {
        for (int i = 0; i < kRounds; ++i) {
          const ObjectName& name = names[static_cast<size_t>(i + t) % names.size()];
          const uint64_t mine = sequence.fetch_add(1) + 1;
          (void)Begin(&index, name, mine);
          if (i % 7 == 0) {
            index.AbandonWrite(name, mine);
          } else {
            (void)index.Commit(name, RowOf(mine));
          }
          if (index.Counts(name, mine)) wrong.fetch_add(1);
          const SsdIndex::Found found = index.Find(name, true);
          if (found.stored && found.pending) wrong.fetch_add(1);
          if (i % 3 == 0) EndOwing(&index, index.Drop(name));
          if (i % 5 == 0) (void)index.Reclaim(name, 1, false);
        }
      });
    }
  }
  EXPECT_EQ(wrong.load(), 0);
  uint64_t stored = 0;
  for (const ObjectName& name : names) stored += index.Find(name, false).stored ? 1 : 0;
  EXPECT_EQ(index.totals().objects, stored);
  EXPECT_EQ(index.objects(), stored);
  EXPECT_EQ(index.totals().value_bytes, stored * 100);
  for (const OwedDelete& owed : index.Owed())
    EXPECT_NE(StateOf(&index, owed.name), Is::kStored) << "its row would be deleted";
}

TEST_F(SsdIndexTest, AWalkAFewAtATimeMeetsEveryStoredObjectOnce) {
  constexpr int kObjects = 50'000;
  for (int i = 0; i < kObjects; ++i)
    index.Load(NameOf(std::to_string(i)), RowOf(static_cast<uint64_t>(i) + 1));
  (void)index.Drop(NameOf("1"));
  (void)Begin(&index, NameOf("2"), 200);
  std::map<ObjectName, uint64_t> met;
  SsdIndex::Cursor cursor;
  SsdIndex::Stored some;
  while (index.SomeStored(&cursor, &some)) {
    EXPECT_LE(some.size(), 400U) << "a few at a time";
    for (const auto& [name, row] : std::exchange(some, {}))
      EXPECT_TRUE(met.emplace(name, row.sequence).second) << "only once";
  }
  EXPECT_EQ(met.size(), kObjects - 2U);
  EXPECT_EQ(met[NameOf("77")], 78U);
  EXPECT_EQ(index.objects(), kObjects - 2U);
  cursor = {};
  SsdIndex empty;
  while (empty.SomeStored(&cursor, &some)) EXPECT_TRUE(some.empty());
}

}  // namespace
}  // namespace ems::ssd
