// What must hold of what is deleted: while rows are still to be forgotten, a restart would go by
// the meta rows of before, so nobody is told of anything newer that it cannot be lost. What was
// replaced is forgotten even if what replaced it is never written.
#include "mp_server/ssd/delete_log.h"

#include <gtest/gtest.h>

#include "common/fail_point.h"
#include "tests/mp_server/ssd/commit_fixture.h"
#include "tests/mp_server/ssd/log_writer_rig.h"

namespace ems::ssd {
namespace {

using ::ems::testing::Answer;
using ::ems::testing::DiskFault;
using ::ems::testing::Eventually;
using ::ems::testing::kQuarter;
using ::ems::testing::MakeObject;
using ::ems::testing::MakeTicket;
using ::ems::testing::NameOf;
using ::ems::testing::Rig;
using ::ems::testing::Waiter;
using State = Ticket::State;

class DeleteLogTest : public ::ems::testing::RowFixture {
 protected:
  DeleteLog log_{rows_.get(), &index_, &*commit_};
};

TEST_F(DeleteLogTest, ADeleteIsDoneWithTheCommit) {
  Store(a_, 1);
  const TicketPtr ticket = MakeTicket();
  log_.Delete(index_.Drop(a_), ticket);
  EXPECT_TRUE(commit_->synced());
  EXPECT_EQ(ticket->state(), State::kWaiting);
  ASSERT_TRUE(commit_->Write().ok());
  EXPECT_EQ(ticket->state(), State::kDone);
  EXPECT_TRUE(Sequences().empty());
}

TEST_F(DeleteLogTest, WhileTheIndexRefusesADeleteFailsAndStaysOwed) {
  Store(a_, 1);
  BreakRows();
  const TicketPtr ticket = MakeTicket();
  log_.Delete(index_.Drop(a_), ticket);
  EXPECT_EQ(ticket->state(), State::kFailed);
  log_.DeleteOwed(a_);
  EXPECT_TRUE(commit_->empty());
  EXPECT_TRUE(index_.OwedTo(a_));
}

TEST_F(DeleteLogTest, ANameThatIsOwedNothingTakesNoCommit) {
  Store(a_, 1);
  log_.DeleteOwed(a_);
  EXPECT_TRUE(commit_->empty());
  index_.Owe(a_);
  log_.DeleteOwed(a_);
  EXPECT_TRUE(commit_->synced());
}

TEST_F(DeleteLogTest, WhatIsForgottenGoesInStepsAndTheMetaRowsWithTheLast) {
  std::vector<OwedDelete> owed;
  for (uint32_t i = 0; i < DeleteLog::kDeletesStep + 1; ++i) {
    index_.Owe(NameOf(std::to_string(i)));
    owed.push_back(index_.OwedTo(NameOf(std::to_string(i))));
  }
  log_.Forget(std::move(owed), {{"view", "7"}});
  log_.Step();
  EXPECT_EQ(commit_->count(), DeleteLog::kDeletesStep);
  EXPECT_TRUE(log_.pending());
  EXPECT_TRUE(log_.metas().empty());
  log_.Step();
  EXPECT_TRUE(log_.empty());
  EXPECT_EQ(log_.metas().at("view"), "7");
  ASSERT_TRUE(commit_->Write().ok());
  EXPECT_EQ(*rows_->Meta("view"), "7");
  EXPECT_TRUE(index_.Owed().empty());
}

TEST_F(DeleteLogTest, WhatIsDurableIsSaidWithTheMetaRowsThatAreToCome) {
  const TicketPtr now = MakeTicket(), held = MakeTicket(), late = MakeTicket();
  log_.FinishDurable(now);
  EXPECT_EQ(now->state(), State::kDone) << "there are none";
  log_.Forget({}, {{"view", "7"}});
  log_.FinishDurable(held);
  log_.FinishAtCommit(late);
  ASSERT_TRUE(commit_->Write().ok());
  EXPECT_EQ(held->state(), State::kWaiting);
  EXPECT_EQ(late->state(), State::kWaiting);
  log_.Step();
  ASSERT_TRUE(commit_->Write().ok());
  EXPECT_EQ(held->state(), State::kDone);
  EXPECT_EQ(late->state(), State::kDone);
}

TEST_F(DeleteLogTest, WhoWaitsForMetaRowsThatCannotComeIsTold) {
  const TicketPtr held = MakeTicket();
  log_.Forget({}, {{"view", "7"}});
  log_.FinishDurable(held);
  BreakRows();
  log_.Step();
  EXPECT_EQ(held->state(), State::kFailed);
  EXPECT_FALSE(log_.pending());
  EXPECT_FALSE(log_.empty()) << "they are written when it heals";
}

// --- As the writer uses it.

constexpr int kMany = 60'000;  // several steps

class WriterForgetTest : public ::testing::Test {
 protected:
  ~WriterForgetTest() override { EXPECT_TRUE(ArmFailPoints("").ok()); }
  // As if so many rows had been dropped, which are there or not.
  std::vector<OwedDelete> OweMany() {
    for (int i = 0; i < kMany; ++i) rig_.index->Owe(NameOf("old" + std::to_string(i)));
    return rig_.index->Owed();
  }
  std::string Meta() { return *rig_.rows->Meta(kViewMeta); }

