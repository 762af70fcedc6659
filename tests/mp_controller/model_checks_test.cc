// What must hold: nobody is told digests of a file with a sum before the sum is found right; that
// outlives restarts, and a disk that refuses to write keeps no job from its end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/fail_point.h"
#include "common/sha256.h"
#include "mp_controller/model_state.h"
#include "proto/model.pb.h"
#include "tests/mp_controller/model_life.h"

namespace ems::controller {
namespace {

using model::Manifest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As Sample, with the sum of `content`, of four blocks of 100 bytes.
Manifest Summed(const std::string& version, const std::string& content) {
  Manifest manifest = Sample(version);
  manifest.files[0].sum = "md5:" + ToHex(*Md5(AsBytes(content)));
  return manifest;
}

// What a server says that has read `content`, whose blocks have the digests Digest(i).
ems::Status AddUp(Life* life, uint32_t id, const std::string& content) {
  v1::ReportPullRequest read = Life::Report(1, 1, 4, true);
  v1::ReportSumRequest report;
  report.set_model_id(id);
  report.set_sum(ToHex(*Md5(AsBytes(content))));
  for (uint8_t block = 0; block < 4; ++block) {
    read = Life::With(read, block, Digest(block));
    report.mutable_digests()->append(AsText(Digest(block)));
  }
  (void)life->Take(read);
  v1::ReportSumReply reply;
  return life->state->ReportSum(report, &reply);
}

using ModelChecksTest = ModelLifeTest;

TEST_F(ModelChecksTest, DigestsOfAFileWithASumAreToldWhenItIsCheckedAndSurviveARestart) {
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
    v1::FollowUnverifiedReply heard = life.Follow(1);
    EXPECT_THAT(heard.blocks(), ElementsAre(0)) << "servers are told, loads are not";
    EXPECT_EQ(heard.known(), 0U);
    EXPECT_EQ(AddUp(&life, 1, content), OkStatus());
    EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_DONE);
    EXPECT_EQ(life.Get(Ref(1)).job().checked_bytes(), 400U);
  }
  clock.Advance(std::chrono::seconds(1));
  Life life(dir.path(), &clock);
  bool news = false;
  const v1::GetDigestsReply digests = life.Digests(1, 0, &news);
  EXPECT_THAT(digests.blocks(), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(digests.digests().substr(96), AsText(Digest(3)));
  const v1::FollowUnverifiedReply heard = life.Follow(1);
  EXPECT_EQ(heard.blocks_size(), 0);
  EXPECT_EQ(heard.known(), 4U);
  EXPECT_EQ(life.Get(Ref(1)).job().checked_bytes(), 400U);
}

TEST_F(ModelChecksTest, AFileThatIsDamagedForGoodEndsTheJob) {
  Life life(dir.path(), &clock);
  life.View(1, 1);
  ASSERT_TRUE(life.Add(Summed("v1", std::string(400, 'x'))).ok());
  life.Prefetch(1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_RUNNING);
    EXPECT_EQ(AddUp(&life, 1, std::string(400, 'y')), OkStatus());
  }
  const v1::PullJob job = life.Get(Ref(1)).job();
  EXPECT_EQ(job.state(), v1::PULL_FAILED);
  EXPECT_EQ(job.error_code(), static_cast<uint32_t>(StatusCode::kDataLoss));
  EXPECT_THAT(job.error(), HasSubstr("w: damaged"));
  EXPECT_EQ(life.Get(Ref(1)).blocks_known(), 0U);
  life.Prefetch(1);
  EXPECT_EQ(AddUp(&life, 1, std::string(400, 'x')), OkStatus());
  EXPECT_EQ(life.Get(Ref(1)).blocks_known(), 4U) << "the next job tries again";
}

// It was told once, and the job went on for ever.
TEST_F(ModelChecksTest, AFileThatIsDamagedForGoodEndsTheJobAlsoAfterTheDiskHasRefusedThat) {
  Life life(dir.path(), &clock);
  life.View(1, 1);
  ASSERT_TRUE(life.Add(Summed("v1", std::string(400, 'x'))).ok());
  life.Prefetch(1);
  ASSERT_EQ(ArmFailPoints("rows.write=error"), OkStatus());
  for (int i = 0; i < 3; ++i) (void)AddUp(&life, 1, std::string(400, 'y'));
  life.state->Tick();
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_RUNNING) << "not without the disk";
  ASSERT_EQ(ArmFailPoints(""), OkStatus());
  life.state->Tick();
  const v1::PullJob job = life.Get(Ref(1)).job();
  EXPECT_EQ(job.state(), v1::PULL_FAILED);
  EXPECT_EQ(job.error_code(), static_cast<uint32_t>(StatusCode::kDataLoss));
  EXPECT_THAT(job.error(), HasSubstr("w: damaged"));
}

