// What must hold: what the controller says arrives whole, and what it cannot say does no harm.
#include "ems_model/model_info.h"

#include <gtest/gtest.h>

#include "proto/model.pb.h"

namespace ems::model {
namespace {

TEST(ModelInfoTest, CarriesEveryField) {
  v1::ModelStatus status;
  status.mutable_ref()->set_id(7);
  status.mutable_ref()->set_model("m");
  status.mutable_ref()->set_version("v");
  status.set_name_space("ns");
  status.mutable_source()->set_url("/x");
  status.mutable_source()->set_credentials("team");
  status.mutable_source()->set_bytes_per_s_max(9);
  status.set_bytes(100);
  status.set_files(2);
  status.set_blocks(3);
  status.set_blocks_known(1);
  status.set_pinned(true);
  status.set_age_ms(1000);
  status.set_unused_ms(500);
  v1::PullJob* job = status.mutable_job();
  job->set_number(4);
  job->set_state(v1::PULL_FAILED);
  job->set_priority(5);
  job->set_error_code(static_cast<uint32_t>(StatusCode::kNotFound));
  job->set_error("gone");
  job->set_blocks_done(1);
  job->set_bytes_done(10);
  job->set_source_bytes(20);
  job->set_promoted_bytes(30);
  job->set_shared_bytes(40);
  job->set_elapsed_ms(50);
  job->set_read_bytes(60);
  job->set_time_left_ms(70);
  job->set_failures_left_out(8);
  v1::PullFailure* failure = job->add_failures();
  failure->set_server("b");
  failure->set_error_code(static_cast<uint32_t>(StatusCode::kPermissionDenied));
  failure->set_error("403");
  const ModelInfo info = FromProto(status);
  EXPECT_EQ(info.id, 7U);
  EXPECT_EQ(info.name, (ModelName{.model = "m", .version = "v"}));
  EXPECT_EQ(info.name_space, "ns");
  EXPECT_EQ(info.source,
            (ManifestSource{.url = "/x", .credentials = "team", .bytes_per_s_max = 9}));
  EXPECT_EQ(info.bytes + info.files + info.blocks + info.blocks_known, 106U);
  EXPECT_TRUE(info.pinned);
  EXPECT_EQ(info.age, std::chrono::seconds(1));
  EXPECT_EQ(info.unused, std::chrono::milliseconds(500));
  EXPECT_EQ(info.job.number, 4U);
  EXPECT_EQ(info.job.state, JobState::kFailed);
  EXPECT_EQ(info.job.priority, 5U);
  EXPECT_EQ(info.job.error, Error(StatusCode::kNotFound, "gone"));
  EXPECT_EQ(info.job.blocks_done, 1U);
  EXPECT_EQ(info.job.bytes_done, 10U);
  EXPECT_EQ(info.job.source_bytes, 20U);
  EXPECT_EQ(info.job.promoted_bytes, 30U);
  EXPECT_EQ(info.job.shared_bytes, 40U);
  EXPECT_EQ(info.job.elapsed, std::chrono::milliseconds(50));
  EXPECT_EQ(info.job.read_bytes, 60U);
  EXPECT_EQ(info.job.time_left, std::chrono::milliseconds(70));
  ASSERT_EQ(info.job.failures.size(), 1U);
  EXPECT_EQ(info.job.failures[0].server, "b");
  EXPECT_EQ(info.job.failures[0].error, Error(StatusCode::kPermissionDenied, "403"));
  EXPECT_EQ(info.job.failures_left_out, 8U);
}

TEST(ModelInfoTest, ATimeThatDoesNotFitIsTheLongestThatDoes) {
  v1::ModelStatus status;
  status.set_age_ms(UINT64_MAX);
  status.set_unused_ms(uint64_t{1} << 63);
  status.mutable_job()->set_elapsed_ms(9'300'000'000'000);
  const ModelInfo info = FromProto(status);
  for (const Duration time : {info.age, info.unused, info.job.elapsed})
    EXPECT_GT(time, Duration::max() - std::chrono::milliseconds(1));
}

TEST(ModelInfoTest, StatesHaveNames) {
  v1::PullJob job;
  const std::vector<std::pair<v1::PullState, std::string>> names = {
      {v1::PULL_NONE, "none"},
      {v1::PULL_RUNNING, "running"},
      {v1::PULL_DONE, "done"},
      {v1::PULL_FAILED, "failed"},
      {v1::PULL_CANCELLED, "cancelled"}};
  for (const auto& [state, name] : names) {
    job.set_state(state);
    EXPECT_EQ(JobStateName(FromProto(job).state), name);
  }
  job.set_error_code(4711);
  EXPECT_FALSE(FromProto(job).error.ok());
}

}  // namespace
}  // namespace ems::model
