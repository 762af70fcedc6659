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
#include <span>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "ems_model/format/manifest.h"
#include "ems_model/load_target.h"
#include "ems_model/model_info.h"
#include "ems_model/source/weight_source.h"
#include "mp_sdk/options.h"

namespace ems {
class StopFlag;
}
namespace ems::model::internal {
class FileSurvey;
}

namespace ems::model {

struct LoadProgress {
  uint64_t bytes_done = 0;  // in place
  uint64_t bytes = 0;       // wanted
};

struct LoadOptions {
  uint32_t threads = 4;  // 1 to 64
  uint64_t batch_bytes = 64 * kMiB;
  // Verify each block's SHA-256, too, beside the checksum that every object has. Costs a pass over
  // the bytes, and ranges of blocks are read as whole blocks.
  bool verify_digests = false;
  // Read from the source here when the pool does not answer, or cannot hold the version.
  bool fallback_to_source = true;
  // How long nothing may come from the pool, nor the job make progress, before that happens; six
  // times as long while the servers answer. What the source sends the job is progress, too. Jobs
  // that fail as their source does not answer are begun anew for as long.
  Duration pool_patience = std::chrono::seconds(10);
  uint32_t priority = 0;  // of jobs that the load begins
  // Called every 100 ms or so on the thread that loads. May be empty.
  std::function<void(const LoadProgress&)> on_progress{};
  // Once set, the load ends with kCancelled, within a second or so: reads of the source that are
  // under way are ended, those of the pool have seconds at most. May be null.
  std::shared_ptr<StopFlag> stop{};
};

struct LoadStats {
  uint64_t bytes = 0;         // that arrived at the target
  uint64_t dram_bytes = 0;    // read from the pool's DRAM; more than wanted where slices are thin
  uint64_t ssd_bytes = 0;     // read from the pool's SSDs
  uint64_t source_bytes = 0;  // read from the source by this load
  uint64_t blocks = 0;
  uint64_t misses = 0;  // blocks that the pool was asked for in vain
  uint64_t jobs = 0;    // begun or joined
  Duration elapsed{0};
  Duration waiting{0};  // of it, with nothing to read
  Status detour;        // why blocks were read from the source; OK: none were, or they were damaged

  uint64_t pool_bytes() const { return dram_bytes + ssd_bytes; }
};

// The pool, as a load sees it. Threading: thread-safe.
class BlockPool {
 public:
  virtual ~BlockPool() = default;
  // As Client::MultiGet and Client::MultiGetRange.
  virtual std::vector<Result<uint64_t>> Read(std::span<const GetItem> items, Duration timeout) = 0;
  virtual std::vector<Status> ReadRanges(std::span<const RangeItem> items, Duration timeout) = 0;
  // Whether the servers of these routes answer: the first error, if any.
  virtual Status Probe(std::span<const BlockRoute> routes, Duration timeout) = 0;
  // Another number whenever others keep the blocks: what was there may not be there any more.
  virtual uint64_t view() = 0;
};

struct DigestNews {
  std::vector<std::pair<uint32_t, BlockDigest>> digests;  // from the `since`-th known one on
  uint32_t known = 0;                                     // by now
  JobInfo job;
};

// What the controller knows of the version. Threading: one thread.
class LoadCatalog {
 public:
  virtual ~LoadCatalog() = default;
  // Errors: kNotFound  the version has been removed    kUnavailable, kDeadlineExceeded  no
  // controller
  virtual Result<DigestNews> Digests(uint32_t since, Duration wait, Deadline deadline) = 0;
  // Begins a job, or joins the one that is running.   Errors: as Digests
  virtual Result<JobInfo> StartJob(uint32_t priority, Deadline deadline) = 0;
};

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
  //   kCancelled  somebody has cancelled the job, or LoadOptions::stop is set    those of the job,
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
  std::vector<TensorTable> tables_;  // of each file
  std::vector<bool> has_table_;
  bool tables_read_ = false;
  uint32_t since_ = 0;
  std::shared_ptr<StopFlag> stop_sources_;  // theirs; set: they read nothing any more
  std::unique_ptr<WeightSource> sources_[2];
  std::unique_ptr<internal::FileSurvey> survey_;
};

}  // namespace ems::model