TEST_F(ModelChecksTest, AJobThatIsDoneEndsAlsoAfterTheDiskHasRefusedThat) {
  Life life(dir.path(), &clock);
  life.View(1, 1);
  const std::string content(400, 'x');
  ASSERT_TRUE(life.Add(Summed("v1", content)).ok());
  life.Prefetch(1);
  ASSERT_TRUE(life.Take(life.Report(1, 1, 4, true)).ok());
  ASSERT_EQ(ArmFailPoints("rows.write=error@2"), OkStatus());  // the digests are written
  EXPECT_EQ(AddUp(&life, 1, content), OkStatus());
  EXPECT_EQ(life.Get(Ref(1)).blocks_known(), 4U);
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_RUNNING);
  ASSERT_EQ(ArmFailPoints(""), OkStatus());
  life.state->Tick();
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_DONE);
}

// As a server says it that read the last block for the second time: it is not told twice.
TEST_F(ModelChecksTest, ASumWhoseDigestsTheDiskRefusedIsToldAgain) {
  Life life(dir.path(), &clock);
  const std::string content(400, 'x');
  ASSERT_TRUE(life.Add(Summed("v1", content)).ok());
  ASSERT_EQ(ArmFailPoints("rows.write=error@1"), OkStatus());
  EXPECT_FALSE(AddUp(&life, 1, content).ok());
  ASSERT_EQ(ArmFailPoints(""), OkStatus());
  EXPECT_EQ(life.Get(Ref(1)).blocks_known(), 0U);
  EXPECT_EQ(AddUp(&life, 1, content), OkStatus());
  EXPECT_EQ(life.Get(Ref(1)).blocks_known(), 4U);
}

TEST_F(ModelChecksTest, AServerThatFollowsHearsThatTheControllerWasRestarted) {
  v1::FollowUnverifiedRequest follow;
  {
    Life life(dir.path(), &clock);
    ASSERT_TRUE(life.Add(Summed("v1", std::string(400, 'x'))).ok());
    const v1::FollowUnverifiedReply heard = life.Follow(1);
    follow.set_model_id(1);
    follow.set_log(heard.log());
    follow.set_since(heard.next());
    v1::FollowUnverifiedReply reply;
    bool news = true;
    ASSERT_EQ(life.state->FollowUnverified(follow, &reply, &news), OkStatus());
    EXPECT_FALSE(news);
  }
  clock.Advance(std::chrono::seconds(1));
  Life life(dir.path(), &clock);
  v1::FollowUnverifiedReply reply;
  bool news = false;
  ASSERT_EQ(life.state->FollowUnverified(follow, &reply, &news), OkStatus());
  EXPECT_TRUE(news);
  EXPECT_NE(reply.log(), follow.log());
}

// It was on its way when the job ended.
TEST_F(ModelChecksTest, WhatWasReadForACancelledJobIsKnownToTheNext) {
  Life life(dir.path(), &clock);
  ASSERT_TRUE(life.Add(Summed("v1", std::string(400, 'x'))).ok());
  life.Prefetch(1);
  v1::ModelStatus status;
  ASSERT_EQ(life.state->CancelPrefetch(Ref(1), &status), OkStatus());
  ASSERT_TRUE(life.Take(life.With(life.Report(1, 1, 1, false), 2, Digest(2))).ok());
  life.Prefetch(1);
  EXPECT_THAT(life.Follow(1).blocks(), ElementsAre(2));
  v1::ReportPullRequest report = life.Report(1, 1, 0, false);
  report.add_missing(2);
  report.add_missing(99);
  ASSERT_TRUE(life.Take(report).ok());
  EXPECT_EQ(life.Follow(1).digests().substr(32), std::string(32, '\0')) << "it is read again";
}

TEST_F(ModelChecksTest, ASumOfAnotherVersionThatHadTheIdIsRefused) {
  const std::string content(400, 'x');
  Life life(dir.path(), &clock);
  life.View(1, 1);
  ASSERT_TRUE(life.Add(Summed("v1", content)).ok());
  v1::ReportSumRequest report;
  report.set_model_id(1);
  report.set_sum(ToHex(*Md5(AsBytes(content))));
  for (uint8_t block = 0; block < 4; ++block)
    report.mutable_digests()->append(AsText(Digest(block)));
  v1::ReportSumReply reply;
  report.set_manifest(model::ManifestChecksum(Summed("v2", content)));
  EXPECT_EQ(life.state->ReportSum(report, &reply).code(), StatusCode::kNotFound);
  EXPECT_EQ(life.Get(Ref(1)).blocks_known(), 0U);
  report.set_manifest(model::ManifestChecksum(Summed("v1", content)));
  EXPECT_EQ(life.state->ReportSum(report, &reply), OkStatus());
  EXPECT_EQ(life.Get(Ref(1)).blocks_known(), 4U);
}

}  // namespace
}  // namespace ems::controller
