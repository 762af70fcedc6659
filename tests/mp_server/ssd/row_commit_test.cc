// What must hold: who waits learns what became of the write, and a name is owed its delete until
// one was written.
#include "mp_server/ssd/row_commit.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/mp_server/ssd/commit_fixture.h"

namespace ems::ssd {
namespace {

using ::ems::testing::BeginWrite;
using ::ems::testing::DiskFault;
using ::ems::testing::MakeTicket;
using ::ems::testing::NameOf;
using ::ems::testing::RowOf;
using State = Ticket::State;

class RowCommitTest : public ::ems::testing::RowFixture {};

TEST_F(RowCommitTest, NothingIsWrittenWithoutADisk) {
  EXPECT_TRUE(commit_->empty());
  EXPECT_FALSE(commit_->synced());
  disk_.Set(DiskFault::kBroken);
  EXPECT_TRUE(commit_->Write().ok());
  EXPECT_FALSE(rows_->broken());
}

TEST_F(RowCommitTest, RowsComeAndGoTogether) {
  Store(a_, 1);
  commit_->Put(b_, RowOf(2));
  commit_->Delete(index_.Drop(a_), nullptr, false);
  commit_->PutMeta("view", "17");
  EXPECT_FALSE(commit_->empty());
  EXPECT_EQ(commit_->count(), 3);
  EXPECT_EQ(Sequences(), (std::map<ObjectName, uint64_t>{{a_, 1}})) << "not before Write";
  ASSERT_TRUE(commit_->Write().ok());
  EXPECT_EQ(Sequences(), (std::map<ObjectName, uint64_t>{{b_, 2}}));
  EXPECT_EQ(*rows_->Meta("view"), "17");
  EXPECT_TRUE(commit_->empty());
}

TEST_F(RowCommitTest, APutBehindADeleteOfTheSameNameStays) {
  Store(a_, 1);
  commit_->Delete(index_.Drop(a_), nullptr, false);
  commit_->Put(a_, RowOf(2));
  ASSERT_TRUE(commit_->Write().ok());
  EXPECT_EQ(Sequences(), (std::map<ObjectName, uint64_t>{{a_, 2}}));
}

TEST_F(RowCommitTest, TicketsAreDoneWhenItIsWrittenAndNotBefore) {
  Store(a_, 1);
  const TicketPtr removed = MakeTicket();
  const TicketPtr waiting = MakeTicket();
  commit_->Delete(index_.Drop(a_), removed, false);
  commit_->Wait(waiting);
  EXPECT_EQ(removed->state(), State::kWaiting);
  EXPECT_EQ(waiting->state(), State::kWaiting);
  ASSERT_TRUE(commit_->Write().ok());
  EXPECT_EQ(removed->state(), State::kDone);
  EXPECT_EQ(waiting->state(), State::kDone);
}

TEST_F(RowCommitTest, ADeleteEndsTheOwingOnlyWhenItIsWritten) {
  Store(a_, 1);
  const OwedDelete owed = index_.Drop(a_);
  commit_->Delete(owed, nullptr, true);
  EXPECT_EQ(index_.Owed().size(), 1);
  ASSERT_TRUE(commit_->Write().ok());
  EXPECT_TRUE(index_.Owed().empty());
}

TEST_F(RowCommitTest, ADeleteThatFailsFailsItsTicketAndStaysOwed) {
  Store(a_, 1);
  const TicketPtr removed = MakeTicket();
  const TicketPtr waiting = MakeTicket();
  commit_->Delete(index_.Drop(a_), removed, true);
  commit_->Wait(waiting);
  disk_.Set(DiskFault::kBroken);
  EXPECT_EQ(commit_->Write().code(), StatusCode::kUnavailable);
  EXPECT_EQ(removed->state(), State::kFailed);
  EXPECT_EQ(waiting->state(), State::kFailed);
  EXPECT_EQ(index_.Owed().size(), 1);
  EXPECT_TRUE(commit_->empty()) << "nothing is carried over";
  EXPECT_FALSE(commit_->synced());
}

TEST_F(RowCommitTest, WhatFailedIsNotWrittenWithTheNext) {
  commit_->Put(a_, RowOf(1));
  disk_.Set(DiskFault::kBroken);
  EXPECT_FALSE(commit_->Write().ok());
  disk_.Set(DiskFault::kNone);
  commit_->Put(b_, RowOf(2));
  EXPECT_FALSE(commit_->Write().ok()) << "an index that failed takes no more until it is reopened";
  ASSERT_TRUE(rows_->Reopen(false).ok());
  commit_->Put(b_, RowOf(3));
  ASSERT_TRUE(commit_->Write().ok());
  EXPECT_EQ(Sequences(), (std::map<ObjectName, uint64_t>{{b_, 3}}));
}

TEST_F(RowCommitTest, ANameThatIsOwedAnotherMeanwhileStaysOwed) {
  Store(a_, 1);
  commit_->Delete(index_.Drop(a_), nullptr, false);
  index_.Owe(a_);
  ASSERT_TRUE(commit_->Write().ok());
  EXPECT_EQ(index_.Owed().size(), 1);
}

// The row that the first delete was for is still there: whatever is owed by then ends it.
TEST_F(RowCommitTest, ADeleteThatIsOwedAgainByThenStillDeletesTheRow) {
  Store(a_, 1);
  const OwedDelete first = index_.Drop(a_);
  (void)BeginWrite(&index_, a_, 2, *object_);
  (void)BeginWrite(&index_, a_, 3, *object_);
  const TicketPtr removed = MakeTicket();
  commit_->Delete(first, removed, true);
  ASSERT_TRUE(commit_->Write().ok());
  EXPECT_EQ(removed->state(), State::kDone);
  EXPECT_TRUE(Sequences().empty()) << "it has been said that the old value is gone";
}

TEST_F(RowCommitTest, ADeleteThatIsNotOwedAnyMoreLeavesTheRowThatTookItsPlace) {
  Store(a_, 1);
  const OwedDelete owed = index_.Drop(a_);
  Store(a_, 2);
  const TicketPtr removed = MakeTicket();
  commit_->Delete(owed, removed, false);
  EXPECT_TRUE(commit_->synced()) << "the row that replaced it must be there for good";
  ASSERT_TRUE(commit_->Write().ok());
  EXPECT_EQ(removed->state(), State::kDone);
  EXPECT_EQ(Sequences(), (std::map<ObjectName, uint64_t>{{a_, 2}}));
}

TEST_F(RowCommitTest, OnlyWhatIsToBeSyncedIsSynced) {
  Store(a_, 1);
  Store(b_, 2);
  disk_.Set(DiskFault::kNoSync);
  commit_->Put(NameOf("c"), RowOf(3));
  EXPECT_FALSE(commit_->synced());
  EXPECT_TRUE(commit_->Write().ok()) << "no sync was asked for";
  commit_->Delete(index_.Drop(a_), nullptr, false);
  EXPECT_FALSE(commit_->synced());
  EXPECT_TRUE(commit_->Write().ok());
  commit_->Delete(index_.Drop(b_), nullptr, true);
  EXPECT_TRUE(commit_->synced());
  EXPECT_FALSE(commit_->Write().ok());
}

TEST_F(RowCommitTest, ADeleteWithoutASyncDoesNotUndoTheOneOfAnother) {
  Store(a_, 1);
  Store(b_, 2);
  commit_->Delete(index_.Drop(a_), nullptr, true);
  commit_->Delete(index_.Drop(b_), nullptr, false);
  EXPECT_TRUE(commit_->synced());
}

TEST_F(RowCommitTest, WhoWaitsHasWhatWasWrittenBeforeSynced) {
  commit_->Put(a_, RowOf(1));
  ASSERT_TRUE(commit_->Write().ok());
  const TicketPtr ticket = MakeTicket();
  commit_->Wait(ticket);
  EXPECT_FALSE(commit_->empty()) << "there are no rows, but a caller waits";
  EXPECT_EQ(commit_->count(), 0);
  EXPECT_TRUE(commit_->synced());
  disk_.Set(DiskFault::kNoSync);
  EXPECT_FALSE(commit_->Write().ok());
  EXPECT_EQ(ticket->state(), State::kFailed);
}

TEST_F(RowCommitTest, ASyncAloneIsSomethingToWrite) {
  commit_->RequireSync();
  EXPECT_FALSE(commit_->empty());
  EXPECT_TRUE(commit_->Write().ok());
  EXPECT_TRUE(commit_->empty());
}

TEST_F(RowCommitTest, WhatIsDoneSurvivesANewStart) {
  const TicketPtr ticket = MakeTicket();
  commit_->Put(a_, RowOf(7));
  commit_->Wait(ticket);
  ASSERT_TRUE(commit_->Write().ok());
  ASSERT_EQ(ticket->state(), State::kDone);
  ASSERT_TRUE(rows_->Reopen(false).ok());
  EXPECT_EQ(Sequences(), (std::map<ObjectName, uint64_t>{{a_, 7}}));
}

TEST_F(RowCommitTest, EveryWaiterIsWokenOnce) {
  int woken = 0;
  for (int i = 0; i < 3; ++i) commit_->Wait(std::make_shared<Ticket>([&woken] { ++woken; }));
  ASSERT_TRUE(commit_->Write().ok());
  ASSERT_TRUE(commit_->Write().ok());
  EXPECT_EQ(woken, 3);
}

}  // namespace
}  // namespace ems::ssd
