// What must hold: nobody is told digests of a file with a sum before the sum is found right; that
// outlives restarts, and a disk that refuses to write keeps no job from its end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/fail_point.h"
#include "ems_model/format/file_sum.h"
#include "mp_controller/file_checks.h"
#include "mp_controller/model_state.h"
#include "proto/model.pb.h"
#include "tests/mp_controller/model_life.h"

namespace ems::controller {
namespace {

using model::BlockDigest;
using model::Manifest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As Sample, with the sum of `content`, of four blocks of 100 bytes.
Manifest Summed(const std::string& version, const std::string& content) {
  Manifest manifest = Sample(version);
  manifest.files[0].sum = "md5:" + ToHex(*Md5(AsBytes(content)));
  return manifest;
}

// All that is left of `content`, by a server that keeps all blocks; block i's digest is Digest(i).
v1::FileCheck AddUp(Life* life, uint32_t id, const std::string& content) {
  v1::FollowChecksRequest follow;
  follow.add_models(id);
  v1::FollowChecksReply reply;
  bool news = false;
  EXPECT_EQ(life->state->FollowChecks(follow, &reply, &news), OkStatus());
  EXPECT_TRUE(news);
  const v1::FileCheck& now = reply.files(0);
  model::FileHasher hasher(model::FileSum{});
  EXPECT_EQ(hasher.Restore(now.state(), uint64_t{100} * now.next()), OkStatus());
  hasher.Update(AsBytes(std::string_view(content).substr(uint64_t{100} * now.next())));
  v1::ReportCheckRequest report;
  report.set_model_id(id);
  report.set_started(now.started());
  report.set_round(now.round());
  report.set_first(now.next());
  report.set_state(hasher.Save());
  for (uint32_t block = now.next(); block < 4; ++block)
    report.mutable_digests()->append(AsText(Digest(static_cast<uint8_t>(block))));
  v1::FileCheck check;
  EXPECT_EQ(life->state->ReportCheck(report, &check), OkStatus());
  return check;
}

TEST(ModelChecksTest, DigestsOfAFileWithASumAreToldWhenItIsCheckedAndSurviveARestart) {
  const TempDir dir;
  ManualClock clock;
  const std::string content(400, 'x');
  {
    Life life(dir.path(), &clock);
    life.View(1, 1);
    ASSERT_TRUE(life.Add(Summed("v1", content)).ok());
    life.Prefetch(1);
    bool active = false;
    ASSERT_TRUE(life.Take(life.With(life.Report(1, 1, 4, true), 0, Digest(0)), &active).ok());
    EXPECT_TRUE(active) << "every server has finished, but the file is not checked";
    EXPECT_EQ(life.Get(Ref(1)).blocks_known(), 0U);
    EXPECT_TRUE(AddUp(&life, 1, content).checked());
    EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_DONE);
    EXPECT_EQ(life.Get(Ref(1)).job().checked_bytes(), 400U);
  }
  clock.Advance(std::chrono::seconds(1));
  Life life(dir.path(), &clock);
  bool news = false;
  const v1::GetDigestsReply digests = life.Digests(1, 0, &news);
  EXPECT_THAT(digests.blocks(), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(digests.digests().substr(96), AsText(Digest(3)));
  v1::FollowChecksRequest follow;
  follow.add_models(1);
  v1::FollowChecksReply reply;
  ASSERT_EQ(life.state->FollowChecks(follow, &reply, &news), OkStatus());
  EXPECT_TRUE(reply.files(0).checked());
}

TEST(ModelChecksTest, AFileThatIsDamagedForGoodEndsTheJob) {
  const TempDir dir;
  ManualClock clock;
  Life life(dir.path(), &clock);
  life.View(1, 1);
  ASSERT_TRUE(life.Add(Summed("v1", std::string(400, 'x'))).ok());
  life.Prefetch(1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_RUNNING);
    AddUp(&life, 1, std::string(400, 'y'));
  }
  const v1::PullJob job = life.Get(Ref(1)).job();
  EXPECT_EQ(job.state(), v1::PULL_FAILED);
  EXPECT_EQ(job.error_code(), static_cast<uint32_t>(StatusCode::kDataLoss));
  EXPECT_THAT(job.error(), HasSubstr("w: damaged"));
  EXPECT_EQ(life.Get(Ref(1)).blocks_known(), 0U);
  life.Prefetch(1);
  EXPECT_TRUE(AddUp(&life, 1, std::string(400, 'x')).checked()) << "the next job tries again";
}

// It was told once, and the job went on for ever.
TEST(ModelChecksTest, AFileThatIsDamagedForGoodEndsTheJobAlsoAfterTheDiskHasRefusedThat) {
  const TempDir dir;
  ManualClock clock;
  Life life(dir.path(), &clock);
  life.View(1, 1);
  ASSERT_TRUE(life.Add(Summed("v1", std::string(400, 'x'))).ok());
  life.Prefetch(1);
  ASSERT_EQ(ArmFailPoints("rows.write=error"), OkStatus());
  for (int i = 0; i < 3; ++i) AddUp(&life, 1, std::string(400, 'y'));
  life.state->Tick();
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_RUNNING) << "not without the disk";
  ASSERT_EQ(ArmFailPoints(""), OkStatus());
  life.state->Tick();
  const v1::PullJob job = life.Get(Ref(1)).job();
  EXPECT_EQ(job.state(), v1::PULL_FAILED);
  EXPECT_EQ(job.error_code(), static_cast<uint32_t>(StatusCode::kDataLoss));
  EXPECT_THAT(job.error(), HasSubstr("w: damaged"));
}

