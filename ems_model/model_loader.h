#pragma once
// Brings the blocks that a target wants to it, as they become available in the pool; what the pool
// does not have or cannot give is asked for with a job, and, when that does not help, read from the
// source.
//
// Invariant: only bytes that are verified have "arrived" at the target. Bound: `threads` batches of
// `batch_bytes` under way; every wait ends with the deadline.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/clock.h"
#include "ems_model/block_pool.h"
#include "ems_model/load_options.h"
#include "ems_model/load_target.h"
#include "model_files/format/manifest.h"
#include "model_files/source/weight_source.h"

namespace ems {
class StopFlag;
}
namespace ems::model::internal {
class FileSurvey;
}

namespace ems::model {

// Threading: one thread at a time.
class ModelLoader final {
 public:
  struct Parts {
    const Manifest* manifest;
    BlockPool* pool;
    LoadCatalog* catalog;
    // Opens the source for reads of this load's own; asked when first needed, twice where blocks
    // are read twice: these share no connection. `stop`, of its spec, is set when the load fails.
    std::function<Result<std::unique_ptr<WeightSource>>(std::shared_ptr<StopFlag> stop)>
        open_source;
  };
  // Everything in `parts` must outlive this.
  ModelLoader(Parts parts, LoadOptions options);
  ~ModelLoader();

  // Errors: kDeadlineExceeded  says what was missing    kNotFound  the version has been removed
  //   kFailedPrecondition  the source has changed since the version was added
  //   kCancelled  a client has cancelled the job, or LoadOptions::stop is set    those of the job,
  //   the pool, the source and the target
  // Cost: `threads` threads while it runs; one copy of each byte, from the pool to its place.
  // Headers are read once, by the first load whose target wants tables.
  Result<LoadStats> Load(LoadTarget* target, Deadline deadline);

 private:
  struct Run;
  Status LoadBlocks(LoadTarget* target, Deadline deadline, LoadStats* stats);
  Status ReadTables(Deadline deadline, LoadStats* stats);

  const Parts parts_;
  const LoadOptions options_;
  // What is known of blocks, for all that this loader loads.
  std::vector<BlockDigest> digests_;
  std::vector<bool> known_;
  std::vector<std::optional<TensorTable>> tables_;  // of each file, once they are read
  uint32_t since_ = 0;
  std::shared_ptr<StopFlag> stop_sources_;  // theirs; set: they read nothing any more
  std::unique_ptr<WeightSource> sources_[2];
  std::unique_ptr<internal::FileSurvey> survey_;
};

}  // namespace ems::model
