#include "mp_server/ssd/region_reclaimer.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/mp_server/ssd/commit_fixture.h"
#include "tests/mp_server/ssd/log_writer_rig.h"

namespace ems::ssd {
namespace {

using ::ems::testing::Answer;
using ::ems::testing::BeginRegion;
using ::ems::testing::DiskFault;
using ::ems::testing::Eventually;
using ::ems::testing::FaultyFiles;
using ::ems::testing::FillThreeRegions;
using ::ems::testing::kQuarter;
using ::ems::testing::MakeObject;
using ::ems::testing::MakeTicket;
using ::ems::testing::NameOf;
using ::ems::testing::Rig;
using ::ems::testing::WriteRecord;
using ::ems::testing::WrittenRecord;
using State = Ticket::State;

class RegionReclaimerTest : public ::ems::testing::GroupFixture {
 protected:
  WrittenRecord Write(const std::string& key, uint64_t sequence) {
    const WrittenRecord record =
        WriteRecord(&files_, region_, MakeObject(key, sequence, 1000), sequence);
    StoreRow(record.name, record.row);
    return record;
  }
  RegionReclaimer reclaimer_{log_.get(), &index_, &*commit_, &*groups_, &counts_};
};

TEST_F(RegionReclaimerTest, WhatNobodyWantedGoesAndWhatSomebodyReadIsToBeWrittenAgain) {
  (void)Write("cold", 1);
  (void)Write("warm", 2);
  (void)index_.Find(NameOf("warm"), true);
  reclaimer_.Reclaim(region_);
  EXPECT_EQ(region_->state, RegionState::kFree);
  EXPECT_FALSE(index_.Find(NameOf("cold"), false).stored);
  EXPECT_TRUE(index_.Find(NameOf("warm"), false).pending);
  EXPECT_FALSE(Sequences().contains(NameOf("cold")));
  ASSERT_EQ(reclaimer_.moves().size(), 1u);
  const WriteJob& job = reclaimer_.moves().front();
  EXPECT_TRUE(job.moved);
  EXPECT_EQ(job.sequence, 2u);
  EXPECT_EQ(job.object->key(), "warm");
  EXPECT_EQ(counts_.Get().reclaimed_regions, 1u);
  EXPECT_EQ(counts_.Get().reclaimed_objects, 1u);
  EXPECT_TRUE(index_.Owed().empty()) << "its commit was a synced one";
}

TEST_F(RegionReclaimerTest, WhatCannotBeReadAnyMoreGoesToo) {
  (void)Write("warm", 1);
  (void)index_.Find(NameOf("warm"), true);
  files_.Fail(FaultyFiles::kRead, StatusCode::kUnavailable);
  reclaimer_.Reclaim(region_);
  EXPECT_TRUE(reclaimer_.moves().empty());
  EXPECT_FALSE(index_.Find(NameOf("warm"), false).pending);
  EXPECT_TRUE(Sequences().empty());
}

TEST_F(RegionReclaimerTest, WhatIsSomewhereElseByNowIsLeftAlone) {
  const WrittenRecord old = Write("a", 1);
  Row newer = old.row;
  newer.sequence = 2;
  newer.region_sequence = old.row.region_sequence + 1;
  StoreRow(old.name, newer);
  reclaimer_.Reclaim(region_);
  EXPECT_TRUE(index_.Find(old.name, false).stored);
  EXPECT_EQ(Sequences().at(old.name), 2u);
  EXPECT_EQ(counts_.Get().reclaimed_objects, 0u);
}

TEST_F(RegionReclaimerTest, WhatIsWantedBeginsToMoveAndStaysStoredWhereItIs) {
  (void)Write("cold", 1);
  const WrittenRecord warm = Write("warm", 2);
  (void)index_.Find(NameOf("warm"), true);
  ASSERT_TRUE(reclaimer_.BeginMoving(region_));
  const auto fits = [](uint64_t) { return true; };
  const std::optional<WriteJob> job = reclaimer_.NextMove(fits);
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->object->key(), "warm");
  EXPECT_EQ(job->from, region_);
  EXPECT_EQ(region_->moves_under_way, 1u);
  const SsdIndex::Found found = index_.Find(NameOf("warm"), false);
  EXPECT_TRUE(found.stored && !found.pending);
  EXPECT_TRUE(SameRecord(found.row, warm.row));
  EXPECT_FALSE(reclaimer_.NextMove(fits).has_value());
  EXPECT_EQ(reclaimer_.moving(), nullptr) << "that was all";
}

TEST_F(RegionReclaimerTest, WhatWasPutManyTimesMovesOnce) {
  (void)Write("warm", 1);
  (void)Write("warm", 2);
  (void)Write("warm", 3);
  (void)index_.Find(NameOf("warm"), true);
  ASSERT_TRUE(reclaimer_.BeginMoving(region_));
  const auto fits = [](uint64_t) { return true; };
  EXPECT_TRUE(reclaimer_.NextMove(fits).has_value());
  EXPECT_FALSE(reclaimer_.NextMove(fits).has_value());
  EXPECT_EQ(reclaimer_.moving(), nullptr);
  EXPECT_FALSE(reclaimer_.BeginMoving(region_)) << "it has not arrived yet";
  EXPECT_EQ(reclaimer_.moving(), nullptr);
}

// A disk that answers slowly is not asked a thousand times in a row.
TEST_F(RegionReclaimerTest, WhatCannotBeReadCountsAsAMove) {
  for (uint64_t i = 0; i < 3; ++i) {
    (void)Write(std::to_string(i), i + 1);
    (void)index_.Find(NameOf(std::to_string(i)), true);
  }
  ASSERT_TRUE(reclaimer_.BeginMoving(region_));
  files_.Fail(FaultyFiles::kRead, StatusCode::kUnavailable);
  EXPECT_FALSE(reclaimer_.NextMove([](uint64_t) { return true; }).has_value());
  EXPECT_EQ(reclaimer_.moving(), region_) << "others have their turn";
  EXPECT_EQ(files_.calls(FaultyFiles::kRead), 1u);
  EXPECT_EQ(region_->moved_objects, 1u);
}

TEST_F(RegionReclaimerTest, KeysThatArePutAgainAndAgainDoNotFillMemory) {
  const WrittenRecord live = Write("live", 1);
  const WrittenRecord gone = Write("gone", 2);
  (void)index_.Drop(gone.name);
  for (std::vector<Hash128>* members : {&region_->members, &region_->unsynced_members}) {
    for (int i = 0; i < 100'000; ++i)
      members->push_back(i % 2 == 0 ? live.name.hash : gone.name.hash);
  }
  reclaimer_.DropDeadMembers();
  EXPECT_EQ(region_->members, std::vector{live.name.hash});
  EXPECT_EQ(region_->unsynced_members, std::vector{live.name.hash});
  EXPECT_LT(region_->members.capacity(), 1000u);
  (void)index_.Drop(live.name);
  reclaimer_.DropDeadMembers();
  EXPECT_EQ(region_->members.size(), 1u) << "a few are not worth a look";
}

TEST_F(RegionReclaimerTest, WhatFindsNoRoomElsewhereIsNotRead) {
  (void)Write("warm", 1);
  (void)index_.Find(NameOf("warm"), true);
  ASSERT_TRUE(reclaimer_.BeginMoving(region_));
  EXPECT_FALSE(reclaimer_.NextMove([](uint64_t bytes) { return bytes < 1000; }).has_value());
  EXPECT_EQ(reclaimer_.moving(), nullptr);
  EXPECT_EQ(region_->moves_under_way, 0u);
  EXPECT_EQ(files_.calls(FaultyFiles::kRead), 0u);
}

// What was to move away may have stayed, and what is wanted could not be written elsewhere.
TEST_F(RegionReclaimerTest, WhileTheDiskRefusesNothingIsGivenUp) {
  (void)Write("warm", 1);
  (void)index_.Find(NameOf("warm"), true);
  groups_->Land(WriteTo(BeginRegion(log_.get()), "other", 2, MakeTicket()));
  files_.Fail(FaultyFiles::kSync, StatusCode::kUnavailable, 1);
  EXPECT_FALSE(reclaimer_.Reclaim(region_));
  EXPECT_TRUE(index_.Find(NameOf("warm"), false).stored);
  EXPECT_TRUE(reclaimer_.moves().empty());
  EXPECT_EQ(region_->members.size(), 1u);
  EXPECT_EQ(counts_.Get().reclaimed_regions, 0u);
  EXPECT_TRUE(reclaimer_.Reclaim(region_));
}

// After a crash, rows that were not synced may lead here.
TEST_F(RegionReclaimerTest, WhatHasMovedIsNotOverwrittenBeforeItsRowsAreSynced) {
  const WrittenRecord warm = Write("warm", 1);
  groups_->Land(MoveTo(BeginRegion(log_.get()), "warm", warm.row));
  EXPECT_TRUE(groups_->Commit());
  EXPECT_EQ(counts_.Get().synced_commits, 0u);
  BreakRows();
  EXPECT_FALSE(reclaimer_.Reclaim(region_));
  EXPECT_NE(region_->state, RegionState::kFree);
  disk_.Set(DiskFault::kNone);
  ASSERT_TRUE(rows_->Reopen(true).ok());
  EXPECT_TRUE(reclaimer_.Reclaim(region_));
  EXPECT_EQ(region_->state, RegionState::kFree);
  EXPECT_EQ(counts_.Get().synced_commits, 2u) << "the first of which has failed";
}

// --- As the writer uses it.

TEST(WriterReclaimTest, AFullLogGivesItsOldestRegionUpAndKeepsWhatWasWanted) {
  Rig rig({.regions_max = 3});
  FillThreeRegions(&rig);
  (void)rig.index->Find(NameOf("1"), true);
  ASSERT_EQ(rig.Put("12", 12, kQuarter).Wait(), State::kDone);
  ASSERT_EQ(rig.MakeDurable("1").Wait(), State::kDone);
  EXPECT_EQ(rig.InMemory("1"), 1);
  const WriterStats stats = rig.writer->stats();
  EXPECT_EQ(stats.reclaimed_regions, 1);
  EXPECT_EQ(stats.reclaimed_objects, 3);
  EXPECT_EQ(stats.moved_objects, 1);
  EXPECT_EQ(stats.regions, 3);
  for (const char* gone : {"0", "2", "3"}) {
    EXPECT_FALSE(rig.Stored(gone));
    EXPECT_FALSE(rig.HasRow(gone));
  }
  EXPECT_EQ(rig.RowNames().size(), 10);
  rig.Restart();
  EXPECT_EQ(rig.index->totals().objects, 10);
  EXPECT_EQ(rig.InMemory("1"), 1);
}

// Two regions of four objects each and a third with two, of three: with one more half of the third
// is full. "1" has been read since.
void FillUntilTheNextOneLooksAhead(Rig* rig) {
  for (uint64_t i = 0; i < 10; ++i)
    ASSERT_EQ(rig->Put(std::to_string(i), i, kQuarter).Wait(), State::kDone);
  (void)rig->index->Find(NameOf("1"), true);
}

TEST(WriterReclaimTest, WhatIsWantedIsThereAllTheWhile) {
  Rig rig({.regions_max = 3});
  FillUntilTheNextOneLooksAhead(&rig);
  rig.io->Hold();
  const Answer last = rig.Put("10", 10, kQuarter);
  ASSERT_TRUE(rig.io->WaitForHeld(2));              // and the move of "1"
  const Answer next = rig.Put("12", 12, kQuarter);  // for which the first region has to go
  EXPECT_FALSE(rig.io->WaitForHeld(3, std::chrono::milliseconds(50))) << "not before it has moved";
  EXPECT_EQ(rig.InMemory("1"), 1);
  EXPECT_EQ(rig.InRows("1"), 1);
  rig.io->LetGo(1);
  ASSERT_TRUE(rig.io->WaitForHeld(2));
  EXPECT_EQ(rig.InMemory("1"), 1);
  EXPECT_EQ(rig.InRows("1"), 1) << "after a crash now, too: the region that it was in is gone";
  EXPECT_EQ(rig.writer->stats().reclaimed_regions, 1);
  EXPECT_EQ(rig.writer->stats().reclaimed_objects, 3);
  EXPECT_EQ(rig.writer->stats().moved_objects, 1);
  rig.io->HoldNoMore();
  EXPECT_EQ(last.Wait(), State::kDone);
  EXPECT_EQ(next.Wait(), State::kDone);
  rig.Restart();
  EXPECT_EQ(rig.InMemory("1"), 1);
}

TEST(WriterReclaimTest, WhatMovesIsSyncedBeforeItsRowLeadsThere) {
  Rig rig({.regions_max = 3});
  FillUntilTheNextOneLooksAhead(&rig);
  const uint32_t before = rig.index->Find(NameOf("1"), false).row.region;
  rig.files.Shut();
  (void)rig.Put("10", 10, kQuarter, false);
  ASSERT_TRUE(rig.files.WaitForOneAtTheGate());
  EXPECT_EQ(rig.writer->stats().moved_objects, 0);
  EXPECT_EQ(rig.index->Find(NameOf("1"), false).row.region, before);
  EXPECT_EQ(rig.InRows("1"), 1);
  rig.files.OpenGate();
  ASSERT_TRUE(Eventually([&] { return rig.writer->stats().moved_objects == 1; }));
  EXPECT_NE(rig.index->Find(NameOf("1"), false).row.region, before);
}

TEST(WriterReclaimTest, DeletesGoAheadOfMovesThatAreStillToBeRead) {
  constexpr uint64_t kTenth = 100 * kKiB;
  Rig rig({.regions_max = 3});
  uint64_t puts = 0;
  const auto put = [&] {
    ASSERT_EQ(rig.Put(std::to_string(puts), puts, kTenth).Wait(), State::kDone);
    ++puts;
  };
  while (rig.writer->stats().regions < 3) put();
  const uint64_t last = puts + 3;  // with one more, half of the third is full
  while (puts < last) put();
  for (const char* wanted : {"1", "2"}) (void)rig.index->Find(NameOf(wanted), true);
  Answer removed;
  State at_second_read = State::kWaiting;
  rig.files.before_read = [&] {
    removed = rig.Remove("0");
    rig.files.before_read = [&] { at_second_read = removed.ticket->state(); };
  };
  put();
  ASSERT_TRUE(Eventually([&] { return rig.writer->stats().moved_objects == 2; }));
  EXPECT_EQ(at_second_read, State::kDone);
}

TEST(WriterReclaimTest, AMoveThatCannotBeSyncedLosesNothing) {
  for (const bool while_it_moves : {true, false}) {
    ManualClock clock;
    Rig rig({.regions_max = 3, .clock = &clock});
    FillUntilTheNextOneLooksAhead(&rig);
    if (while_it_moves) rig.files.faults.Fail(FaultyFiles::kSync, StatusCode::kUnavailable, 1);
    (void)rig.Put("10", 10, kQuarter, false);
    if (!while_it_moves) {
      ASSERT_TRUE(Eventually([&] { return rig.writer->stats().moved_objects == 1; }));
      rig.files.faults.Fail(FaultyFiles::kSync, StatusCode::kUnavailable, 1);
      EXPECT_EQ(rig.Put("12", 12, kQuarter).Wait(), State::kFailed);
    }
    ASSERT_TRUE(Eventually([&] { return rig.writer->state() == TierState::kDegraded; }));
    EXPECT_EQ(rig.InMemory("1"), 1);
    EXPECT_EQ(rig.InRows("1"), 1);
    clock.Advance(std::chrono::seconds(10));
    ASSERT_TRUE(rig.Heals());
    ASSERT_EQ(rig.Put("13", 13, kQuarter).Wait(), State::kDone);
    ASSERT_EQ(rig.MakeDurable("1").Wait(), State::kDone);
    EXPECT_EQ(rig.InMemory("1"), 1);
  }
}

TEST(WriterReclaimTest, WhatIsPutOrRemovedWhileItMovesIsNotBroughtBack) {
  for (const bool removed : {false, true}) {
    Rig rig({.regions_max = 3});
    FillUntilTheNextOneLooksAhead(&rig);
    rig.io->Hold();
    const Answer last = rig.Put("10", 10, kQuarter);
    ASSERT_TRUE(rig.io->WaitForHeld(2));  // and the move of "1"
    const Answer change = removed ? rig.Remove("1") : rig.Put("1", 100, 100, false);
    ASSERT_EQ(change.Wait(), State::kDone);
    EXPECT_FALSE(rig.HasRow("1"));
    rig.io->LetGo(1);
    rig.io->HoldNoMore();
    ASSERT_EQ(last.Wait(), State::kDone);
    if (!removed) {
      ASSERT_EQ(rig.MakeDurable("1").Wait(), State::kDone);
    }
    ASSERT_TRUE(Eventually([&] { return rig.writer->stats().superseded_objects == 1; }));
    const auto expected = removed ? std::nullopt : std::optional<uint64_t>(100);
    EXPECT_EQ(rig.InMemory("1"), expected);
    EXPECT_EQ(rig.InRows("1"), expected);
  }
}

// It is where it was, and moves when its region goes.
TEST(WriterReclaimTest, AMoveThatCannotBeWrittenLosesNothing) {
  ManualClock clock;
  Rig rig({.regions_max = 3, .clock = &clock});
  FillUntilTheNextOneLooksAhead(&rig);
  rig.io->Hold();
  (void)rig.Put("10", 10, kQuarter);
  ASSERT_TRUE(rig.io->WaitForHeld(2));  // and the move of "1"
  rig.io->Fail(1);
  ASSERT_TRUE(Eventually([&] { return rig.writer->state() == TierState::kDegraded; }));
  EXPECT_EQ(rig.InMemory("1"), 1);
  EXPECT_EQ(rig.InRows("1"), 1);
  rig.io->HoldNoMore();
  clock.Advance(std::chrono::seconds(10));
  ASSERT_TRUE(rig.Heals());
  ASSERT_EQ(rig.Put("12", 12, kQuarter).Wait(), State::kDone);
  ASSERT_EQ(rig.MakeDurable("1").Wait(), State::kDone);
  EXPECT_EQ(rig.InMemory("1"), 1);
}

TEST(WriterReclaimTest, OfARegionThatIsGivenUpAPartIsKeptAndNoMore) {
  Rig rig({.regions_max = 3});
  FillThreeRegions(&rig);
  for (const char* wanted : {"0", "1", "2", "3"}) (void)rig.index->Find(NameOf(wanted), true);
  ASSERT_EQ(rig.Put("12", 12, kQuarter).Wait(), State::kDone);
  EXPECT_TRUE(Eventually([&] { return rig.writer->stats().moved_objects == 2; }));
  EXPECT_EQ(rig.writer->stats().reclaimed_objects, 2);
}

// What was put while it was being moved is not the move's to drop.
TEST(WriterReclaimTest, AMoveThatCannotBeReadLeavesANewerPutAlone) {
  Rig rig({.regions_max = 3});
  FillThreeRegions(&rig);
  (void)rig.index->Find(NameOf("1"), true);
  Answer newer;
  rig.files.before_read = [&] { newer = rig.Put("1", 100, kQuarter); };
  rig.files.faults.Fail(FaultyFiles::kRead, StatusCode::kUnavailable, 1);
  ASSERT_EQ(rig.Put("12", 12, kQuarter).Wait(), State::kDone);
  EXPECT_EQ(newer.Wait(), State::kDone);
  EXPECT_EQ(rig.InMemory("1"), 100);
}

// Its move was overtaken, so its failure says nothing about the row.
TEST(WriterReclaimTest, AMoveThatFailsLeavesANewerPutAlone) {
  ManualClock clock;
  Rig rig({.regions_max = 3, .clock = &clock});
  FillThreeRegions(&rig);
  (void)rig.index->Find(NameOf("1"), true);
  rig.io->Hold();
  const Answer other = rig.Put("12", 12, kQuarter);
  ASSERT_TRUE(rig.io->WaitForHeld(2));  // and the move of "1"
  const Answer newer = rig.Put("1", 100, kQuarter);
  ASSERT_TRUE(rig.io->WaitForHeld(3));
  rig.io->LetGo(2);
  rig.io->LetGo(0);
  ASSERT_EQ(newer.Wait(), State::kDone);
  ASSERT_EQ(other.Wait(), State::kDone);
  rig.io->Fail(0);
  ASSERT_TRUE(Eventually([&] { return rig.writer->state() == TierState::kDegraded; }));
  clock.Advance(std::chrono::seconds(10));
  ASSERT_TRUE(rig.Heals());
  EXPECT_EQ(rig.InMemory("1"), 100);
  EXPECT_EQ(rig.InRows("1"), 100);
}

// Nothing durable was asked for since: without a sync of its own each name would stay owed a
// delete, and a Remove of it would wait for the disk.
TEST(WriterReclaimTest, OfARegionThatIsGivenUpNoNameStaysOwedADelete) {
  Rig rig({.regions_max = 3});
  FillThreeRegions(&rig);
  const uint64_t synced = rig.writer->stats().synced_commits;
  (void)rig.Put("12", 12, kQuarter, false);
  ASSERT_TRUE(Eventually([&] { return rig.Stored("12"); }));
  EXPECT_EQ(rig.writer->stats().reclaimed_objects, 4);
  EXPECT_EQ(rig.writer->stats().synced_commits, synced + 1);
  EXPECT_TRUE(rig.index->Owed().empty());
  EXPECT_EQ(rig.Remove("0").ticket, nullptr);
}

}  // namespace
}  // namespace ems::ssd
