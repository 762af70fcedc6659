#pragma once
// Adds blocks up to the sum of their file: those of this server where they lie, those of others as
// they come over the data plane, which nobody keeps. Tells the controller the sum of a whole file.
//
// Bound: ModelPull::kCheckBytesMax bytes a task, the longest block in the caller's buffer.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/status.h"
#include "mp_server/models/block_puller.h"
#include "mp_server/models/model_pull.h"
#include "mp_server/models/peer_blocks.h"
#include "mp_server/models/pull_table.h"

namespace ems::server {

// Threading: one thread (a worker); blocks on disk, network and controller.
class CheckWorker final {
 public:
  // Both must outlive it.
  CheckWorker(PullTable* table, BlockPuller* blocks) : table_(*table), blocks_(blocks) {}

  // Works at a task of ModelPull::NextCheck and hands it back. What has been done counts also with
  // an error, after which the same task is to be given again, but not in a tight loop, or, with
  // kUnimplemented, not at all: no MD5 here.
  // Cost: a pass over the bytes, at about 0.6 GB/s.
  Status Run(ModelPull::CheckTask* task, std::vector<std::byte>* buffer,
             ModelPull::CheckOutcome* outcome);

 private:
  Status Tell(const ModelPull::CheckTask& task);
  Result<bool> Add(const ModelPull::CheckTask& task, uint32_t index,
                   std::vector<std::byte>* buffer);

  PullTable& table_;
  BlockPuller* const blocks_;
  PeerBlocks peers_;
};

}  // namespace ems::server
