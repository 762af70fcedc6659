#pragma once
// This server's part of model caching: follows the controller's list of models, and for each
// version that is prefetched or pinned brings this server's own blocks into DRAM.
//
// What is to be done follows from the list and the view alone, so nothing is lost when this server,
// another one or the controller is restarted. Bound: pulls_max blocks at a time, each with a buffer
// of its size; a version's manifest only while there is something to do for it.
#include <bitset>
#include <vector>

#include "common/ids.h"
#include "mp_server/models/block_puller.h"
#include "mp_server/models/catalog_watch.h"
#include "mp_server/models/digest_follower.h"
#include "mp_server/models/pull_reporter.h"
#include "mp_server/models/pull_table.h"

namespace ems::server {

// Threading: thread-safe.
class ModelPuller final {
 public:
  using Options = PullTable::Options;
  // Begins to follow. All pointers must outlive it.
  explicit ModelPuller(const Options& options);
  // Before the store drops the objects of slots that are lost, or come back empty: blocks of
  // versions that are being brought in are kept for a while (orphaned_blocks.h).
  // Cost: O(blocks of those versions); does not wait.
  void KeepBlocks(const std::bitset<kSlotCount>& slots);
  // After the store has dropped what was in slots that are not `kept`: they are to be brought in
  // again. Cost: as KeepBlocks.
  void LoseSlots(const std::bitset<kSlotCount>& kept);
  // Ends what is under way.
  ~ModelPuller();
  ModelPuller(const ModelPuller&) = delete;
  ModelPuller& operator=(const ModelPuller&) = delete;

 private:
  PullTable table_;
  const uint32_t workers_;
  BlockPuller blocks_;
  DigestFollower digests_;
  PullReporter reporter_;
  CatalogWatch watch_;
  std::vector<Thread> threads_;  // last: they use all of the above
};

}  // namespace ems::server
