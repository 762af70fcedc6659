#include "ems_model/model_info.h"

#include <algorithm>

#include "proto/model.pb.h"

namespace ems::model {
namespace {

JobState StateOf(v1::PullState state) {
  switch (state) {
    case v1::PULL_RUNNING:
      return JobState::kRunning;
    case v1::PULL_DONE:
      return JobState::kDone;
    case v1::PULL_FAILED:
      return JobState::kFailed;
    case v1::PULL_CANCELLED:
      return JobState::kCancelled;
    default:
      return JobState::kNone;
  }
}

// What does not fit is the longest that does.
Duration Milliseconds(uint64_t ms) {
  using std::chrono::milliseconds;
  constexpr uint64_t kMost = std::chrono::duration_cast<milliseconds>(Duration::max()).count();
  return milliseconds(std::min(ms, kMost));
}

Status StatusOf(uint32_t code, const std::string& text) {
  constexpr auto kMost = static_cast<uint32_t>(StatusCode::kUnauthenticated);
  return Error(static_cast<StatusCode>(std::min(code, kMost)), std::string_view(text));
}

}  // namespace

std::string_view JobStateName(JobState state) {
  switch (state) {
    case JobState::kNone:
      return "none";
    case JobState::kRunning:
      return "running";
    case JobState::kDone:
      return "done";
    case JobState::kFailed:
      return "failed";
    case JobState::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

JobInfo FromProto(const v1::PullJob& job) {
  JobInfo info;
  info.number = job.number();
  info.state = StateOf(job.state());
  info.priority = job.priority();
  if (job.error_code() != 0) info.error = StatusOf(job.error_code(), job.error());
  for (const v1::PullFailure& one : job.failures())
    info.failures.push_back({one.server(), StatusOf(one.error_code(), one.error())});
  info.failures_left_out = job.failures_left_out();
  info.blocks_done = job.blocks_done();
  info.bytes_done = job.bytes_done();
  info.source_bytes = job.source_bytes();
  info.promoted_bytes = job.promoted_bytes();
  info.shared_bytes = job.shared_bytes();
  info.checked_bytes = job.checked_bytes();
  info.read_bytes = job.read_bytes();
  info.elapsed = Milliseconds(job.elapsed_ms());
  info.time_left = Milliseconds(job.time_left_ms());
  return info;
}

ModelInfo FromProto(const v1::ModelStatus& status) {
  ModelInfo info;
  info.id = status.ref().id();
  info.name = {.model = status.ref().model(), .version = status.ref().version()};
  info.name_space = status.name_space();
  info.source = FromProto(status.source());
  info.bytes = status.bytes();
  info.files = status.files();
  info.blocks = status.blocks();
  info.blocks_known = status.blocks_known();
  info.pinned = status.pinned();
  info.age = Milliseconds(status.age_ms());
  info.unused = Milliseconds(status.unused_ms());
  info.job = FromProto(status.job());
  return info;
}

}  // namespace ems::model