TEST(ModelChecksTest, AJobThatIsDoneEndsAlsoAfterTheDiskHasRefusedThat) {
  const TempDir dir;
  ManualClock clock;
  Life life(dir.path(), &clock);
  life.View(1, 1);
  const std::string content(400, 'x');
  ASSERT_TRUE(life.Add(Summed("v1", content)).ok());
  life.Prefetch(1);
  ASSERT_TRUE(life.Take(life.Report(1, 1, 4, true)).ok());
  ASSERT_EQ(ArmFailPoints("rows.write=error@2"), OkStatus());  // the digests are written
  EXPECT_TRUE(AddUp(&life, 1, content).checked());
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_RUNNING);
  ASSERT_EQ(ArmFailPoints(""), OkStatus());
  life.state->Tick();
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_DONE);
}

// One answer of very many files was more than clients take: nothing could be checked any more.
TEST(ModelChecksTest, VeryManyFilesTakeSeveralAnswers) {
  constexpr uint32_t kFiles = 10'000, kVersions = 8;
  const TempDir dir;
  ManualClock clock;
  Life life(dir.path(), &clock);
  Manifest manifest = Sample("v1");
  manifest.files.clear();
  manifest.blocks.clear();
  for (uint32_t i = 0; i < kFiles; ++i) {
    manifest.files.push_back({fmt::format("{:06}", i), 1, "t"});
    manifest.files.back().sum = "md5:0123456789abcdef0123456789abcdef";
    manifest.blocks.push_back({i, 0, 1, {}});
  }
  v1::FollowChecksRequest follow;
  for (uint32_t id = 1; id <= kVersions; ++id) {
    manifest.version = fmt::format("v{}", id);
    const auto added = life.Add(manifest);
    ASSERT_TRUE(added.ok()) << added.status();
    follow.add_models(kVersions + 1 - id);  // in any order
  }
  std::vector<std::pair<uint32_t, uint32_t>> got, all;
  for (uint32_t id = 1; id <= kVersions; ++id) {
    for (uint32_t file = 0; file < kFiles; ++file) all.emplace_back(id, file);
  }
  int answers = 0;
  do {
    v1::FollowChecksReply reply;
    bool news = false;
    ASSERT_EQ(life.state->FollowChecks(follow, &reply, &news), OkStatus());
    EXPECT_TRUE(news);
    EXPECT_LE(reply.ByteSizeLong(), FileChecks::kReplyBytesMax + 100);
    for (const v1::FileCheck& check : reply.files())
      got.emplace_back(check.model_id(), check.file());
    follow.set_from_model(reply.next_model());
    follow.set_from_file(reply.next_file());
  } while (follow.from_model() != 0 && ++answers < 10);
  EXPECT_GE(answers, 1);
  EXPECT_TRUE(got == all);
  // Nothing is left, but whoever goes on gets an answer at once.
  follow.set_since(~uint64_t{0} >> 1);
  follow.set_from_model(kVersions + 1);
  v1::FollowChecksReply none;
  bool news = false;
  ASSERT_EQ(life.state->FollowChecks(follow, &none, &news), OkStatus());
  EXPECT_TRUE(news);
}

TEST(ModelChecksTest, AServerThatFollowsHearsOfTheSumsOfARestartedController) {
  const TempDir dir;
  ManualClock clock;
  v1::FollowChecksRequest follow;
  follow.add_models(1);
  v1::FollowChecksReply reply;
  bool news = false;
  {
    Life life(dir.path(), &clock);
    ASSERT_TRUE(life.Add(Summed("v1", std::string(400, 'x'))).ok());
    ASSERT_EQ(life.state->FollowChecks(follow, &reply, &news), OkStatus());
    follow.set_since(reply.number());
    ASSERT_EQ(life.state->FollowChecks(follow, &reply, &news), OkStatus());
    EXPECT_FALSE(news);
  }
  for (const uint64_t later : {1U, 0U}) {  // also one whose clock has begun anew
    clock.Advance(std::chrono::seconds(later));
    if (later == 0) follow.set_since(follow.since() + 1'000'000'000'000);
    Life life(dir.path(), &clock);
    reply.Clear();
    ASSERT_EQ(life.state->FollowChecks(follow, &reply, &news), OkStatus());
    EXPECT_TRUE(news);
    ASSERT_EQ(reply.files_size(), 1);
    follow.set_since(reply.number());
  }
}

}  // namespace
}  // namespace ems::controller
