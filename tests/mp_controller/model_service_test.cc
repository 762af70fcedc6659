// What must hold: calls that wait are answered by the change they wait for, by their time, or when
// the controller stops; everything is there after a restart.
#include "mp_controller/model_service.h"

#include <gtest/gtest.h>

#include "cluster/models_client.h"
#include "common/thread_pool.h"
#include "model_files/format/manifest.h"
#include "proto/model.pb.h"
#include "tests/mp_controller/controller_harness.h"
#include "tests/mp_controller/temp_dir.h"

namespace ems::controller {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

v1::ModelManifest SampleMessage(const std::string& version) {
  model::Manifest manifest;
  manifest.model = "base";
  manifest.version = version;
  manifest.name_space = "models";
  manifest.source.url = "http://h/p/";
  manifest.files = {{"w", 200, version}};
  manifest.blocks = {{0, 0, 100, {}}, {0, 100, 100, {}}};
  v1::ModelManifest proto;
  ToProto(manifest, &proto);
  return proto;
}

class ModelServiceTest : public ::testing::Test {
 protected:
  void SetUp() override { Restart(); }
  void Restart() {
    const int port = controller_ == nullptr ? 0 : controller_->port();
    controller_.reset();
    controller_ = std::make_unique<Controller>(FastOptions(dir_.path(), port));
    ASSERT_EQ(controller_->Start(), OkStatus());
    models_ = std::make_unique<ModelsClient>(controller_->address());
  }
  v1::ModelStatus Add(const std::string& version) {
    v1::ModelStatus status;
    EXPECT_EQ(models_->Add(SampleMessage(version), &status, Soon()), OkStatus());
    return status;
  }
  uint64_t Number() {
    v1::ListModelsReply list;
    EXPECT_EQ(models_->List(0, Duration::zero(), &list, Soon()), OkStatus());
    return list.number();
  }

