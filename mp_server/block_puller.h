#pragma once
// Brings one block of a model into DRAM: from this server's own SSD, or from the model's source.
//
// A block is read from the source at most once for each call, checked against its digest, and
// becomes visible only whole. Bound: one block's bytes, in the caller's buffer.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "ems_model/source/weight_source.h"
#include "mp_server/model_pull.h"
#include "mp_server/ownership.h"
#include "mp_server/tiered_store.h"

namespace ems::server {

// Threading: thread-safe; blocks on disk and network.
class BlockPuller final {
 public:
  struct Pulled {
    bool ours = true;  // false: slot or namespace are not this server's any more, or not yet
    ModelPull::Outcome outcome;
  };

  using OpenSource = std::function<Result<std::shared_ptr<model::WeightSource>>()>;

  // All must outlive it. `stop` ends waits.
  BlockPuller(TieredStore* store, const Ownership* ownership, StopFlag* stop)
      : store_(store), ownership_(ownership), stop_(stop) {}

  // `open` and `buffer`, which grows to the block's size, are used only if the bytes are not here
  // yet. Errors: those of `open` and of the source    kFailedPrecondition  the source has changed
  // kResourceExhausted  no room within 10 s: quota, or a pool full of what is pinned or in use
  // kCancelled  stopping
  Result<Pulled> Pull(const ModelPull::Task& task, const OpenSource& open,
                      std::vector<std::byte>* buffer);

 private:
  // From DRAM or SSD; false: it is in neither.
  Result<bool> Find(const ModelPull::Task& task, const std::string& key,
                    ModelPull::Outcome* outcome);
  Result<bool> Store(const ModelPull::Task& task, const std::string& key, ConstBytes bytes,
                     ModelPull::Outcome* outcome);

  TieredStore* const store_;
  const Ownership* const ownership_;
  StopFlag* const stop_;
};

}  // namespace ems::server
