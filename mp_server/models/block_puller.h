#pragma once
// Brings one block of a model into DRAM: from this server's own SSD, from what it kept of slots
// that it had lost, or from the model's source.
//
// A block is read from the source at most once for each call, unless it is damaged or the version's
// source is to be read twice; it is checked against its digest, and becomes visible only whole. A
// version that is brought in is in use, so it is not what makes room for itself; a block that is
// here is known as one of its version's, and is evicted with those.
// Bound: one block's bytes, in the caller's buffer.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/clock.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "model_files/source/weight_source.h"
#include "mp_server/lease/ownership.h"
#include "mp_server/models/model_pull.h"
#include "mp_server/models/orphaned_blocks.h"
#include "mp_server/store/tiered_store.h"

namespace ems::server {

// Threading: thread-safe; blocks on disk and network.
class BlockPuller final {
 public:
  struct Pulled {
    bool ours = true;  // false: slot or namespace are not this server's any more, or not yet
    ModelPull::Outcome outcome;
  };

  // `stream` 0 or 1: two that share no connection.
  using OpenSource = std::function<Result<std::shared_ptr<model::WeightSource>>(uint32_t stream)>;

  // All must outlive it; `kept` may be null. `stop` ends waits. `readers_max`: so many read from a
  // source at a time.
  BlockPuller(TieredStore* store, const Ownership* ownership, StopFlag* stop, uint32_t readers_max,
              OrphanedBlocks* kept = nullptr)
      : store_(store),
        ownership_(ownership),
        stop_(stop),
        readers_max_(readers_max),
        orphans_(kept) {}

  // `open` and `buffer`, which grows to the block's size, are used only if the bytes are not here
  // yet. Errors: those of `open` and of the source    kFailedPrecondition  the source has changed
  // kDataLoss  it never gave the same bytes twice, where it is to be read twice, or never those
  // read before nor the same others twice
  // kResourceExhausted  no room within 10 s: quota, or a pool full of what is pinned or in use
  // kCancelled  stopping
  Result<Pulled> Pull(const ModelPull::Task& task, const OpenSource& open,
                      std::vector<std::byte>* buffer);
  // A block of so many `bytes`, from DRAM or SSD, into `outcome->pin`; false: it is in neither, or
  // something else is there in its name, or it was damaged, and has been evicted for that: only
  // with `read.check` that is looked at. Errors: kCancelled  stopping
  Result<bool> Find(NamespaceRef ns, const std::string& key, uint64_t bytes,
                    const ReadOptions& read, ModelPull::Outcome* outcome);

 private:
  Result<Pulled> Bring(const ModelPull::Task& task, const OpenSource& open,
                       std::vector<std::byte>* buffer);
  // Sets digest and source_bytes of the outcome.
  Status Read(const ModelPull::Task& task, const OpenSource& open, MutableBytes bytes,
              ModelPull::Outcome* outcome);
  // How long one read of a block may take from a source that gives so much a second, 0: no limit.
  // They share that, so the last one waits for all others.
  Duration ReadPatience(uint64_t block_bytes, uint64_t bytes_per_s_max) const;
  // Back under its key, if it is one of those that were kept.
  Result<bool> TakeBack(const ModelPull::Task& task, const std::string& key,
                        ModelPull::Outcome* outcome);
  Result<bool> Store(const ModelPull::Task& task, const std::string& key, ConstBytes bytes,
                     ModelPull::Outcome* outcome);

  TieredStore* const store_;
  const Ownership* const ownership_;
  StopFlag* const stop_;
  const uint32_t readers_max_;
  OrphanedBlocks* const orphans_;
};

}  // namespace ems::server
