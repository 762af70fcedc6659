#pragma once
// Records of model versions, and of the jobs that load them into the pool, as the controller
// reports them.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "ems_model/model_name.h"
#include "model_files/format/manifest.h"

namespace ems::v1 {
class ModelStatus;
class PullJob;
}  // namespace ems::v1

namespace ems::model {

enum class JobState : uint8_t {
  kNone,  // nobody has asked for it yet
  kRunning,
  kDone,    // every server has had all of its blocks in DRAM
  kFailed,  // JobInfo::error says why
  kCancelled,
};
// "running".
std::string_view JobStateName(JobState state);

// A server that could not do its part of a job, or has not done it in time.
struct JobFailure {
  std::string server;
  Status error;
};

struct JobInfo {
  uint64_t number = 0;  // of the version's jobs; 0: none yet
  JobState state = JobState::kNone;
  uint32_t priority = 0;
  Status error;  // of kFailed; names the servers
  // By server, 16 at most; of a job that is running: those that cannot go on. And how many more.
  std::vector<JobFailure> failures;
  uint32_t failures_left_out = 0;
  uint64_t blocks_done = 0;
  uint64_t bytes_done = 0;      // in DRAM since the job began
  uint64_t source_bytes = 0;    // of them, read from the source
  uint64_t promoted_bytes = 0;  // read from SSDs
  uint64_t shared_bytes =
      0;  // read from the source and there already, as a block of another version
  // Of files with a sum: those that it has been computed of. A file can be loaded from the pool
  // when that is all of it.
  uint64_t checked_bytes = 0;
  // Another number as long as the source sends something, be it parts of blocks; nothing to add up.
  uint64_t read_bytes = 0;
  Duration elapsed{0};    // since the job began, to its end
  Duration time_left{0};  // until it ends in any case; 0: it has ended
};

struct ModelInfo {
  uint32_t id = 0;  // never used again
  ModelName name;
  std::string name_space;
  ManifestSource source;
  uint64_t bytes = 0;
  uint32_t files = 0;
  uint32_t blocks = 0;
  uint32_t blocks_known = 0;  // whose digest is known
  bool pinned = false;
  Duration age{0};     // since it was added
  Duration unused{0};  // since it was last used, prefetched or added
  JobInfo job;         // the last one
};

JobInfo FromProto(const v1::PullJob& job);
ModelInfo FromProto(const v1::ModelStatus& status);

}  // namespace ems::model
