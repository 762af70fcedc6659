// What must hold: blocks are added to their file's sum when it is their turn and they are here;
// what turns out to be damaged is read anew and named, and what is learned of a checked file is
// certain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/mp_server/model_pull_samples.h"

namespace ems::server {
namespace {

using model::BlockDigest;
using model::Manifest;
using ::testing::ElementsAre;

// As Sample, but the file has a sum.
std::shared_ptr<const Manifest> Summed() {
  auto manifest = std::make_shared<Manifest>(*Sample());
  manifest->files[0].sum = "md5:0123456789abcdef0123456789abcdef";
  return manifest;
}

v1::FileCheck Check(uint64_t round, uint32_t next) {
  v1::FileCheck check;
  check.set_started(100);
  check.set_round(round);
  check.set_next(next);
  check.set_state("s" + std::to_string(next));
  check.set_number(1000 * round + next);
  return check;
}

class CheckedPullTest : public ::testing::Test {
 protected:
  CheckedPullTest() {
    (void)pull_.Follow(Status(1, true));
    pull_.SetOwned(ViewVersion(1, 5), kNs, Slots(true));
    tasks_ = TakeAll(&pull_);
  }
  void DoneAll() {
    for (const auto& task : tasks_) (void)pull_.Done(task, FromSource(task.block));
  }
  bool Hear(const v1::FileCheck& check) { return pull_.FollowCheck(check, &lost_); }

