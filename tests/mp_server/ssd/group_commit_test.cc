// What must hold: an object is stored once its record and its row are on the disk, and who waits is
// told what became of it.
#include "mp_server/ssd/group_commit.h"

#include <gtest/gtest.h>

#include "tests/mp_server/ssd/commit_fixture.h"

namespace ems::ssd {
namespace {

using ::ems::testing::BeginRegion;
using ::ems::testing::BeginWrite;
using ::ems::testing::FaultyFiles;
using ::ems::testing::MakeObject;
using ::ems::testing::MakeTicket;
using ::ems::testing::NameOf;
using State = Ticket::State;

class GroupCommitTest : public ::ems::testing::GroupFixture {
 protected:
  WriteGroup* Write(const std::string& key, uint64_t sequence, TicketPtr durable) {
    return WriteTo(region_, key, sequence, std::move(durable));
  }
  bool Stored(const std::string& key) { return index_.Find(NameOf(key), false).stored; }
};

TEST_F(GroupCommitTest, WhatHasLandedIsStoredWithTheCommit) {
  const TicketPtr ticket = MakeTicket();
  WriteGroup* group = Write("a", 1, ticket);
  groups_->Land(group);
  EXPECT_FALSE(Stored("a"));
  groups_->Commit();
  EXPECT_TRUE(Stored("a"));
  EXPECT_EQ(Sequences().at(a_), 1u);
  EXPECT_EQ(ticket->state(), State::kDone);
  EXPECT_EQ(region_->members.size(), 1u);
  EXPECT_EQ(region_->writes_under_way, 0u);
  EXPECT_EQ(group->region(), nullptr) << "it can be filled again";
  EXPECT_EQ(dirty_bytes_.load(), 0u);
  EXPECT_EQ(counts_.Get().written_objects, 1u);
  EXPECT_EQ(counts_.Get().synced_commits, 1u);
  groups_->Commit();
  EXPECT_EQ(counts_.Get().commits, 1u) << "there was nothing to do";
}

TEST_F(GroupCommitTest, WithoutAnybodyWhoWaitsNothingIsSynced) {
  groups_->Land(Write("a", 1, nullptr));
  groups_->Commit();
  EXPECT_TRUE(Stored("a"));
  EXPECT_TRUE(region_->unsynced);
  EXPECT_EQ(region_->unsynced_members.size(), 1u);
  EXPECT_EQ(counts_.Get().synced_commits, 0u);
}

TEST_F(GroupCommitTest, AFailedSyncTakesAllThatWasWrittenSinceTheLastOne) {
  groups_->Land(Write("a", 1, nullptr));
  groups_->Commit();
  files_.Fail(FaultyFiles::kSync, StatusCode::kUnavailable, 1);
  const TicketPtr ticket = MakeTicket();
  groups_->Land(Write("b", 2, nullptr));
  groups_->Land(Write("c", 3, ticket));
  groups_->Commit();
  EXPECT_EQ(ticket->state(), State::kFailed);
  EXPECT_EQ(region_->state, RegionState::kBad);
  EXPECT_EQ(health_.state(), TierState::kDegraded);
  for (const char* key : {"a", "b", "c"}) EXPECT_FALSE(Stored(key)) << key;
  EXPECT_TRUE(Sequences().empty());
  EXPECT_EQ(counts_.Get().failed_objects, 2u);
  EXPECT_EQ(dirty_bytes_.load(), 0u);
}

TEST_F(GroupCommitTest, WhoWaitsForWhatWasReplacedWaitsForWhatReplacedIt) {
  const TicketPtr first = MakeTicket();
  WriteGroup* group = Write("a", 1, first);
  const auto newer = MakeObject("a", 2, 1000);
  (void)BeginWrite(&index_, a_, 2, *newer);
  groups_->Land(group);
  groups_->Commit();
  EXPECT_EQ(counts_.Get().superseded_objects, 1u);
  groups_->LookAtWaiting(false);
  EXPECT_EQ(first->state(), State::kWaiting);
  index_.AbandonWrite(a_, 2);
  groups_->LookAtWaiting(false);
  EXPECT_EQ(first->state(), State::kFailed) << "nothing is there";
  EXPECT_FALSE(groups_->waiting());
}

TEST_F(GroupCommitTest, WhatIsStoredIsDurableWithTheNextCommit) {
  groups_->Land(Write("a", 1, nullptr));
  groups_->Commit();
  const TicketPtr ticket = MakeTicket();
  groups_->WaitDurable(a_, ticket);
  groups_->LookAtWaiting(false);
  EXPECT_FALSE(region_->unsynced);
  EXPECT_EQ(ticket->state(), State::kWaiting);
  groups_->Commit();
  EXPECT_EQ(ticket->state(), State::kDone);
}

// The sync of any later commit makes its row durable, so its copy has to be durable before; and who
// waits for the object is not told of a copy that is not.
TEST_F(GroupCommitTest, WhatMovesIsSyncedBeforeItsRowLeadsThere) {
  Region* const from = BeginRegion(log_.get());
  for (const bool fails : {false, true}) {
    Row old;
    old.sequence = 1;
    old.value_bytes = 1000;
    old.region = from->id;
    old.region_sequence = from->sequence;
    StoreRow(a_, old);
    WriteGroup* group = MoveTo(region_, "a", old);
    const uint64_t synced = files_.calls(FaultyFiles::kSync);
    if (fails) files_.Fail(FaultyFiles::kSync, StatusCode::kUnavailable, 1);
    const TicketPtr ticket = MakeTicket();
    groups_->WaitDurable(a_, ticket);
    groups_->Land(group);
    groups_->LookAtWaiting(false);
    EXPECT_EQ(groups_->Commit(), !fails);
    EXPECT_EQ(files_.calls(FaultyFiles::kSync), synced + 1);
    EXPECT_EQ(ticket->state(), State::kDone);
    const SsdIndex::Found found = index_.Find(a_, false);
    ASSERT_TRUE(found.stored) << "where it was before, if it cannot be synced";
    EXPECT_EQ(found.row.region, fails ? from->id : region_->id);
    EXPECT_EQ(RegionOf(a_), found.row.region);
    EXPECT_EQ(from->moves_under_way, 0u);
  }
}

TEST_F(GroupCommitTest, DeletesThatAreWaitedForGoAheadOfSyncsOfRegions) {
  Store(b_, 1);
  const TicketPtr deleted = MakeTicket(), stored = MakeTicket();
  deletes_->Delete(index_.Drop(b_), deleted);
  groups_->Land(Write("a", 2, stored));
  State before_sync = State::kWaiting;
  files_.before_sync = [&] { before_sync = deleted->state(); };
  groups_->Commit();
  EXPECT_EQ(before_sync, State::kDone);
  EXPECT_FALSE(Sequences().contains(b_));
  EXPECT_EQ(stored->state(), State::kDone);
}

TEST_F(GroupCommitTest, AtTheEndWhatIsStillPendingFails) {
  const TicketPtr pending = MakeTicket(), left = MakeTicket();
  (void)BeginWrite(&index_, a_, 1, *object_);
  groups_->WaitDurable(a_, pending);
  groups_->LookAtWaiting(true);
  EXPECT_EQ(pending->state(), State::kFailed);
  groups_->WaitDurable(a_, left);
  groups_->FailWaiting();
  EXPECT_EQ(left->state(), State::kFailed);
}

TEST_F(GroupCommitTest, WhenTheIndexRefusesTheNameIsOwedADelete) {
  disk_.Set(::ems::testing::DiskFault::kBroken);
  const TicketPtr ticket = MakeTicket();
  groups_->Land(Write("a", 1, ticket));
  groups_->Commit();
  EXPECT_EQ(ticket->state(), State::kFailed);
  EXPECT_FALSE(Stored("a"));
  EXPECT_TRUE(index_.OwedTo(a_)) << "its row may be there, or not";
  EXPECT_EQ(health_.state(), TierState::kDegraded);
}

}  // namespace
}  // namespace ems::ssd
