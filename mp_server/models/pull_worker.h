#pragma once
// One of the threads that bring blocks in and add them up: takes what is to be done next from the
// table, does it, and hands it back.
//
// Bound: one block's bytes, kept between blocks up to kBufferBytesKept, and not while there is
// nothing to do.
#include <cstddef>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "mp_server/models/block_puller.h"
#include "mp_server/models/check_worker.h"
#include "mp_server/models/pull_table.h"

namespace ems::server {

// Threading: one thread ("ems-pull-N"); blocks on the source, the disk, other servers and the
// controller.
class PullWorker final {
 public:
  static constexpr size_t kBufferBytesKept = 16 * kMiB;

  // Both must outlive it.
  PullWorker(PullTable* table, BlockPuller* blocks)
      : table_(*table), blocks_(blocks), checks_(table, blocks) {}

  // Until the table is stopped.
  void Run();

 private:
  void Take(const ModelPull::Task& task, Result<BlockPuller::Pulled> pulled);
  void Check(ModelPull::CheckTask task, std::vector<std::byte>* buffer);

  PullTable& table_;
  BlockPuller* const blocks_;
  CheckWorker checks_;
  std::string failed_check_;  // what was said of the last one; empty: it went well
};

}  // namespace ems::server