  ModelPull pull_{7, Summed()};
  std::vector<ModelPull::Task> tasks_;
  std::vector<ObjectPin> lost_;
};

TEST_F(CheckedPullTest, ItsBlocksAreAddedWhenItIsTheirTurnAndTheyAreHere) {
  EXPECT_TRUE(pull_.checks());
  EXPECT_FALSE(Hear(Check(1, 0)));
  EXPECT_FALSE(pull_.NextCheck()) << "block 0 is not here yet";
  DoneAll();
  const auto check = pull_.NextCheck();
  ASSERT_TRUE(check);
  EXPECT_EQ(check->first, 0U);
  EXPECT_EQ(check->state, "s0");
  ASSERT_GE(check->digests.size(), 1U);
  EXPECT_EQ(check->digests[0], Digest(0));
  EXPECT_FALSE(pull_.NextCheck()) << "somebody is at it";
  pull_.CheckEnded(*check, std::nullopt);
  const auto owned = Slots(true);
  uint32_t other = 0;  // a block of another server
  while (owned[SlotOf(kNs.id, model::RouteKey(Summed()->blocks[other].route)).value()]) ++other;
  Hear(Check(1, other));
  EXPECT_FALSE(pull_.NextCheck()) << "another server's turn";
  Hear(Check(1, 0));
  EXPECT_FALSE(pull_.NextCheck()) << "what was overtaken counts for nothing";
}

TEST_F(CheckedPullTest, NothingIsToldOfBlocksBeforeTheFileIsChecked) {
  DoneAll();
  EXPECT_EQ(Report(&pull_).blocks_size(), 0);
  EXPECT_TRUE(pull_.finished());
  v1::FileCheck checked = Check(1, kBlocks);
  checked.set_checked(true);
  EXPECT_TRUE(Hear(checked)) << "the last one";
  EXPECT_FALSE(pull_.checks());
  EXPECT_FALSE(Hear(checked));
  EXPECT_FALSE(pull_.NextCheck());
}

// Until the last file was checked, what was read again of the first one counted as it came.
TEST_F(CheckedPullTest, DigestsAreLearnedAfterEachFileNotAgainAndAfterTheLastAllOfThem) {
  auto manifest = std::make_shared<Manifest>(*Summed());
  for (const char* name : {"y", "z"}) {
    manifest->files.push_back(manifest->files[0]);
    manifest->files.back().path = name;
  }
  for (uint32_t i = 0; i < kBlocks; ++i) manifest->blocks[i].file = std::min(i, 2U);
  ModelPull pull(7, manifest);
  const auto checked = [&](uint32_t file, uint64_t started) {
    v1::FileCheck check = Check(1, kBlocks);
    check.set_file(file);
    check.set_started(started);
    check.set_checked(true);
    return pull.FollowCheck(check, &lost_);
  };
  EXPECT_TRUE(checked(0, 100));
  EXPECT_EQ(pull.learned_so_far().controller, 100U);
  EXPECT_EQ(pull.learned_so_far().count, 0U);
  pull.LearnedUpTo({100, 2});
  pull.LearnedUpTo({100, 1});  // another thread, which was overtaken
  EXPECT_EQ(pull.learned_so_far().count, 2U);
  pull.Learn(0, Digest(0));
  pull.Learn(1, Digest(1));
  EXPECT_FALSE(checked(1, 100)) << "its digests are known already";
  pull.LearnedUpTo({200, 9});
  EXPECT_EQ(pull.learned_so_far().count, 2U) << "of a controller that was not heard yet";
  EXPECT_FALSE(checked(0, 200));
  EXPECT_EQ(pull.learned_so_far().count, 0U) << "another one";
  pull.LearnedUpTo({200, 2});
  for (uint32_t i = 2; i < kBlocks; ++i) pull.Learn(i, Digest(static_cast<uint8_t>(i)));
  EXPECT_TRUE(checked(2, 200)) << "the last one";
  EXPECT_EQ(pull.learned_so_far().count, 0U);
}

TEST_F(CheckedPullTest, ADamagedFileIsReadAnew) {
  Hear(Check(1, 0));
  const ModelPull::Task late = tasks_.back();
  tasks_.pop_back();
  DoneAll();
  Hear(Check(2, 0));
  EXPECT_FALSE(pull_.finished());
  EXPECT_FALSE(pull_.NextCheck()) << "nothing is here any more";
  (void)pull_.Done(late, FromSource(late.block));
  const auto again = TakeAll(&pull_);
  EXPECT_EQ(again.size(), tasks_.size() + 1) << "also what was being read meanwhile";
  for (const auto& task : again) EXPECT_FALSE(task.digest) << "no use in looking for it";
}

// Of blocks 0 to 3: all are stored, then the first two were damaged, or the read after them was.
TEST_F(CheckedPullTest, WhatWasDamagedIsNamedOnceTheFileIsCheckedAndNothingElse) {
  (void)pull_.SetOwned(ViewVersion(1, 6), kNs, Slots(false));
  for (const auto& task : tasks_) pull_.GiveBack(task);
  Hear(Check(1, 0));
  const auto read = [&](const std::vector<std::pair<uint8_t, bool>>& reads) {
    for (const auto& [digest, shared] : reads) {
      const auto task = pull_.Next();
      ASSERT_TRUE(task);
      ModelPull::Outcome outcome = FromSource(digest);
      outcome.shared = shared;
      (void)pull_.Done(*task, std::move(outcome));
    }
  };
  read({{100, false}, {101, true}, {2, false}, {3, false}});
  const auto late = pull_.Next();  // of block 4
  ASSERT_TRUE(late);
  Hear(Check(2, 0));
  (void)pull_.Done(*late, FromSource(104));
  read({{0, false}, {1, false}, {102, false}, {2, false}});
  EXPECT_TRUE(pull_.TakeDamaged().empty()) << "which of them it was is not known yet";
  Hear(Check(3, 0));
  read({{0, true}, {1, true}, {2, true}, {3, true}});
  EXPECT_TRUE(pull_.TakeDamaged().empty());
  EXPECT_TRUE(pull_.has_suspects());
  for (uint32_t block = 0; block < kBlocks; ++block) pull_.Learn(block, Digest(block));
  EXPECT_THAT(pull_.TakeDamaged(), ElementsAre(Digest(100), Digest(102), Digest(104)))
      << "101 was there before, 2 is what block 2 is, and was read as block 3, too";
  EXPECT_TRUE(pull_.TakeDamaged().empty());
  EXPECT_FALSE(pull_.has_suspects());
}

TEST_F(CheckedPullTest, WhatAnotherVersionHasIsSpared) {
  DoneAll();
  const uint32_t own = tasks_[1].block;
  std::vector<BlockDigest> damaged{Digest(own), Digest(200)};
  pull_.Spare(&damaged);
  EXPECT_THAT(damaged, ElementsAre(Digest(200)));
}

// It was read again at once, and by the time that it was compared the source had other bytes.
TEST_F(CheckedPullTest, OfAFileThatWasGivenUpNothingIsReadUntilItIsTriedAgain) {
  (void)pull_.Follow(Status(1, false, true));
  DoneAll();
  Hear(Check(1, 0));
  v1::FileCheck given_up = Check(2, 0);
  given_up.set_stopped(true);
  Hear(given_up);
  EXPECT_FALSE(pull_.Next());
  EXPECT_FALSE(pull_.NextCheck());
  v1::FileCheck again = Check(2, 0);
  again.set_number(again.number() + 1);
  Hear(again);
  const auto tasks = TakeAll(&pull_);
  EXPECT_EQ(tasks.size(), tasks_.size());
  EXPECT_FALSE(pull_.NextCheck()) << "not of bytes that were read before";
}

TEST_F(CheckedPullTest, AnAnswerThatWasOvertakenCountsForNothing) {
  v1::FileCheck given_up = Check(2, 0);
  given_up.set_stopped(true);
  v1::FileCheck again = Check(2, 0);
  again.set_number(given_up.number() + 1);
  Hear(again);
  Hear(given_up);
  for (const auto& task : tasks_) pull_.GiveBack(task);
  EXPECT_TRUE(pull_.Next()) << "it is tried again";
  v1::FileCheck restarted = Check(1, 0);
  restarted.set_started(200);
  restarted.set_number(1);
  Hear(restarted);
  v1::FileCheck late = Check(9, 3);
  late.set_number(again.number() + 100);
  Hear(late);
  DoneAll();
  const auto check = pull_.NextCheck();
  ASSERT_TRUE(check);
  EXPECT_EQ(check->started, 200U) << "the controller of before is no more";
}

TEST_F(CheckedPullTest, ACheckThatCannotBeDoneEndsTheJobAndIsTriedAgainByTheNext) {
  DoneAll();
  Hear(Check(1, 0));
  const auto check = pull_.NextCheck();
  ASSERT_TRUE(check);
  pull_.FailCheck(*check, Error(StatusCode::kUnimplemented, "no MD5"));
  EXPECT_FALSE(pull_.NextCheck());
  EXPECT_EQ(Report(&pull_).error(), "no MD5");
  pull_.Follow(Status(2, true));
  for (const auto& task : TakeAll(&pull_)) (void)pull_.Done(task, FromSource(task.block));
  EXPECT_TRUE(pull_.NextCheck());
}

// Cancelled in the middle of a check, say.
TEST_F(CheckedPullTest, WhatWasFoundBeforeIsLookedForByTheNextPull) {
  Hear(Check(1, 0));
  for (size_t i = 0; i < 3; ++i) (void)pull_.Done(tasks_[i], FromSource(tasks_[i].block));
  const std::vector<FoundBlocks::File> found = pull_.Found();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].digests.size(), 3U);
  ModelPull next(7, Summed());
  next.Recall(found);
  (void)next.Follow(Status(2, true));
  (void)next.FollowCheck(Check(1, 0), &lost_);
  next.SetOwned(ViewVersion(1, 5), kNs, Slots(true));
  const auto tasks = TakeAll(&next);
  ASSERT_EQ(tasks.size(), tasks_.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    EXPECT_EQ(tasks[i].digest.has_value(), i < 3);
    EXPECT_FALSE(tasks[i].certain);
  }
  EXPECT_EQ(next.Found()[0].digests, found[0].digests);
  v1::FileCheck checked = Check(1, kBlocks);
  checked.set_checked(true);
  (void)next.FollowCheck(checked, &lost_);
  EXPECT_TRUE(next.Found().empty()) << "the controller knows it";
}

