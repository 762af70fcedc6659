// What must hold: while rows are still to be forgotten, a restart would go by the meta rows of
// before, so nobody is told of anything newer that it cannot be lost. What was replaced is
// forgotten even if what replaced it is never written, and what a region held when it is given up.
#include <gtest/gtest.h>

#include "common/fail_point.h"
#include "mp_server/ssd/log_writer.h"
#include "tests/mp_server/ssd/log_writer_rig.h"

namespace ems::ssd {
namespace {

using ::ems::testing::Answer;
using ::ems::testing::DiskFault;
using ::ems::testing::Eventually;
using ::ems::testing::FillThreeRegions;
using ::ems::testing::kQuarter;
using ::ems::testing::MakeObject;
using ::ems::testing::NameOf;
using ::ems::testing::Rig;
using ::ems::testing::Waiter;
using State = Ticket::State;

constexpr int kMany = 60'000;  // several steps

class LogWriterForgetTest : public ::testing::Test {
 protected:
  ~LogWriterForgetTest() override { EXPECT_TRUE(ArmFailPoints("").ok()); }
  // As if so many rows had been dropped, which are there or not.
  std::vector<OwedDelete> OweMany() {
    for (int i = 0; i < kMany; ++i) rig_.index->Owe(NameOf("old" + std::to_string(i)));
    return rig_.index->Owed();
  }
  std::string Meta() { return *rig_.rows->Meta(kViewMeta); }

  Rig rig_;
};

// Dropped from DRAM as damaged, for instance: who saw it there must not see the older one later.
TEST_F(LogWriterForgetTest, ADurablePutThatIsNoMoreCurrentTakesTheOldRowWithIt) {
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

TEST_F(LogWriterForgetTest, WhatIsPutMeanwhileIsDurableWithTheMetaRows) {
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

TEST_F(LogWriterForgetTest, ItWaitsForTheLastOfSeveral) {
  ASSERT_TRUE(ArmFailPoints("ssd.before_commit=sleep(20)").ok());
  rig_.writer->Forget(OweMany(), {{std::string(kViewMeta), "7"}});
  rig_.writer->Forget({}, {{std::string(kViewMeta), "8"}});
  rig_.writer->Forget({}, {});
  EXPECT_EQ(rig_.Put("a", 2, 100).Wait(), State::kDone);
  EXPECT_EQ(Meta(), "8");
}

TEST_F(LogWriterForgetTest, WithoutMetaRowsNobodyWaits) {
  std::vector<OwedDelete> owed = OweMany();
  ASSERT_TRUE(ArmFailPoints("ssd.before_commit=sleep(20)").ok());
  rig_.writer->Forget(std::move(owed), {});
  EXPECT_EQ(rig_.Put("a", 2, 100).Wait(), State::kDone);
  EXPECT_GT(rig_.index->Owed().size(), 0u);
}

TEST_F(LogWriterForgetTest, WhoeverWaitsIsToldThatTheIndexRefuses) {
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

TEST_F(LogWriterForgetTest, WhoeverWaitsIsToldOfTheEnd) {
  std::vector<OwedDelete> owed = OweMany();
  ASSERT_TRUE(ArmFailPoints("ssd.before_commit=sleep(20)").ok());
  rig_.writer->Forget(std::move(owed), {{std::string(kViewMeta), "7"}});
  const Answer put = rig_.Put("a", 2, 100);
  rig_.Stop();
  EXPECT_NE(put.now(), State::kWaiting);
  rig_.Start();
  EXPECT_EQ(Meta() == "7", put.now() == State::kDone);
}

// Nothing durable was asked for since: without a sync of its own each name would stay owed a
// delete, and a Remove of it would wait for the disk.
TEST(LogWriterReclaimTest, OfARegionThatIsGivenUpNoNameStaysOwedADelete) {
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
