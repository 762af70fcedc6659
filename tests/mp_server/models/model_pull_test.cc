// What must hold: this server's blocks are given out once a job and a view, what is learned is told
// until it has arrived, and pins come and go with the version's.
#include "mp_server/models/model_pull.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/mp_server/models/model_pull_samples.h"

namespace ems::server {
namespace {

struct ModelPullTest : ::testing::Test {
  ModelPull pull{7, Sample()};
};

TEST_F(ModelPullTest, GivesOutItsOwnBlocksOnceAndSaysWhenItHasFinished) {
  EXPECT_TRUE(pull.Follow(JobStatus(1, true)).empty());
  EXPECT_FALSE(pull.Next()) << "which blocks are its own is not known yet";
  EXPECT_FALSE(pull.finished());
  pull.SetOwned(ViewVersion(1, 5), kNs, Slots(true));
  const auto tasks = TakeAll(&pull);
  std::set<uint32_t> blocks;
  for (const auto& task : tasks) {
    EXPECT_TRUE(Slots(true)[task.slot.value()]);
    EXPECT_EQ(task.ns, kNs);
    EXPECT_FALSE(task.digest);
    blocks.insert(task.block);
  }
  EXPECT_EQ(blocks.size(), tasks.size());
  EXPECT_GE(blocks.size(), kBlocks / 2);
  for (const auto& task : tasks) {
    EXPECT_FALSE(pull.finished());
    pull.Done(task, FromSource(task.block));
  }
  EXPECT_TRUE(pull.finished());
  EXPECT_TRUE(pull.has_news());
  const auto report = Report(&pull);
  EXPECT_EQ(report.model_id(), 7U);
  EXPECT_EQ(report.manifest(), model::ManifestChecksum(*Sample()));
  EXPECT_EQ(report.job(), 1U);
  EXPECT_EQ(report.epoch(), 5U);
  EXPECT_TRUE(report.finished());
  EXPECT_EQ(report.blocks_done(), tasks.size());
  EXPECT_EQ(report.bytes_done(), 10 * tasks.size());
  EXPECT_EQ(report.source_bytes(), 10 * tasks.size());
  EXPECT_EQ(report.blocks_size(), static_cast<int>(tasks.size()));
  EXPECT_FALSE(pull.has_news());
}

TEST_F(ModelPullTest, DigestsGoAgainUntilTheyHaveArrived) {
  pull.Follow(JobStatus(1, true));
  pull.SetOwned(ViewVersion(1, 1), kNs, Slots(false));
  const auto task = *pull.Next();
  pull.Done(task, FromSource(task.block));
  const auto lost = Report(&pull);
  ASSERT_EQ(lost.blocks_size(), 1);
  pull.ReportFailed(lost);
  EXPECT_TRUE(pull.has_news());
  const auto again = Report(&pull);
  ASSERT_EQ(again.blocks_size(), 1);
  EXPECT_EQ(again.digests(), lost.digests());
}

TEST_F(ModelPullTest, KnownDigestsGoAlongAndAreNoNews) {
  pull.Follow(JobStatus(1, true));
  pull.Learn(0, Digest(0));
  pull.Learn(kBlocks, Digest(1));  // of nothing
  pull.SetOwned(ViewVersion(1, 1), kNs, Slots(false));
  const auto task = *pull.Next();
  ASSERT_EQ(task.block, 0U);
  EXPECT_EQ(task.digest, Digest(0));
  pull.Done(task, FromSource(0));
  EXPECT_EQ(Report(&pull).blocks_size(), 0);
}

// Bytes that were damaged on the way here, and read well elsewhere.
TEST_F(ModelPullTest, WhatTheControllerKnowsCountsAndOtherBytesAreReadAnew) {
  pull.Follow(JobStatus(1, true));
  pull.SetOwned(ViewVersion(1, 1), kNs, Slots(false));
  const auto tasks = TakeAll(&pull);
  const auto& busy = tasks[3];
  for (const auto& task : tasks) {
    if (task.block != busy.block) pull.Done(task, FromSource(task.block));
  }
  pull.Learn(tasks[0].block, Digest(100));
  pull.Learn(busy.block, Digest(101));
  pull.Learn(tasks[5].block, Digest(tasks[5].block));
  pull.Done(busy, FromSource(busy.block));
  EXPECT_FALSE(pull.finished());
  const auto again = TakeAll(&pull);
  ASSERT_EQ(again.size(), 2U);
  EXPECT_EQ(again[0].digest, Digest(100));
  EXPECT_EQ(again[1].digest, Digest(101));
  for (const auto& task : again) {
    ModelPull::Outcome right = FromSource(task.block);
    right.digest = *task.digest;
    pull.Done(task, std::move(right));
  }
  EXPECT_TRUE(pull.finished());
  EXPECT_EQ(Report(&pull).bytes_done(), uint64_t{10} * kBlocks);
}

TEST_F(ModelPullTest, WhatIsDoneStaysDoneOverViewsAndWhatComesIsDone) {
  pull.Follow(JobStatus(1, true));
  pull.SetOwned(ViewVersion(1, 1), kNs, Slots(true));
  auto tasks = TakeAll(&pull);
  const auto busy = tasks.back();
  tasks.pop_back();
  for (const auto& task : tasks) pull.Done(task, FromSource(task.block));
  pull.SetOwned(ViewVersion(1, 2), kNs, Slots(false));
  EXPECT_FALSE(pull.finished());
  EXPECT_EQ(Report(&pull).blocks_done(), tasks.size()) << "progress is not reset";
  auto again = TakeAll(&pull);
  EXPECT_EQ(again.size(), kBlocks - tasks.size() - 1);
  for (const auto& task : again) {
    EXPECT_NE(task.block, busy.block);
    pull.Done(task, FromSource(task.block));
  }
  EXPECT_FALSE(pull.finished());
  pull.Done(busy, FromSource(busy.block));
  EXPECT_TRUE(pull.finished());
  EXPECT_EQ(Report(&pull).source_bytes(), uint64_t{10} * kBlocks) << "each was read once";
  pull.SetOwned(ViewVersion(1, 3), kNs, Slots(true));
  EXPECT_TRUE(pull.finished()) << "nothing has come";
  EXPECT_EQ(Report(&pull).epoch(), 3U);
  EXPECT_EQ(Report(&pull).blocks_done(), tasks.size() + 1);
  pull.SetOwned(ViewVersion(1, 4), kNs, Slots(false));
  EXPECT_EQ(TakeAll(&pull).size(), kBlocks - tasks.size() - 1) << "what came back came empty";
}

// The store has dropped what was in these slots; the view that gives them back may be the next that
// is looked at.
TEST_F(ModelPullTest, WhatWasInSlotsThatWereLostIsDoneAgainAlsoWhatAWorkerIsBusyWith) {
  pull.LoseSlots({});  // before there is a view
  pull.Follow(JobStatus(1, true));
  pull.SetOwned(ViewVersion(1, 1), kNs, Slots(false));
  const auto tasks = TakeAll(&pull);
  const std::bitset<kSlotCount> kept = Slots(true);
  std::vector<ModelPull::Task> busy;
  size_t lost = 0;
  for (const auto& task : tasks) {
    lost += kept[task.slot.value()] ? 0 : 1;
    if (task.block % 4 < 2)
      pull.Done(task, FromSource(task.block));
    else
      busy.push_back(task);
  }
  (void)Report(&pull);
  pull.LoseSlots(kept);
  EXPECT_TRUE(pull.has_news());
  for (const auto& task : busy) pull.Done(task, FromSource(task.block));
  pull.SetOwned(ViewVersion(1, 3), kNs, Slots(false));
  EXPECT_FALSE(pull.finished());
  const auto again = TakeAll(&pull);
  EXPECT_EQ(again.size(), lost);
  for (const auto& task : again) {
    EXPECT_FALSE(kept[task.slot.value()]);
    pull.Done(task, FromSource(task.block));
  }
  EXPECT_TRUE(pull.finished());
}

TEST_F(ModelPullTest, DigestsAreLackingOnlyOfBlocksThatCome) {
  pull.Follow(JobStatus(1, true));
  pull.SetOwned(ViewVersion(1, 1), kNs, Slots(true));
  EXPECT_FALSE(pull.LacksDigests(kNs, Slots(true))) << "they are to be read here";
  EXPECT_TRUE(pull.LacksDigests(kNs, Slots(false)));
  for (uint32_t block = 0; block < kBlocks; ++block) pull.Learn(block, Digest(block));
  EXPECT_FALSE(pull.LacksDigests(kNs, Slots(false)));
}

TEST_F(ModelPullTest, NamesInLostSlotsAreThoseOfItsOwnBlocksThatAreKnown) {
  pull.Follow(JobStatus(1, true));
  const auto names = [&](const std::bitset<kSlotCount>& slots) {
    std::vector<BlockName> found;
    pull.NamesIn(slots, &found);
    return found;
  };
  const auto all = std::bitset<kSlotCount>().set();
  pull.SetOwned(ViewVersion(1, 1), kNs, Slots(true));
  EXPECT_TRUE(names(all).empty());
  for (uint32_t block = 0; block < kBlocks; ++block) pull.Learn(block, Digest(block));
  ASSERT_EQ(names(all).size(), TakeAll(&pull).size());
  EXPECT_EQ(names(all)[0], BlockName(kNs, model::BlockKey(Digest(0))));
  EXPECT_TRUE(names({}).empty());
  EXPECT_TRUE(names(~Slots(true)).empty());
  pull.Follow(JobStatus(1, false));
  EXPECT_TRUE(names(all).empty()) << "nobody wants them";
}

TEST_F(ModelPullTest, WhatIsGivenBackComesAgain) {
  pull.Follow(JobStatus(1, true));
  pull.SetOwned(ViewVersion(1, 1), kNs, Slots(false));
  const auto first = *pull.Next();
  const auto second = *pull.Next();
  pull.GiveBack(first);
  EXPECT_EQ(pull.Next()->block, first.block);
  EXPECT_EQ(pull.Next()->block, second.block + 1);
}

// Cancelled and asked for again: the worker of the first one comes back to another.
TEST_F(ModelPullTest, AWorkerOfAPullBeforeCountsForWhatItLearned) {
  ModelPull before(7, Sample());
  before.Follow(JobStatus(1, true));
  before.SetOwned(ViewVersion(1, 1), kNs, Slots(false));
  const auto old = *before.Next();
  pull.Follow(JobStatus(2, true));
  pull.SetOwned(ViewVersion(1, 1), kNs, Slots(false));
  pull.Done(old, FromSource(old.block));
  pull.GiveBack(old);
  const auto tasks = TakeAll(&pull);
  ASSERT_EQ(tasks.size(), kBlocks);
  EXPECT_EQ(tasks[0].digest, Digest(old.block)) << "it is known now what it must be";
  pull.Done(tasks[0], FromSource(tasks[0].block));
  pull.Done(old, FromSource(old.block));
  for (const auto& task : tasks) {
    EXPECT_FALSE(pull.finished());
    if (task.block != old.block) pull.Done(task, FromSource(task.block));
  }
  EXPECT_TRUE(pull.finished());
}

TEST_F(ModelPullTest, AFailureStopsTheJobAndTheNextOneBeginsAnew) {
  pull.Follow(JobStatus(1, true));
  pull.SetOwned(ViewVersion(1, 1), kNs, Slots(false));
  const auto task = *pull.Next();
  const auto other = *pull.Next();
  pull.Fail(task, Error(StatusCode::kNotFound, "gone"));
  EXPECT_FALSE(pull.Next());
  pull.Fail(other, Error(StatusCode::kUnavailable, "later"));
  const auto report = Report(&pull);
  EXPECT_EQ(report.error(), "gone") << "the first reason";
  EXPECT_EQ(report.error_code(), static_cast<uint32_t>(StatusCode::kNotFound));
  EXPECT_FALSE(report.finished());
  pull.Follow(JobStatus(1, false));
  pull.Follow(JobStatus(2, true));
  EXPECT_TRUE(pull.has_news());
  EXPECT_EQ(TakeAll(&pull).size(), kBlocks);
  pull.Fail(task, Error(StatusCode::kNotFound, "of the job before"));
  EXPECT_TRUE(pull.error().ok());
}

// It was deleted, say. The job ends with the reason, unless it is made again soon enough.
TEST_F(ModelPullTest, WithoutItsNamespaceNothingIsGivenOutAndItFailsInTheEnd) {
  pull.Follow(JobStatus(1, true));
  pull.SetOwned(ViewVersion(1, 1), kNs, Slots(false));
  const auto busy = *pull.Next();
  const auto done = *pull.Next();
  pull.Done(done, FromSource(done.block));
  const TimePoint begin{};
  pull.WithoutNamespace(begin);
  pull.GiveBack(busy);
  EXPECT_FALSE(pull.Next());
  EXPECT_FALSE(pull.finished());
  EXPECT_TRUE(pull.error().ok()) << "the news of a new one may be on the way";
  constexpr NamespaceRef kAnother{NamespaceId(4), 1};
  pull.SetOwned(ViewVersion(1, 1), kAnother, std::bitset<kSlotCount>().set());
  const auto tasks = TakeAll(&pull);
  ASSERT_FALSE(tasks.empty()) << "the new one is empty, so all of it again";
  EXPECT_EQ(tasks[0].ns, kAnother);
  pull.WithoutNamespace(begin + ModelPull::kNamespacePatience);
  EXPECT_TRUE(pull.error().ok()) << "the time begins anew";
  pull.WithoutNamespace(begin + 2 * ModelPull::kNamespacePatience);
  EXPECT_EQ(pull.error().code(), StatusCode::kNotFound);
  EXPECT_EQ(Report(&pull).error_code(), static_cast<uint32_t>(StatusCode::kNotFound));
  pull.Follow(JobStatus(1, false));
  const TimePoint later = begin + 3 * ModelPull::kNamespacePatience;
  pull.Retry(later);
  pull.Retry(later + ModelPull::kRetryFirst);
  EXPECT_FALSE(pull.error().ok()) << "nothing to try while it is not there";
  pull.SetOwned(ViewVersion(1, 1), kNs, Slots(false));
  pull.Retry(later);
  pull.Retry(later + ModelPull::kRetryFirst);
  EXPECT_TRUE(pull.error().ok());
}

TEST_F(ModelPullTest, WithoutAJobAndAPinThereIsNothingToDo) {
  pull.SetOwned(ViewVersion(1, 1), kNs, Slots(false));
  pull.Follow(JobStatus(1, false));
  EXPECT_FALSE(pull.Next());
  pull.Follow(JobStatus(1, false, true));
  const auto task = *pull.Next();
  EXPECT_TRUE(task.pin);
  pull.Done(task, FromSource(task.block));
  EXPECT_FALSE(pull.finished()) << "it could not be pinned: it is to be done again";
  EXPECT_EQ(pull.Next()->block, task.block);
  pull.Fail(task, Error(StatusCode::kUnavailable, "source down"));
  EXPECT_FALSE(pull.Next());
}

TEST_F(ModelPullTest, WhatIsPinnedIsTriedAgainEverMoreSeldomUntilItWorks) {
  pull.SetOwned(ViewVersion(1, 1), kNs, Slots(false));
  pull.Follow(JobStatus(0, false, true));
  TimePoint now{};
  const auto fail_and_wait = [&](Duration pause) {
    const auto task = pull.Next();
    ASSERT_TRUE(task);
    pull.Fail(*task, Error(StatusCode::kResourceExhausted, "no room"));
    pull.Retry(now);
    pull.Retry(now += pause - Duration(1));
    EXPECT_FALSE(pull.Next());
    pull.Retry(now += Duration(1));
  };
  fail_and_wait(ModelPull::kRetryFirst);
  fail_and_wait(2 * ModelPull::kRetryFirst);
  for (int i = 0; i < 3; ++i)
    fail_and_wait(std::min((4 << i) * ModelPull::kRetryFirst, ModelPull::kRetryMost));
  fail_and_wait(ModelPull::kRetryMost);
  const auto task = *pull.Next();
  pull.Follow(JobStatus(0, false, false));
  pull.Done(task, FromSource(task.block));
  pull.Follow(JobStatus(0, false, true));
  fail_and_wait(ModelPull::kRetryFirst);
  EXPECT_TRUE(pull.Next());
}

}  // namespace
}  // namespace ems::server
