// What must hold: a job ends with an error that names each server that has failed, at its deadline
// at the latest, over restarts of the controller, too; what is told of another job counts for none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mp_controller/model_state.h"
#include "proto/model.pb.h"
#include "tests/mp_controller/model_life.h"

namespace ems::controller {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

using ModelJobsTest = ModelLifeTest;

TEST_F(ModelJobsTest, AnErrorOfAServerFailsTheJobAtItsEndAndNamesTheServer) {
  Life life(dir.path(), &clock);
  life.View(1, 2);
  ASSERT_TRUE(life.Add(Sample("v1")).ok());
  life.Prefetch(1);
  v1::ReportPullRequest report = life.Report(2, 1, 0, false);
  report.set_error_code(static_cast<uint32_t>(StatusCode::kPermissionDenied));
  report.set_error("http://h/p/w: 403");
  bool active = false;
  ASSERT_TRUE(life.Take(report, &active).ok());
  EXPECT_TRUE(active) << "the other one goes on";
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_RUNNING);
  ASSERT_TRUE(life.Take(life.Report(1, 1, 2, true)).ok());
  const auto expect_failed = [](const v1::PullJob& job) {
    EXPECT_EQ(job.state(), v1::PULL_FAILED);
    EXPECT_EQ(job.error(), "server \"2\": http://h/p/w: 403");
    EXPECT_EQ(job.error_code(), static_cast<uint32_t>(StatusCode::kPermissionDenied));
    ASSERT_EQ(job.failures_size(), 1);
    EXPECT_EQ(job.failures(0).server(), "2");
    EXPECT_EQ(job.failures(0).error(), "http://h/p/w: 403");
  };
  expect_failed(life.Get(Ref(1)).job());
  EXPECT_EQ(life.Get(Ref(1)).job().blocks_done(), 2U) << "what the other one has brought in";
  life.state.reset();
  life.rows.reset();
  Life again(dir.path(), &clock);
  expect_failed(again.Get(Ref(1)).job());
  EXPECT_EQ(again.Prefetch(1).job().error(), "") << "the next one tries again";
  EXPECT_EQ(again.Get(Ref(1)).job().failures_size(), 0);
}

TEST_F(ModelJobsTest, AJobEndsAtItsDeadlineAlsoOverARestartAndNamesWhoIsNotReady) {
  {
    Life life(dir.path(), &clock);
    life.View(1, 2);
    ASSERT_TRUE(life.Add(Sample("v1")).ok());
    EXPECT_EQ(life.Prefetch(1, 0, seconds(60)).job().time_left_ms(), 60'000U);
    clock.Advance(seconds(40));
    life.state->Tick();
  }
  Life life(dir.path(), &clock);
  life.View(2, 2);
  ASSERT_TRUE(life.Take(life.Report(1, 2, 4, true)).ok());
  clock.Advance(seconds(19));
  life.state->Tick();
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_RUNNING);
  clock.Advance(seconds(1));
  life.state->Tick();
  const v1::PullJob job = life.Get(Ref(1)).job();
  EXPECT_EQ(job.state(), v1::PULL_FAILED);
  EXPECT_EQ(job.error_code(), static_cast<uint32_t>(StatusCode::kDeadlineExceeded));
  EXPECT_EQ(job.error(), "server \"2\": has said nothing of this job");
  EXPECT_EQ(job.blocks_done(), 4U);
}

TEST_F(ModelJobsTest, AJobsTimeIsCheckedAndWhoJoinsMayGiveItMore) {
  Life life(dir.path(), &clock);
  life.View(1, 1);
  ASSERT_TRUE(life.Add(Sample("v1")).ok());
  v1::PrefetchRequest request;
  *request.mutable_ref() = Ref(1);
  v1::ModelStatus reply;
  for (const uint64_t bad : {uint64_t{999}, uint64_t{86'400'001}, UINT64_MAX}) {
    request.set_timeout_ms(bad);
    EXPECT_EQ(life.state->Prefetch(request, &reply).code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_NONE);
  EXPECT_EQ(life.Prefetch(1).job().time_left_ms(), 3'600'000U) << "an hour";
  EXPECT_EQ(life.Prefetch(1, 0, seconds(10)).job().time_left_ms(), 3'600'000U);
  EXPECT_EQ(life.Prefetch(1, 0, hours(2)).job().time_left_ms(), 7'200'000U);
}

// The first one was cancelled while its reports were on their way.
TEST_F(ModelJobsTest, ReportsOfAJobDoNotCountForTheNextOne) {
  Life life(dir.path(), &clock);
  life.View(1, 1);
  ASSERT_TRUE(life.Add(Sample("v1")).ok());
  life.Prefetch(1);
  v1::ModelStatus reply;
  ASSERT_TRUE(life.state->CancelPrefetch(Ref(1), &reply).ok());
  EXPECT_EQ(life.Prefetch(1).job().number(), 2U);
  bool active = true;
  ASSERT_TRUE(life.Take(life.Report(1, 1, 4, true), &active).ok());
  EXPECT_FALSE(active);
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_RUNNING);
  v1::ReportPullRequest second = life.Report(1, 1, 4, true);
  second.set_job(2);
  ASSERT_TRUE(life.Take(second).ok());
  EXPECT_EQ(life.Get(Ref(1)).job().state(), v1::PULL_DONE);
}

}  // namespace
}  // namespace ems::controller
