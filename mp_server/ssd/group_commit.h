#pragma once
// Makes written records durable: syncs regions, writes the rows of many records at once, and
// completes the tickets of the callers that wait.
//
// A row is written only after its record is on the disk and, where a caller waits for it to be
// durable, after a sync of its region. So is one that leads from a record that may be durable to
// its copy: every later sync of the index makes that row durable, whoever asked for it. An object
// whose write fails is not on the SSD, and the row of what it was to replace goes; nothing is
// retried behind the caller's back.
#include <atomic>
#include <cstdint>
#include <vector>

#include "mp_server/ssd/delete_log.h"
#include "mp_server/ssd/disk/region_log.h"
#include "mp_server/ssd/held_back.h"
#include "mp_server/ssd/region_space.h"
#include "mp_server/ssd/row_commit.h"
#include "mp_server/ssd/tier_health.h"
#include "mp_server/ssd/write_group.h"
#include "mp_server/ssd/writer_stats.h"

namespace ems::ssd {

// Threading: one thread (the tier's log thread).
class GroupCommit final {
 public:
  struct Options {  // all must outlive this
    RegionLog* log = nullptr;
    SsdIndex* index = nullptr;
    RegionIndex* rows = nullptr;
    const RegionSpace* space = nullptr;
    RowCommit* commit = nullptr;
    DeleteLog* deletes = nullptr;
    TierHealth* health = nullptr;
    WriterCounts* counts = nullptr;
    HeldBack* held_back = nullptr;
    std::atomic<uint64_t>* dirty_bytes = nullptr;
  };
  explicit GroupCommit(const Options& options) : options_(options) {}

  // Its records are on the disk; with the next Commit its objects are stored.
  void Land(WriteGroup* group) { landed_.push_back(group); }
  // They never will be. The group is free again, as after the Commit.
  void Fail(WriteGroup* group);
  // Writes rows, deletes and meta rows; for those that callers wait for, after a sync. Deletes that
  // callers wait for go ahead of syncs of regions. False: the disk has refused some of it.
  bool Commit();
  // After an error: makes the durable index what the one in memory is. An index that has failed
  // once takes no more writes, and RocksDB's own recovery cannot be relied on: it is reopened, and
  // all of it is written again, for a part of the rows may have been lost with the error, or all of
  // them with their folder. Errors: kUnavailable
  Status WriteAllAgain();

  // A job is over, as `counter` counts it.
  void End(WriteJob* job, bool ok, uint64_t WriterStats::*counter);
  // Something else has begun to count, or the key leads elsewhere by now, or nowhere.
  void EndSuperseded(WriteJob* job);

  // The ticket is finished when what is stored or pending under `name` cannot be lost any more, or
  // when there is neither.
  void WaitDurable(const ObjectName& name, TicketPtr ticket);
  // Looks whether those are there by now; what is held back of them is written. `last`: what is
  // still pending fails.
  void LookAtWaiting(bool last);
  void FailWaiting();
  bool waiting() const { return !waiting_.empty(); }

 private:
  struct Waiting {
    ObjectName name;
    TicketPtr ticket;
  };
  bool Counts(const WriteJob& job) const;
  bool IsDurable(const WriteGroup& group) const;
  bool MustSync(WriteGroup* group) const;
  bool SyncLanded();
  bool WriteRows();
  bool SyncRegion(Region* region);
  void EndGroup(WriteGroup* group, bool written);
  static void Free(WriteGroup* group);

  const Options options_;
  std::vector<WriteGroup*> landed_;  // records are on the disk, rows are not
  std::vector<Waiting> waiting_;
};

}  // namespace ems::ssd
