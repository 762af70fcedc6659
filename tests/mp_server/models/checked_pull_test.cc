// What must hold: who keeps a file's first block adds all of its blocks up, in order, as they have
// been read; what the controller drops is read anew, and what it knows is certain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/mp_server/models/model_pull_samples.h"

namespace ems::server {
namespace {

using model::Manifest;
using ::testing::ElementsAre;

// As Sample, but the file has a sum.
std::shared_ptr<const Manifest> Summed() {
  auto manifest = std::make_shared<Manifest>(*Sample());
  manifest->files[0].sum = "md5:0123456789abcdef0123456789abcdef";
  return manifest;
}

// As an answer of a controller: its log, and blocks with their digests; 0: none any more.
v1::FollowUnverifiedReply Said(uint64_t log, const std::vector<std::pair<uint32_t, uint32_t>>& all,
                               uint32_t known = 0) {
  v1::FollowUnverifiedReply said;
  said.set_log(log);
  said.set_next(static_cast<uint32_t>(all.size()));
  said.set_known(known);
  for (const auto& [block, digest] : all) {
    said.add_blocks(block);
    said.mutable_digests()->append(AsText(Digest(digest)));
  }
  return said;
}

class CheckedPullTest : public ::testing::Test {
 protected:
  CheckedPullTest() { Own(1, Slots(true)); }
  void Own(uint64_t epoch, const std::bitset<kSlotCount>& slots) {
    (void)pull_.Follow(JobStatus(1, true));
    (void)pull_.SetOwned(ViewVersion(1, epoch), kNs, slots);
    owned_ = slots;
  }
  bool IsOwned(uint32_t block) const {
    return owned_[SlotOf(kNs.id, model::RouteKey(Summed()->blocks[block].route)).value()];
  }
  // Digest(0) is no digest, so it is that of block + 1 that a read gives.
  static ModelPull::Outcome Read(uint32_t block) { return FromSource(block + 1); }
  void DoneAll() {
    for (const auto& task : TakeAll(&pull_)) (void)pull_.Done(task, Read(task.block));
  }
  // What other servers read.
  void HearAllOthers(uint64_t log = 100) {
    std::vector<std::pair<uint32_t, uint32_t>> others;
    for (uint32_t block = 0; block < kBlocks; ++block) {
      if (!IsOwned(block)) others.emplace_back(block, block + 1);
    }
    Hear(Said(log, others));
  }
  bool Hear(const v1::FollowUnverifiedReply& said) { return pull_.Hear(said, &lost_); }
  // A worker does all that is asked for by `check`.
  void AddAll(ModelPull::CheckTask check) {
    check.hasher = std::make_shared<model::FileHasher>(model::FileSum{});
    pull_.CheckEnded(check, {.added = static_cast<uint32_t>(check.digests.size()), .missing = {}});
  }

