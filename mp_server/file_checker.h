#pragma once
// Adds blocks that this server keeps to the sum of their file.
//
// Nothing is sent or copied: the bytes are read where they lie, and only the state of the sum goes
// to whoever keeps the next block. Bound: ModelPull::kCheckBytesMax bytes a call.
#include <cstdint>
#include <optional>
#include <string>

#include "common/status.h"
#include "mp_server/block_puller.h"
#include "mp_server/model_pull.h"

namespace ems::server {

// Threading: thread-safe; blocks on the disk for blocks that are on the SSD alone.
class FileChecker final {
 public:
  struct Added {
    uint32_t blocks = 0;              // the first of the task, that were added
    std::string state;                // of the sum, after them
    std::optional<uint32_t> missing;  // the block after them is not here any more
  };

  // Must outlive it.
  explicit FileChecker(BlockPuller* blocks) : blocks_(blocks) {}

  // Errors: kCancelled  stopping    kInvalidArgument  a state that makes no sense, or is of other
  // bytes than those before the task    kUnimplemented  no MD5 here
  // Cost: a pass over the bytes, at about 0.6 GB/s.
  Result<Added> Add(const ModelPull::CheckTask& task) const;

 private:
  BlockPuller* const blocks_;
};

}  // namespace ems::server