TEST_F(CheckedPullTest, WhatWasFoundIsNotLookedForWhenItHasTurnedOutToBeDamagedSince) {
  Hear(Check(1, 0));
  DoneAll();
  ModelPull next(7, Summed());
  next.Recall(pull_.Found());
  (void)next.Follow(Status(2, true));
  (void)next.FollowCheck(Check(2, 0), &lost_);
  next.SetOwned(ViewVersion(1, 5), kNs, Slots(true));
  for (const auto& task : TakeAll(&next)) EXPECT_FALSE(task.digest);
}

TEST_F(CheckedPullTest, AnErrorOfAReadOfTheRoundBeforeDoesNotCount) {
  Hear(Check(1, 0));
  Hear(Check(2, 0));
  pull_.Fail(tasks_[0], Error(StatusCode::kFailedPrecondition, "the source has changed"));
  EXPECT_EQ(pull_.error(), OkStatus());
  pull_.Fail(*pull_.Next(), Error(StatusCode::kUnavailable, "gone"));
  EXPECT_EQ(pull_.error().code(), StatusCode::kUnavailable);
}

TEST_F(CheckedPullTest, AControllerThatWasRestartedBeginsAnewWithTheSameBytes) {
  DoneAll();
  Hear(Check(3, 8));
  v1::FileCheck anew = Check(1, 0);
  anew.set_started(200);
  Hear(anew);
  EXPECT_TRUE(pull_.finished()) << "nothing is read for it";
  ASSERT_TRUE(pull_.NextCheck());
}

TEST_F(CheckedPullTest, ABlockThatIsMissingIsBroughtInAgain) {
  DoneAll();
  Hear(Check(1, 0));
  const auto check = pull_.NextCheck();
  ASSERT_TRUE(check);
  pull_.CheckEnded(*check, 0);
  EXPECT_FALSE(pull_.finished());
  const auto task = pull_.Next();
  ASSERT_TRUE(task);
  EXPECT_EQ(task->block, 0U);
  EXPECT_EQ(task->digest, Digest(0));
  EXPECT_FALSE(task->certain);
}

TEST_F(CheckedPullTest, WhatOthersHaveAddedIsLookedForAndLearnedDigestsAreCertain) {
  v1::FileCheck check = Check(1, 2);
  check.mutable_digests()->append(AsText(Digest(50)));
  check.mutable_digests()->append(AsText(Digest(51)));
  Hear(check);
  for (const auto& task : tasks_) pull_.GiveBack(task);
  const auto task = pull_.Next();
  ASSERT_TRUE(task);
  ASSERT_EQ(task->block, 0U);
  EXPECT_EQ(task->digest, Digest(50));
  EXPECT_FALSE(task->certain);
  (void)pull_.Done(*task, FromSource(0));  // it was something else at the source
  pull_.Learn(0, Digest(50));
  const auto certain = pull_.Next();
  ASSERT_TRUE(certain);
  EXPECT_EQ(certain->block, 0U) << "other bytes are read anew";
  EXPECT_EQ(certain->digest, Digest(50));
  EXPECT_TRUE(certain->certain);
}

}  // namespace
}  // namespace ems::server
