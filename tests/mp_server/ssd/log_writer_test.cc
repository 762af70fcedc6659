// What must hold: when everybody has been told, exactly what was put last is there, in memory and
// after a restart; and at every moment before, a restart would show nothing older than what
// a caller has been told is there or gone.
#include "mp_server/ssd/log_writer.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/mp_server/ssd/log_writer_rig.h"
#include "tests/mp_server/ssd/log_writer_storm.h"

namespace ems::ssd {
namespace {

using ::ems::testing::Answer;
using ::ems::testing::AskFromManyThreads;
using ::ems::testing::CountingClock;
using ::ems::testing::DiskFault;
using ::ems::testing::Eventually;
using ::ems::testing::FaultyFiles;
using ::ems::testing::kNs;
using ::ems::testing::kQuarter;
using ::ems::testing::MakeObject;
using ::ems::testing::NameOf;
using ::ems::testing::Rig;
using ::ems::testing::Storm;
using ::ems::testing::StormKind;
using ::ems::testing::Waiter;
using State = Ticket::State;

TEST(LogWriterTest, APutIsPendingThenStoredAndReadsBack) {
  Rig rig;
  rig.io->Hold();
  EXPECT_EQ(rig.Put("a", 1, 100, false).ticket, nullptr) << "there was nothing before";
  EXPECT_TRUE(rig.index->Find(NameOf("a"), false).pending);
  ASSERT_TRUE(rig.io->WaitForHeld(1));
  EXPECT_FALSE(rig.Stored("a"));
  const Answer durable = rig.MakeDurable("a");
  rig.io->HoldNoMore();
  EXPECT_EQ(durable.Wait(), State::kDone);
  EXPECT_EQ(rig.InMemory("a"), 1);
  const WriterStats stats = rig.writer->stats();
  EXPECT_EQ(stats.written_objects, 1);
  EXPECT_EQ(stats.written_bytes, 100);
  EXPECT_EQ(stats.dirty_bytes, 0);
  rig.Restart();
  EXPECT_EQ(rig.InMemory("a"), 1);
}

TEST(LogWriterTest, ADurablePutIsOnTheDiskWhenItsTicketSaysSo) {
  Rig rig;
  for (const uint64_t bytes : {8U, 5000U, 65535U, 65536U, 300001U}) {
    const std::string key = std::to_string(bytes);
    const uint64_t synced = rig.files.faults.calls(FaultyFiles::kSync);
    ASSERT_EQ(rig.Put(key, bytes, bytes).Wait(), State::kDone);
    EXPECT_GT(rig.files.faults.calls(FaultyFiles::kSync), synced);
    EXPECT_EQ(rig.InMemory(key), bytes);
    EXPECT_EQ(rig.InRows(key), bytes);
  }
  EXPECT_GE(rig.writer->stats().synced_commits, 5);
}

TEST(LogWriterTest, ARemoveBeforeTheWriteLandsSupersedesIt) {
  Rig rig;
  rig.io->Hold();
  const Answer put = rig.Put("a", 1, kQuarter);
  ASSERT_TRUE(rig.io->WaitForHeld(1));
  const Answer removed = rig.Remove("a");
  ASSERT_NE(removed.ticket, nullptr);
  rig.io->HoldNoMore();
  EXPECT_EQ(removed.Wait(), State::kDone);
  EXPECT_NE(put.Wait(), State::kWaiting);
  EXPECT_FALSE(rig.Stored("a"));
  EXPECT_FALSE(rig.HasRow("a"));
  EXPECT_EQ(rig.writer->stats().superseded_objects, 1);
  EXPECT_EQ(rig.Remove("a").ticket, nullptr);
}

TEST(LogWriterTest, WhatIsNoMoreCurrentIsNotWritten) {
  Rig rig;
  rig.io->Hold();
  auto object = MakeObject("a", 1, kQuarter);
  const auto current = object->current_flag();
  (void)rig.writer->Put(NameOf("a"), std::move(object), false, nullptr);
  ASSERT_TRUE(rig.io->WaitForHeld(1));
  current->store(false);
  rig.io->HoldNoMore();
  EXPECT_TRUE(Eventually([&] { return rig.writer->stats().superseded_objects == 1; }));
  EXPECT_FALSE(rig.Stored("a"));
  EXPECT_FALSE(rig.HasRow("a"));
}

TEST(LogWriterTest, ThePutThatReplacesSaysWhenTheOldRowIsGone) {
  Rig rig;
  ASSERT_EQ(rig.Put("a", 1, 100).Wait(), State::kDone);
  rig.io->Hold();
  const Answer put = rig.Put("a", 2, kQuarter, false);
  ASSERT_NE(put.ticket, nullptr);
  EXPECT_EQ(put.Wait(), State::kDone);
  EXPECT_FALSE(rig.HasRow("a")) << "the new one is not there yet, the old one must not be";
  rig.io->HoldNoMore();
  EXPECT_EQ(rig.MakeDurable("a").Wait(), State::kDone);
  EXPECT_EQ(rig.InRows("a"), 2);
}

// Nothing that is given to the disk before makes its caller wait: not what was put earlier…
TEST(LogWriterTest, ThePutThatReplacesDoesNotWaitForWhatIsQueuedInFrontOfIt) {
  Rig rig({.region_bytes = 4 * kMiB});
  ASSERT_EQ(rig.Put("a", 1, 100).Wait(), State::kDone);
  rig.io->Hold();
  for (uint64_t i = 0; i < 2 * LogWriter::kWriteDepth; ++i)
    (void)rig.Put(std::to_string(i), i, 600 * kKiB, false);
  ASSERT_TRUE(rig.io->WaitForHeld(8));
  EXPECT_EQ(rig.Put("a", 2, 600 * kKiB, false).Wait(), State::kDone);
  EXPECT_EQ(rig.MakeDurable("a").now(), State::kWaiting) << "the disk does nothing";
  EXPECT_FALSE(rig.HasRow("a"));
}

// … nor its own value.
TEST(LogWriterTest, ThePutThatReplacesIsAnsweredBeforeItsValueIsGivenToTheDisk) {
  Rig rig;
  ASSERT_EQ(rig.Put("a", 1, 100).Wait(), State::kDone);
  rig.files.Shut();
  const Answer block = rig.Put("block", 1, 100);
  ASSERT_TRUE(rig.files.WaitForOneAtTheGate());  // so both parts of the Put are found at once
  const Answer put = rig.Put("a", 2, kQuarter, false);
  std::vector<State> when_submitted;
  rig.io->before_submit = [&] { when_submitted.push_back(put.now()); };
  rig.files.OpenGate();
  ASSERT_EQ(rig.MakeDurable("a").Wait(), State::kDone);
  EXPECT_EQ(when_submitted, std::vector{State::kDone});
  EXPECT_EQ(rig.InRows("a"), 2);
}

TEST(LogWriterTest, ADurablePutThatReplacesKeepsTheOldRowUntilItsOwnIsThere) {
  Rig rig;
  ASSERT_EQ(rig.Put("a", 1, 100).Wait(), State::kDone);
  rig.io->Hold();
  const Answer put = rig.Put("a", 2, kQuarter);
  ASSERT_TRUE(rig.io->WaitForHeld(1));
  EXPECT_FALSE(rig.Stored("a"));
  EXPECT_EQ(rig.InRows("a"), 1);
  rig.io->HoldNoMore();
  EXPECT_EQ(put.Wait(), State::kDone);
  EXPECT_EQ(rig.InRows("a"), 2);
}

TEST(LogWriterTest, BeyondTheDirtyBytesPutsAreShed) {
  Rig rig({.dirty_bytes_max = kMiB});
  rig.io->Hold();
  const Answer first = rig.Put("a", 1, 600 * kKiB);
  EXPECT_TRUE(rig.writer->HasRoomFor(400 * kKiB));
  EXPECT_FALSE(rig.writer->HasRoomFor(500 * kKiB));
  EXPECT_EQ(rig.Put("b", 2, 500 * kKiB).Wait(), State::kFailed);
  EXPECT_EQ(rig.Put("c", 3, 500 * kKiB, false).ticket, nullptr);
  EXPECT_FALSE(rig.index->Find(NameOf("b"), false).pending);
  EXPECT_EQ(rig.writer->stats().shed_objects, 2);
  EXPECT_EQ(rig.writer->stats().dirty_bytes, 600 * kKiB);
  rig.io->HoldNoMore();
  EXPECT_EQ(first.Wait(), State::kDone);
  EXPECT_EQ(rig.writer->stats().dirty_bytes, 0);
  EXPECT_EQ(rig.Put("b", 2, 500 * kKiB).Wait(), State::kDone);
}

TEST(LogWriterTest, APutThatIsShedTakesTheOldRowWithItAllTheSame) {
  for (const bool durable : {false, true}) {
    Rig rig({.dirty_bytes_max = kMiB});
    ASSERT_EQ(rig.Put("a", 1, 100).Wait(), State::kDone);
    const Answer put = rig.Put("a", 2, 2 * kMiB, durable);
    EXPECT_EQ(put.Wait(), durable ? State::kFailed : State::kDone);
    EXPECT_FALSE(rig.Stored("a"));
    rig.PassQueue();
    EXPECT_FALSE(rig.HasRow("a"));
  }
}

TEST(LogWriterTest, ARecordLargerThanARegionFailsItsTicketAlone) {
  Rig rig;
  EXPECT_EQ(rig.Put("a", 1, kMiB).Wait(), State::kFailed);
  EXPECT_EQ(rig.writer->state(), TierState::kOk);
  EXPECT_FALSE(rig.index->Find(NameOf("a"), false).pending);
  EXPECT_EQ(rig.writer->stats().failed_objects, 1);
  EXPECT_EQ(rig.Put("b", 2, 100).Wait(), State::kDone);
}

TEST(LogWriterTest, ItsEndWritesWhatIsQueued) {
  Rig rig;
  for (uint64_t i = 0; i < 50; ++i)
    (void)rig.Put(std::to_string(i), i, i % 10 == 0 ? kQuarter : 100 + i, false);
  const Answer removed = rig.Remove("7");
  rig.Restart();
  EXPECT_EQ(removed.now(), State::kDone);
  for (uint64_t i = 0; i < 50; ++i) {
    if (i == 7) continue;
    EXPECT_EQ(rig.InMemory(std::to_string(i)), i);
  }
  EXPECT_FALSE(rig.Stored("7"));
}

TEST(LogWriterTest, AWriteErrorDegradesUntilTheDiskRecovers) {
  ManualClock clock;
  Rig rig({.clock = &clock});
  ASSERT_EQ(rig.Put("before", 1, kQuarter).Wait(), State::kDone);
  rig.io->Hold();
  const Answer put = rig.Put("a", 2, kQuarter);
  ASSERT_TRUE(rig.io->WaitForHeld(1));
  rig.io->Fail(0);
  EXPECT_EQ(put.Wait(), State::kFailed);
  EXPECT_EQ(rig.writer->state(), TierState::kDegraded);
  EXPECT_FALSE(rig.writer->state_reason().empty());
  EXPECT_FALSE(rig.writer->HasRoomFor(1));
  EXPECT_EQ(rig.Put("b", 3, 100).Wait(), State::kFailed);
  EXPECT_EQ(rig.writer->stats().shed_objects, 1);
  EXPECT_EQ(rig.InMemory("before"), 1) << "what is there can be read";
  rig.io->HoldNoMore();
  clock.Advance(std::chrono::seconds(10));
  ASSERT_TRUE(rig.Heals());
  EXPECT_EQ(rig.Put("a", 4, kQuarter).Wait(), State::kDone);
  EXPECT_EQ(rig.InRows("a"), 4);
  EXPECT_EQ(rig.writer->stats().degraded_times, 1);
}

TEST(LogWriterTest, AShortWriteIsAFailedOne) {
  Rig rig;
  rig.io->Hold();
  const Answer put = rig.Put("a", 1, kQuarter);
  ASSERT_TRUE(rig.io->WaitForHeld(1));
  rig.io->Fail(0, 100 * kKiB);
  EXPECT_EQ(put.Wait(), State::kFailed);
}

TEST(LogWriterTest, ASyncErrorFailsWhatWasToBeDurable) {
  ManualClock clock;
  Rig rig({.clock = &clock});
  rig.files.faults.Fail(FaultyFiles::kSync, StatusCode::kUnavailable, 1, 1);  // 1: the folder's
  EXPECT_EQ(rig.Put("a", 1, kQuarter).Wait(), State::kFailed);
  EXPECT_EQ(rig.writer->state(), TierState::kDegraded);
  EXPECT_FALSE(rig.Stored("a"));
  EXPECT_FALSE(rig.HasRow("a"));
  clock.Advance(std::chrono::seconds(10));
  ASSERT_TRUE(rig.Heals());
  EXPECT_EQ(rig.Put("a", 2, kQuarter).Wait(), State::kDone);
}

TEST(LogWriterTest, AnIndexThatRefusesDegradesAndWhatIsOwedGoesWhenItHeals) {
  ManualClock clock;
  Rig rig({.clock = &clock});
  ASSERT_EQ(rig.Put("a", 1, kQuarter).Wait(), State::kDone);
  ASSERT_EQ(rig.Put("b", 1, kQuarter).Wait(), State::kDone);
  ASSERT_EQ(rig.Put("c", 1, kQuarter).Wait(), State::kDone);
  rig.disk.Set(DiskFault::kBroken);
  EXPECT_EQ(rig.Put("a", 2, kQuarter).Wait(), State::kFailed);
  EXPECT_EQ(rig.Remove("b").Wait(), State::kFailed);
  EXPECT_NE(rig.Remove("b").ticket, nullptr) << "its row is still there";
  EXPECT_EQ(rig.writer->state(), TierState::kDegraded);
  clock.Advance(std::chrono::seconds(10));
  rig.PassQueue();
  EXPECT_EQ(rig.writer->state(), TierState::kDegraded);
  rig.disk.Set(DiskFault::kNone);
  clock.Advance(std::chrono::seconds(10));
  ASSERT_TRUE(rig.Heals());
  EXPECT_EQ(rig.RowNames(), std::set{NameOf("c")});
  EXPECT_TRUE(rig.index->Owed().empty());
}

TEST(LogWriterTest, AnIndexThatIsLostIsWrittenAgainWhenItHeals) {
  ManualClock clock;
  Rig rig({.clock = &clock});
  for (uint64_t i = 0; i < 40; ++i)
    ASSERT_EQ(rig.Put(std::to_string(i), i, 100).Wait(), State::kDone);
  rig.disk.Set(DiskFault::kBroken);
  EXPECT_EQ(rig.Remove("7").Wait(), State::kFailed);
  std::filesystem::remove_all(rig.index_folder());
  rig.disk.Set(DiskFault::kNone);
  clock.Advance(std::chrono::seconds(10));
  ASSERT_TRUE(rig.Heals());
  EXPECT_EQ(rig.RowNames().size(), 39);
  rig.Restart();
  for (uint64_t i = 0; i < 40; ++i) {
    const auto expected = i == 7 ? std::nullopt : std::optional<uint64_t>(i);
    EXPECT_EQ(rig.InMemory(std::to_string(i)), expected);
  }
}

// --- Faults that were found.

// A delete that comes late is none of what was put since.
TEST(LogWriterTest, AForgetThatComesLateLeavesANewerPutAlone) {
  Rig rig;
  ASSERT_EQ(rig.Put("a", 1, 100).Wait(), State::kDone);
  const OwedDelete owed = rig.index->Drop(NameOf("a"));
  ASSERT_EQ(rig.Put("a", 2, 100).Wait(), State::kDone);
  rig.writer->Forget({owed}, {});
  rig.PassQueue();
  EXPECT_EQ(rig.InMemory("a"), 2);
  EXPECT_EQ(rig.InRows("a"), 2) << "it had been said that it cannot be lost";
}

TEST(LogWriterTest, ARemoveThatHasNothingToWaitForFindsTheRowSynced) {
  Rig rig;
  ASSERT_EQ(rig.Put("a", 1, 100).Wait(), State::kDone);
  const uint64_t synced = rig.writer->stats().synced_commits;
  rig.writer->Forget({rig.index->Drop(NameOf("a"))}, {});
  ASSERT_TRUE(Eventually([&] { return !rig.HasRow("a"); }));
  EXPECT_TRUE(rig.Remove("a").ticket != nullptr || rig.writer->stats().synced_commits > synced);
}

// What it was to delete is there until then, whatever has been put since.
TEST(LogWriterTest, ARemoveIsNotDoneWhileTheOldRowIsThere) {
  Rig rig;
  ASSERT_EQ(rig.Put("a", 1, 100).Wait(), State::kDone);
  rig.files.Shut();
  (void)rig.Put("block", 1, 100);
  ASSERT_TRUE(rig.files.WaitForOneAtTheGate());
  rig.io->Hold();
  const Answer removed = rig.Remove("a");
  (void)rig.Put("a", 2, kQuarter);
  (void)rig.Put("a", 3, kQuarter);
  rig.files.OpenGate();
  ASSERT_TRUE(rig.io->WaitForHeld(1));
  EXPECT_EQ(removed.Wait(), State::kDone);
  EXPECT_FALSE(rig.HasRow("a"));
}

TEST(LogWriterTest, APutThatIsNoMoreCurrentSaysWhenTheOldRowIsGoneToo) {
  Rig rig;
  ASSERT_EQ(rig.Put("a", 1, 100).Wait(), State::kDone);
  rig.files.Shut();
  (void)rig.Put("block", 1, 100);
  ASSERT_TRUE(rig.files.WaitForOneAtTheGate());
  const Answer removed = rig.Remove("a");
  auto object = MakeObject("a", 2, 100);
  object->current_flag()->store(false);
  const Waiter woken;
  const TicketPtr put = rig.writer->Put(NameOf("a"), std::move(object), false, woken.wake());
  EXPECT_NE(put, nullptr) << "the first one's row is there";
  rig.files.OpenGate();
  EXPECT_EQ(removed.Wait(), State::kDone);
}

// Its new values may be lost in a power cut; what has been replaced or removed must not come back.
TEST(LogWriterTest, WhereSyncsAreRelaxedTheEndOfAnOldValueIsSyncedAllTheSame) {
  Rig rig({.overwrite_quiet = Duration::zero()});
  rig.writer->SetLimits({{.ref = kNs, .relaxed_sync = true}});
  const auto synced = [&] { return rig.writer->stats().synced_commits; };
  ASSERT_EQ(rig.Put("a", 1, 100).Wait(), State::kDone);
  EXPECT_EQ(synced(), 0u) << "there was nothing before";
  ASSERT_EQ(rig.Put("a", 2, 100).Wait(), State::kDone);
  EXPECT_EQ(synced(), 1u) << "a durable Put's own row takes the place of the old one";
  ASSERT_EQ(rig.Put("a", 3, 100, false).Wait(), State::kDone);
  EXPECT_EQ(synced(), 2u);
  ASSERT_EQ(rig.Remove("a").Wait(), State::kDone);
  EXPECT_GE(synced(), 3u) << "and once more if the value was not written yet";
}

TEST(LogWriterTest, MakeForgottenWaitsForTheOldRowAlone) {
  Rig rig;
  EXPECT_EQ(rig.Remove("a").ticket, nullptr) << "there is nothing";
  EXPECT_EQ(rig.MakeDurable("a").Wait(), State::kFailed);
  EXPECT_EQ(rig.writer->MakeForgotten(NameOf("a"), nullptr), nullptr);
  ASSERT_EQ(rig.Put("a", 1, 100).Wait(), State::kDone);
  EXPECT_EQ(rig.writer->MakeForgotten(NameOf("a"), nullptr), nullptr) << "it is not old";
  rig.io->Hold();
  const Answer put = rig.Put("a", 2, kQuarter);
  const Waiter forgotten;
  const TicketPtr ticket = rig.writer->MakeForgotten(NameOf("a"), forgotten.wake());
  ASSERT_NE(ticket, nullptr);
  EXPECT_TRUE(forgotten.Wait());
  EXPECT_EQ(ticket->state(), State::kDone);
  EXPECT_FALSE(rig.HasRow("a"));
  rig.io->HoldNoMore();
  EXPECT_EQ(put.Wait(), State::kDone);
  EXPECT_EQ(rig.InRows("a"), 2);
}

// "a", not synced yet, is asked to be durable while the writer is about to give "b" to the disk,
// and "old" is removed meanwhile.
TEST(LogWriterTest, DeletesGoAheadOfWhatOthersWantToBeDurable) {
  Rig rig;
  ASSERT_EQ(rig.Put("old", 1, kQuarter).Wait(), State::kDone);
  (void)rig.Put("a", 2, kQuarter, false);
  ASSERT_TRUE(Eventually([&] { return rig.Stored("a"); }));
  Answer durable, removed;
  int submits = 0;
  rig.io->before_submit = [&] {
    if (++submits == 1) {
      durable = rig.MakeDurable("a");
      (void)rig.Put("b", 3, kQuarter, false);
    } else if (submits == 2) {
      rig.files.Shut();
      removed = rig.Remove("old");
    }
  };
  (void)rig.Put("first", 4, kQuarter, false);
  ASSERT_TRUE(rig.files.WaitForOneAtTheGate());
  EXPECT_EQ(removed.ticket->state(), State::kDone);
  rig.files.OpenGate();
  EXPECT_EQ(durable.Wait(), State::kDone);
}

TEST(LogWriterTest, WhenTheIndexIsFullWhatIsOldMakesRoom) {
  Rig rig({.regions_max = 4, .objects_max = 10});
  for (uint64_t i = 0; i < 30; ++i)
    ASSERT_EQ(rig.Put(std::to_string(i), i, kQuarter).Wait(), State::kDone) << i;
  EXPECT_LE(rig.RowNames().size(), 10);
  EXPECT_EQ(rig.InMemory("29"), 29);
}

TEST(LogWriterTest, NothingIsDurableInARegionWhoseSyncHasFailed) {
  ManualClock clock;
  Rig rig({.clock = &clock});
  (void)rig.Put("a", 1, kQuarter, false);
  ASSERT_TRUE(Eventually([&] { return rig.Stored("a"); }));
  rig.files.faults.Fail(FaultyFiles::kSync, StatusCode::kUnavailable, 1);
  EXPECT_EQ(rig.Put("b", 2, kQuarter).Wait(), State::kFailed);
  EXPECT_EQ(rig.MakeDurable("a").Wait(), State::kFailed) << "it may be lost already";
  clock.Advance(std::chrono::seconds(10));
  ASSERT_TRUE(rig.Heals());
  EXPECT_EQ(rig.MakeDurable("a").Wait(), State::kFailed);
}

TEST(LogWriterTest, ADurablePutThatDoesNotFitTakesTheOldRowWithIt) {
  Rig rig;
  ASSERT_EQ(rig.Put("a", 1, 100).Wait(), State::kDone);
  ASSERT_EQ(rig.Put("a", 2, kMiB).Wait(), State::kFailed);
  rig.Restart();
  EXPECT_EQ(rig.InMemory("a"), std::nullopt) << "it does not count any more since the second Put";
}

// Who is told that the second value is safe, or was replaced, must not see the first again.
TEST(LogWriterTest, ADurablePutThatWasOvertakenIsNotDoneWhileTheOldRowIsThere) {
  Rig rig({.region_bytes = 4 * kMiB});
  ASSERT_EQ(rig.Put("a", 1, 100).Wait(), State::kDone);
  rig.io->Hold();
  for (uint64_t i = 0; i < 8; ++i) {  // as many writes as there may be
    (void)rig.Put("first" + std::to_string(i), i, 600 * kKiB, false);
    ASSERT_TRUE(rig.io->WaitForHeld(i + 1));
  }
  const Answer second = rig.Put("a", 2, 100);
  for (uint64_t i = 0; i < 4; ++i) (void)rig.Put("then" + std::to_string(i), i, 600 * kKiB, false);
  const Answer removed = rig.Remove("a");
  rig.io->LetGo(0);
  ASSERT_TRUE(rig.io->WaitForHeld(8));
  EXPECT_TRUE(second.now() != State::kDone || !rig.HasRow("a"));
  rig.io->HoldNoMore();
  EXPECT_EQ(removed.Wait(), State::kDone);
  EXPECT_NE(second.Wait(), State::kWaiting);
  EXPECT_FALSE(rig.HasRow("a"));
}

TEST(LogWriterTest, NoMoreWritesAreUnderWayThanMayBe) {
  Rig rig({.region_bytes = 4 * kMiB});
  ASSERT_EQ(rig.Put("a", 1, 100).Wait(), State::kDone);
  rig.files.Shut();
  const Answer blocked = rig.Put("b", 1, 100);
  ASSERT_TRUE(rig.files.WaitForOneAtTheGate());
  rig.io->Hold();
  for (uint64_t i = 0; i < 12; ++i) (void)rig.Put(std::to_string(i), i, 600 * kKiB, false);
  rig.files.OpenGate();
  ASSERT_TRUE(rig.io->WaitForHeld(LogWriter::kWriteDepth));
  ASSERT_EQ(blocked.Wait(), State::kDone);
  EXPECT_FALSE(rig.io->WaitForHeld(LogWriter::kWriteDepth + 1, std::chrono::milliseconds(50)));
}

TEST(LogWriterTest, ItsEndWritesAlsoWhatIsQueuedBehindWhatWaits) {
  Rig rig({.region_bytes = 4 * kMiB});
  ASSERT_EQ(rig.Put("old", 1, 100).Wait(), State::kDone);
  rig.files.Shut();
  (void)rig.Put("block", 1, 100);
  ASSERT_TRUE(rig.files.WaitForOneAtTheGate());
  rig.io->Hold();
  // Taken from the queue at once: so many writes that the Remove behind them has to wait.
  for (uint64_t i = 0; i < 9; ++i) (void)rig.Put(std::to_string(i), i, 600 * kKiB, i == 0);
  const Answer removed = rig.Remove("old");
  rig.files.OpenGate();
  ASSERT_TRUE(rig.io->WaitForHeld(8));
  const Answer late = rig.Put("late", 7, 100);
  rig.files.Shut();
  rig.io->LetGo(0);  // durable: the writer waits at the gate, and finds all the others done then
  ASSERT_TRUE(rig.files.WaitForOneAtTheGate());
  rig.io->HoldNoMore();
  LogWriter* const writer = rig.writer.get();
  Thread end("writer-end", [&] { rig.writer.reset(); });
  EXPECT_TRUE(Eventually([&] {
    return writer->MakeDurable(NameOf("nothing"), nullptr)->state() == State::kFailed;
  }));  // from now on it takes nothing
  rig.files.OpenGate();
  end.Join();
  EXPECT_EQ(removed.now(), State::kDone);
  EXPECT_EQ(late.now(), State::kDone);
  rig.Restart();
  EXPECT_EQ(rig.InMemory("late"), 7);
}

TEST(LogWriterTest, ItsEndBeginsNoMoreWritesWhenItsTimeIsOver) {
  ManualClock clock;
  Rig rig({.region_bytes = 4 * kMiB, .clock = &clock});
  rig.io->Hold();
  std::vector<Answer> puts;
  for (uint64_t i = 0; i < 30; ++i) puts.push_back(rig.Put(std::to_string(i), i, 600 * kKiB));
  ASSERT_TRUE(rig.io->WaitForHeld(8));
  LogWriter* const writer = rig.writer.get();
  Thread end("writer-end", [&] { rig.writer.reset(); });
  EXPECT_TRUE(Eventually(
      [&] { return writer->MakeDurable(NameOf("nothing"), nullptr)->state() == State::kFailed; }));
  clock.Advance(std::chrono::seconds(6));
  uint64_t written = 0;
  EXPECT_TRUE(Eventually([&] {
    for (; rig.io->held() > 0; ++written) rig.io->LetGo(0);
    return puts.back().now() != State::kWaiting;
  }));
  end.Join();
  EXPECT_LE(written, 2 * LogWriter::kWriteDepth);
  for (const Answer& put : puts) EXPECT_NE(put.now(), State::kWaiting);
}

TEST(LogWriterTest, WhatIsForgottenMeanwhileDoesNotPutOffTheHealing) {
  ManualClock clock;
  Rig rig({.clock = &clock});
  ASSERT_EQ(rig.Put("a", 1, kQuarter).Wait(), State::kDone);
  rig.disk.Set(DiskFault::kBroken);
  EXPECT_EQ(rig.Put("b", 2, kQuarter).Wait(), State::kFailed);
  rig.disk.Set(DiskFault::kNone);
  const OwedDelete owed = rig.index->Drop(NameOf("a"));
  for (int i = 0; i < 8; ++i) {
    rig.writer->Forget({owed}, {});
    rig.PassQueue();
    clock.Advance(std::chrono::milliseconds(300));
  }
  rig.PassQueue();
  EXPECT_EQ(rig.writer->state(), TierState::kOk);
}

TEST(LogWriterTest, WhatIsToBeForgottenWhileTheIndexRefusesIsWaitedForWithoutSpinning) {
  CountingClock clock;
  Rig rig({.clock = &clock});
  ASSERT_EQ(rig.Put("a", 1, kQuarter).Wait(), State::kDone);
  rig.disk.Set(DiskFault::kBroken);
  EXPECT_EQ(rig.Put("b", 2, kQuarter).Wait(), State::kFailed);
  rig.writer->Forget({rig.index->Drop(NameOf("a"))}, {});
  rig.PassQueue();
  const uint64_t before = clock.asked();
  (void)Eventually([&] { return clock.asked() > before + 5000; }, std::chrono::milliseconds(100));
  EXPECT_LT(clock.asked() - before, 300) << "in a tenth of a second";
  rig.disk.Set(DiskFault::kNone);
  clock.manual.Advance(std::chrono::seconds(10));
  EXPECT_TRUE(rig.Heals());
}

TEST(LogWriterTest, NobodyIsWokenInsideOfTheCallThatAsks) {
  Rig rig({.dirty_bytes_max = 100});
  bool calling = true, woken_inside = false;
  const TicketPtr ticket =
      rig.writer->Put(NameOf("a"), MakeObject("a", 1, 1000), true, [&] { woken_inside = calling; });
  calling = false;
  EXPECT_FALSE(woken_inside);
  EXPECT_TRUE(Eventually([&] { return ticket->state() == State::kFailed; }));
}

// --- Whatever comes in whatever order.

TEST(LogWriterTest, AfterManyThreadsMemoryAndRowsAgree) {
  Rig rig;
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  const std::vector<std::string> keys{"a", "b"};
  AskFromManyThreads(&rig, keys, seed);
  ASSERT_TRUE(Eventually([&] { return rig.writer->stats().dirty_bytes == 0; }));
  EXPECT_TRUE(rig.index->Owed().empty());
  for (const std::string& key : keys) {
    EXPECT_EQ(rig.InMemory(key), rig.InRows(key));
    EXPECT_EQ(rig.InMemory(key).has_value(), rig.Stored(key));
  }
}

class LogWriterStormTest : public ::testing::TestWithParam<StormKind> {};

TEST_P(LogWriterStormTest, WhatWasPutLastIsThereAndNothingOlderIsEverSeenAgain) {
  for (const uint64_t seed : {uint64_t{1}, uint64_t{std::random_device()()}}) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Storm(GetParam(), seed).Run();
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, LogWriterStormTest,
                         ::testing::Values(StormKind{"Calm", 24, false},
                                           StormKind{"Full", 3, false},
                                           StormKind{"Faulty", 24, true},
                                           StormKind{"FaultyAndFull", 3, true}),
                         [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace ems::ssd
