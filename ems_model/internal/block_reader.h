#pragma once
// Reads blocks from the pool or the source, verifies them and puts them where the target wants
// them.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/guarded.h"
#include "ems_model/block_pool.h"
#include "ems_model/internal/block_queue.h"
#include "ems_model/internal/file_survey.h"
#include "ems_model/load_options.h"
#include "ems_model/load_target.h"
#include "model_files/source/weight_source.h"

namespace ems::model::internal {

// Threading: thread-safe; several threads Work at once.
class BlockReader final {
 public:
  struct Parts {
    const Manifest* manifest;
    BlockPool* pool;
    // Of each block; that of a block is constant once the queue has learned it.
    std::span<const BlockDigest> digests;
    LoadTarget* target;
    BlockQueue* queue;
    // The source, opened when first asked for; streams 0 and 1 share no connection.
    std::function<Result<WeightSource*>(uint32_t stream)> source;
    FileSurvey* survey;
  };
  struct Counts {
    std::atomic<uint64_t> bytes{0}, dram_bytes{0}, ssd_bytes{0}, source_bytes{0}, blocks{0},
        misses{0};
  };
  // Everything in `parts` must outlive this.
  BlockReader(const Parts& parts, const LoadOptions& options, Deadline deadline)
      : parts_(parts), options_(options), deadline_(deadline) {}

  // How long a source that does not answer is asked again.
  static constexpr Duration kSourcePatience = std::chrono::minutes(5);

  // Reads what the queue has until the load is over.
  void Work();
  const Counts& counts() const { return counts_; }

 private:
  // One block: where its bytes go, and how it is read.
  struct Placed;
  Status Place(uint32_t block, Placed* placed) const;
  void ChooseForm(Placed* placed) const;
  // `direct`: what is not there is read from the source.
  void ReadFromPool(std::span<const uint32_t> blocks, bool direct);
  Duration TimeoutFor(uint64_t bytes) const;
  void Settle(Placed* placed, const Status& read);
  void NotThere(const Placed& placed, const Status& why);
  void ReadFromSource(uint32_t block, bool known);
  Status ReadFromSource(Placed* placed, bool known);
  // All of a block, as often as it takes to trust it.
  Status ReadTrusted(uint32_t block, bool known, MutableBytes into);
  // Verified: brings what lies in scratch memory to its place and tells the target.
  Status Hand(Placed* placed);

  const Parts parts_;
  const LoadOptions& options_;
  const Deadline deadline_;
  Counts counts_;
  // Blocks that are to be read from the source are not asked for before: the pool does not answer.
  std::atomic<TimePoint> ask_at_{};  // relaxed: no other memory depends on it
};

}  // namespace ems::model::internal