  TempDir dir_;
  std::unique_ptr<Controller> controller_;
  std::unique_ptr<ModelsClient> models_;
};

TEST_F(ModelServiceTest, AListThatWaitsIsAnsweredByTheChange) {
  const uint64_t number = Number();
  v1::ListModelsReply list;
  Status status;
  Thread waiter("waiter", [&] {
    status = models_->List(number, seconds(20), &list, Deadline::After(seconds(30)));
  });
  Add("v1");
  waiter.Join();
  EXPECT_EQ(status, OkStatus());
  ASSERT_EQ(list.models_size(), 1);
  EXPECT_EQ(list.models(0).ref().version(), "v1");
}

TEST_F(ModelServiceTest, DigestsThatWaitAreAnsweredByAReport) {
  const uint32_t id = Add("v1").ref().id();
  v1::ModelStatus status;
  v1::ModelRef ref;
  ref.set_id(id);
  ASSERT_EQ(models_->Prefetch(ref, 0, &status, Soon()), OkStatus());
  v1::GetDigestsRequest request;
  *request.mutable_ref() = ref;
  request.set_wait_ms(20'000);
  v1::GetDigestsReply digests;
  Thread waiter("waiter", [&] {
    EXPECT_EQ(models_->GetDigests(request, &digests, Deadline::After(seconds(30))), OkStatus());
  });
  v1::ReportPullRequest report;
  report.set_model_id(id);
  report.set_job(1);
  report.add_blocks(1);
  report.set_digests(std::string(32, 'd'));
  v1::ReportPullReply reply;
  ASSERT_EQ(models_->ReportPull(report, &reply, Soon()), OkStatus());
  EXPECT_TRUE(reply.active());
  waiter.Join();
  ASSERT_EQ(digests.blocks_size(), 1);
  EXPECT_EQ(digests.blocks(0), 1U);
  EXPECT_EQ(digests.job().state(), v1::PULL_RUNNING);
}

TEST_F(ModelServiceTest, WhatDoesNotChangeIsAnsweredWhenItsTimeIsOver) {
  v1::ListModelsReply list;
  ASSERT_EQ(models_->List(Number(), milliseconds(50), &list, Soon()), OkStatus());
  EXPECT_EQ(list.models_size(), 0);
}

TEST_F(ModelServiceTest, AStopAnswersThoseWhoWaitAndARestartHasEverything) {
  Add("v1");
  const uint64_t number = Number();
  Status status = Error(StatusCode::kInternal, "not answered");
  auto old = std::make_unique<ModelsClient>(controller_->address());
  Thread waiter("waiter", [&] {
    v1::ListModelsReply list;
    status = old->List(number, seconds(25), &list, Deadline::After(seconds(28)));
  });
  const TimePoint begin = Clock::System().Now();
  Restart();
  waiter.Join();
  EXPECT_LT(Clock::System().Now() - begin, seconds(20)) << "it waited its whole time";
  v1::ModelStatus found;
  v1::ModelRef ref;
  ref.set_model("base");
  ASSERT_EQ(models_->Get(ref, &found, Soon()), OkStatus());
  EXPECT_EQ(found.ref().version(), "v1");
  EXPECT_NE(Number(), number) << "a list of this life is not one of the life before";
}

TEST_F(ModelServiceTest, EveryVerbReachesItsPart) {
  const uint32_t id = Add("v1").ref().id();
  v1::ModelRef ref;
  ref.set_id(id);
  v1::ModelStatus status;
  ASSERT_EQ(models_->Pin(ref, true, &status, Soon()), OkStatus());
  EXPECT_TRUE(status.pinned());
  EXPECT_EQ(models_->Remove(ref, Soon()).code(), StatusCode::kFailedPrecondition);
  ASSERT_EQ(models_->Pin(ref, false, &status, Soon()), OkStatus());
  ASSERT_EQ(models_->Prefetch(ref, 3, &status, Soon()), OkStatus());
  EXPECT_EQ(status.job().priority(), 3U);
  ASSERT_EQ(models_->CancelPrefetch(ref, &status, Soon()), OkStatus());
  EXPECT_EQ(status.job().state(), v1::PULL_CANCELLED);
  ASSERT_EQ(models_->Use(ref, &status, Soon()), OkStatus());
  v1::ModelManifest manifest;
  ASSERT_EQ(models_->GetManifest(ref, &manifest, Soon()), OkStatus());
  EXPECT_EQ(manifest.files(0).path(), "w");
  ASSERT_EQ(models_->Remove(ref, Soon()), OkStatus());
  EXPECT_EQ(models_->Get(ref, &status, Soon()).code(), StatusCode::kNotFound);
}

TEST_F(ModelServiceTest, AServerThatFollowsUnverifiedDigestsIsAnsweredByAReport) {
  v1::ModelManifest proto = SampleMessage("v1");
  proto.mutable_files(0)->set_sum("md5:0123456789abcdef0123456789abcdef");
  v1::ModelStatus status;
  ASSERT_EQ(models_->Add(proto, &status, Soon()), OkStatus());
  v1::FollowUnverifiedRequest follow;
  follow.set_model_id(status.ref().id());
  v1::FollowUnverifiedReply heard;
  ASSERT_EQ(models_->FollowUnverified(follow, &heard, Soon()), OkStatus());
  follow.set_log(heard.log());
  follow.set_wait_ms(20'000);
  Thread waiter("waiter", [&] {
    EXPECT_EQ(models_->FollowUnverified(follow, &heard, Deadline::After(seconds(30))), OkStatus());
  });
  v1::ReportPullRequest report;
  report.set_model_id(status.ref().id());
  report.add_blocks(1);
  report.set_digests(std::string(32, 'd'));
  v1::ReportPullReply reply;
  ASSERT_EQ(models_->ReportPull(report, &reply, Soon()), OkStatus());
  waiter.Join();
  ASSERT_EQ(heard.blocks_size(), 1);
  EXPECT_EQ(heard.digests(), report.digests());
  v1::ReportSumRequest sum;
  sum.set_model_id(status.ref().id());
  EXPECT_EQ(models_->ReportSum(sum, Soon()).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ems::controller