  ModelPull pull_{7, Summed()};
  std::bitset<kSlotCount> owned_;
  std::vector<ObjectPin> lost_;
};

TEST_F(CheckedPullTest, WhoKeepsTheFirstBlockAddsAllUpInOrder) {
  ASSERT_TRUE(IsOwned(0));
  EXPECT_TRUE(pull_.unverified());
  EXPECT_FALSE(pull_.NextCheck()) << "block 0 has not been read";
  DoneAll();
  auto check = pull_.NextCheck();
  ASSERT_TRUE(check);
  EXPECT_EQ(check->first, 0U);
  ASSERT_GE(check->digests.size(), 1U);
  EXPECT_EQ(check->digests[0], Digest(1));
  EXPECT_FALSE(pull_.NextCheck()) << "somebody is at it";
  const auto next = check->first + static_cast<uint32_t>(check->digests.size());
  EXPECT_FALSE(IsOwned(next)) << "what others have not read yet is waited for";
  AddAll(*check);
  EXPECT_EQ(Report(&pull_).checked_bytes(), 10U * next);
  EXPECT_FALSE(pull_.NextCheck());
  HearAllOthers();
  check = pull_.NextCheck();
  ASSERT_TRUE(check);
  EXPECT_EQ(check->first, next);
  AddAll(*check);
  const auto sum = pull_.NextCheck();
  ASSERT_TRUE(sum);
  EXPECT_FALSE(sum->sum.empty());
  EXPECT_EQ(sum->digests.size(), kBlocks);
  (void)Report(&pull_);
  pull_.CheckEnded(*sum, {});
  EXPECT_TRUE(pull_.NextCheck()) << "it was not told";
  EXPECT_EQ(Report(&pull_).blocks_size(), 0) << "nobody said that a digest is missing";
  int here = 0, all = 0;
  for (uint32_t block = 0; block < kBlocks; ++block) here += IsOwned(block) ? 1 : 0;
  for (int i = 0; i < 2; ++i) {
    pull_.CheckEnded(*sum, {.added = 0, .missing = {}, .told = false, .unknown = true});
    ASSERT_TRUE(pull_.NextCheck());
  }
  for (int more; (more = Report(&pull_).blocks_size()) > 0;) all += more;
  EXPECT_EQ(all, here) << "each once, however often it was refused";
  pull_.CheckEnded(*sum, {.added = 0, .missing = {}, .told = true});
  EXPECT_FALSE(pull_.NextCheck());
}

TEST_F(CheckedPullTest, WhoDoesNotKeepTheFirstBlockAddsNothing) {
  Own(2, ~Slots(true));
  DoneAll();
  for (uint32_t block = 0; block < kBlocks; ++block) Hear(Said(100, {{block, block + 1}}));
  EXPECT_FALSE(pull_.NextCheck());
  Own(3, Slots(true));
  EXPECT_TRUE(pull_.NextCheck()) << "the one before has died, say";
}

TEST_F(CheckedPullTest, WhatIsReadIsToldAndCertainOnlyWhenTheControllerSaysSo) {
  const auto tasks = TakeAll(&pull_);
  for (const auto& task : tasks) EXPECT_FALSE(task.certain);
  for (const auto& task : tasks) (void)pull_.Done(task, Read(task.block));
  EXPECT_EQ(Report(&pull_).blocks_size(), static_cast<int>(tasks.size()));
  EXPECT_TRUE(pull_.finished());
  for (uint32_t block = 0; block < kBlocks; ++block) {
    EXPECT_TRUE(pull_.unverified());
    pull_.Learn(block, Digest(block + 1));
  }
  EXPECT_FALSE(pull_.unverified());
  EXPECT_FALSE(pull_.NextCheck());
  EXPECT_EQ(Report(&pull_).checked_bytes(), 0U) << "the controller counts them now";
}

TEST_F(CheckedPullTest, ADamagedFileIsReadAnew) {
  DoneAll();
  HearAllOthers();
  AddAll(*pull_.NextCheck());
  const auto sum = *pull_.NextCheck();
  pull_.CheckEnded(sum, {.added = 0, .missing = {}, .told = true});
  std::vector<std::pair<uint32_t, uint32_t>> dropped;
  for (uint32_t block = 0; block < kBlocks; ++block) dropped.emplace_back(block, 0);
  Hear(Said(100, dropped));
  EXPECT_FALSE(pull_.finished());
  EXPECT_FALSE(pull_.NextCheck()) << "nothing has been read anew";
  const auto again = TakeAll(&pull_);
  EXPECT_GE(again.size(), kBlocks / 2);
  for (const auto& task : again) {
    EXPECT_FALSE(task.digest) << "no use in looking for it";
    (void)pull_.Done(task, Read(task.block));
  }
  const auto check = pull_.NextCheck();
  ASSERT_TRUE(check);
  EXPECT_EQ(check->first, 0U);
  EXPECT_EQ(check->hasher, nullptr);
}

// Looked at again, as its slots were lost for a moment, while the controller drops what was read.
TEST_F(CheckedPullTest, WhatIsFoundUnderADigestThatWasDroppedCountsForNothing) {
  DoneAll();
  pull_.LoseSlots({});
  const auto task = *pull_.Next();
  ASSERT_EQ(task.block, 0U);
  ASSERT_TRUE(task.digest);
  Hear(Said(100, {{0, 0}}));
  ModelPull::Outcome found;
  found.digest = *task.digest;
  (void)pull_.Done(task, std::move(found));
  const auto again = *pull_.Next();
  EXPECT_EQ(again.block, 0U);
  EXPECT_FALSE(again.digest);
}

TEST_F(CheckedPullTest, ABlockThatIsReadOtherwiseMeanwhileIsAddedAnew) {
  DoneAll();
  auto check = *pull_.NextCheck();
  ASSERT_GE(check.digests.size(), 1U);
  Hear(Said(100, {{0, 0}}));  // before it is added
  AddAll(check);
  EXPECT_FALSE(pull_.NextCheck());
  (void)pull_.Done(*pull_.Next(), Read(90));
  check = *pull_.NextCheck();
  EXPECT_EQ(check.digests[0], Digest(91));
  AddAll(check);
  Hear(Said(100, {{0, 0}}));  // after it
  (void)pull_.Done(*pull_.Next(), Read(0));
  check = *pull_.NextCheck();
  EXPECT_EQ(check.first, 0U);
  EXPECT_EQ(check.digests[0], Digest(1));
}

TEST_F(CheckedPullTest, ABlockOfItsOwnThatIsMissingIsBroughtInAgain) {
  DoneAll();
  const auto check = pull_.NextCheck();
  ASSERT_TRUE(check);
  pull_.CheckEnded(*check, {.added = 0, .missing = 0});
  EXPECT_FALSE(pull_.finished());
  EXPECT_FALSE(pull_.NextCheck()) << "not in a tight loop";
  const auto task = pull_.Next();
  ASSERT_TRUE(task);
  EXPECT_EQ(task->block, 0U);
  (void)pull_.Done(*task, Read(0));
  EXPECT_TRUE(pull_.NextCheck());
}

TEST_F(CheckedPullTest, ABlockOfAnotherServerThatIsMissingIsToldUntilThatHasArrived) {
  DoneAll();
  HearAllOthers();
  const auto check = pull_.NextCheck();
  ASSERT_TRUE(check);
  uint32_t other = 0;
  while (IsOwned(other)) ++other;
  auto some = *check;
  some.hasher = std::make_shared<model::FileHasher>(model::FileSum{});
  pull_.CheckEnded(some, {.added = other, .missing = other});
  EXPECT_TRUE(pull_.finished());
  const v1::ReportPullRequest report = Report(&pull_);
  EXPECT_THAT(report.missing(), ElementsAre(other));
  EXPECT_EQ(Report(&pull_).missing_size(), 0);
  pull_.ReportFailed(report);
  EXPECT_THAT(Report(&pull_).missing(), ElementsAre(other));
  EXPECT_FALSE(pull_.NextCheck()) << "its turn, and it is not there";
  Hear(Said(100, {{other, other + 1}}));
  const auto rest = pull_.NextCheck();
  ASSERT_TRUE(rest);
  EXPECT_EQ(rest->first, other);
  EXPECT_EQ(rest->hasher, some.hasher);
}

TEST_F(CheckedPullTest, WhatOthersHaveReadIsLookedForAndItsOwnReadsCountMore) {
  Hear(Said(100, {{0, 50}}));
  const auto task = *pull_.Next();
  ASSERT_EQ(task.block, 0U);
  EXPECT_EQ(task.digest, Digest(50));
  EXPECT_FALSE(task.certain);
  (void)pull_.Done(task, Read(0));  // it was something else at the source
  Hear(Said(100, {{0, 50}}));
  EXPECT_EQ(Report(&pull_).digests(), AsText(Digest(1)));
  pull_.Learn(0, Digest(50));
  const auto certain = pull_.Next();
  ASSERT_TRUE(certain);
  EXPECT_EQ(certain->block, 0U) << "other bytes are read anew";
  EXPECT_EQ(certain->digest, Digest(50));
  EXPECT_TRUE(certain->certain);
  Hear(Said(100, {{0, 0}, {0, 1}}));
  EXPECT_FALSE(TakeAll(&pull_).empty());
  (void)pull_.Done(*certain, FromSource(50));
  EXPECT_EQ(Report(&pull_).blocks_done(), 1U) << "what is certain is not heard of any more";
}

TEST_F(CheckedPullTest, AControllerThatWasRestartedIsToldAllAgainAndNothingIsReadForIt) {
  DoneAll();
  HearAllOthers();
  AddAll(*pull_.NextCheck());
  const auto sum = *pull_.NextCheck();
  pull_.CheckEnded(sum, {.added = 0, .missing = {}, .told = true});
  const int told = Report(&pull_).blocks_size();
  EXPECT_EQ(Report(&pull_).blocks_size(), 0);
  Hear(Said(200, {}));
  EXPECT_TRUE(pull_.has_news());
  EXPECT_EQ(Report(&pull_).blocks_size(), told);
  EXPECT_TRUE(pull_.finished());
  const auto anew = pull_.NextCheck();
  ASSERT_TRUE(anew) << "what came of it was told to the other one";
  EXPECT_EQ(anew->first, 0U);
}

TEST_F(CheckedPullTest, DigestsAreLearnedWhenThereAreMoreAndFromTheFirstOfAnotherController) {
  EXPECT_FALSE(Hear(Said(100, {}, 0)));
  EXPECT_TRUE(Hear(Said(100, {}, 2)));
  pull_.LearnedUpTo(100, 2);
  pull_.LearnedUpTo(100, 1);  // another thread, which was overtaken
  pull_.LearnedUpTo(200, 9);  // of a controller that was not heard yet
  EXPECT_FALSE(Hear(Said(100, {}, 2)));
  v1::FollowUnverifiedRequest follow;
  pull_.FillFollow(&follow);
  EXPECT_EQ(follow.known(), 2U);
  EXPECT_EQ(follow.log(), 100U);
  EXPECT_TRUE(Hear(Said(200, {}, 2))) << "it has them in another order";
}

TEST_F(CheckedPullTest, ACheckThatCannotBeDoneEndsTheJobAndIsTriedAgainByTheNext) {
  DoneAll();
  const auto check = pull_.NextCheck();
  ASSERT_TRUE(check);
  pull_.FailCheck(*check, Error(StatusCode::kUnimplemented, "no MD5"));
  EXPECT_FALSE(pull_.NextCheck());
  EXPECT_EQ(Report(&pull_).error(), "no MD5");
  (void)pull_.Follow(JobStatus(2, true));
  DoneAll();
  EXPECT_TRUE(pull_.NextCheck());
}

TEST_F(CheckedPullTest, AWorkerOfAPullBeforeChangesNothing) {
  DoneAll();
  const auto check = *pull_.NextCheck();
  ModelPull next(7, Summed());
  next.CheckEnded(check, {.added = 1, .missing = 0});
  EXPECT_EQ(Report(&next).checked_bytes(), 0U);
}

}  // namespace
}  // namespace ems::server