  Rig rig_;
};

// Dropped from DRAM as damaged, for instance: who saw it there must not see the older one later.
TEST_F(WriterForgetTest, ADurablePutThatIsNoMoreCurrentTakesTheOldRowWithIt) {
  ASSERT_EQ(rig_.Put("a", 1, 100).Wait(), State::kDone);
  rig_.io->Hold();
  auto object = MakeObject("a", 2, kQuarter);
  const auto current = object->current_flag();
  const Waiter woken;
  const TicketPtr put = rig_.writer->Put(NameOf("a"), std::move(object), true, woken.wake());
  ASSERT_TRUE(rig_.io->WaitForHeld(1));
  EXPECT_EQ(rig_.InRows("a"), 1);
  current->store(false);
  rig_.io->HoldNoMore();
  EXPECT_TRUE(woken.Wait());
  EXPECT_EQ(put->state(), State::kFailed);
  EXPECT_FALSE(rig_.HasRow("a"));
  rig_.Restart();
  EXPECT_FALSE(rig_.Stored("a"));
}

TEST_F(WriterForgetTest, WhatIsPutMeanwhileIsDurableWithTheMetaRows) {
  ASSERT_EQ(rig_.Put("stored", 1, 100).Wait(), State::kDone);
  std::vector<OwedDelete> owed = OweMany();
  ASSERT_TRUE(ArmFailPoints("ssd.before_commit=sleep(20)").ok());
  rig_.writer->Forget(std::move(owed), {{std::string(kViewMeta), "7"}});
  const Answer put = rig_.Put("a", 2, 100);
  const Answer again = rig_.MakeDurable("stored");
  EXPECT_EQ(put.Wait(), State::kDone);
  EXPECT_EQ(Meta(), "7") << "before that a restart drops it";
  EXPECT_TRUE(rig_.HasRow("a"));
  EXPECT_EQ(again.Wait(), State::kDone);
  EXPECT_EQ(rig_.index->Owed().size(), 0u);
}

TEST_F(WriterForgetTest, ItWaitsForTheLastOfSeveral) {
  ASSERT_TRUE(ArmFailPoints("ssd.before_commit=sleep(20)").ok());
  rig_.writer->Forget(OweMany(), {{std::string(kViewMeta), "7"}});
  rig_.writer->Forget({}, {{std::string(kViewMeta), "8"}});
  rig_.writer->Forget({}, {});
  EXPECT_EQ(rig_.Put("a", 2, 100).Wait(), State::kDone);
  EXPECT_EQ(Meta(), "8");
}

TEST_F(WriterForgetTest, WithoutMetaRowsNobodyWaits) {
  std::vector<OwedDelete> owed = OweMany();
  ASSERT_TRUE(ArmFailPoints("ssd.before_commit=sleep(20)").ok());
  rig_.writer->Forget(std::move(owed), {});
  EXPECT_EQ(rig_.Put("a", 2, 100).Wait(), State::kDone);
  EXPECT_GT(rig_.index->Owed().size(), 0u);
}

TEST_F(WriterForgetTest, WhoeverWaitsIsToldThatTheIndexRefuses) {
  std::vector<OwedDelete> owed = OweMany();
  ASSERT_TRUE(ArmFailPoints("ssd.before_commit=sleep(20)").ok());
  rig_.writer->Forget(std::move(owed), {{std::string(kViewMeta), "7"}});
  const Answer put = rig_.Put("a", 2, 100);
  ASSERT_TRUE(Eventually([&] { return rig_.HasRow("a"); }));
  EXPECT_EQ(put.now(), State::kWaiting);
  rig_.disk.Set(DiskFault::kBroken);
  EXPECT_EQ(put.Wait(), State::kFailed);
  rig_.disk.Set(DiskFault::kNone);
}

TEST_F(WriterForgetTest, WhoeverWaitsIsToldOfTheEnd) {
  std::vector<OwedDelete> owed = OweMany();
  ASSERT_TRUE(ArmFailPoints("ssd.before_commit=sleep(20)").ok());
  rig_.writer->Forget(std::move(owed), {{std::string(kViewMeta), "7"}});
  const Answer put = rig_.Put("a", 2, 100);
  rig_.Stop();
  EXPECT_NE(put.now(), State::kWaiting);
  rig_.Start();
  EXPECT_EQ(Meta() == "7", put.now() == State::kDone);
}

}  // namespace
}  // namespace ems::ssd
