#pragma once
// Reclaims whole regions: drops their records from the index, and reads those that clients have
// wanted since they were written, so that they are written again.
//
// Bound: a quarter of a region, 64 MiB and 1024 records of it at most, are moved; beyond that even
// what is read goes. No garbage collection: what is dropped is the region, never a part of it.
#include <deque>

#include "mp_server/ssd/disk/region_log.h"
#include "mp_server/ssd/group_commit.h"
#include "mp_server/ssd/row_commit.h"
#include "mp_server/ssd/ssd_index.h"
#include "mp_server/ssd/writer_stats.h"

namespace ems::ssd {

// Threading: one thread (the tier's log thread).
class RegionReclaimer final {
 public:
  // All must outlive this.
  RegionReclaimer(RegionLog* log, SsdIndex* index, RowCommit* commit, GroupCommit* groups,
                  WriterCounts* counts)
      : log_(log), index_(index), commit_(commit), groups_(groups), counts_(counts) {}

  // Commits what has landed, then gives the region up; no write to it may be under way. May block:
  // each record that is moved is read by itself.
  void Reclaim(Region* victim);
  // What is still to be written again, oldest first.
  std::deque<WriteJob>& moves() { return moves_; }

 private:
  // False: it cannot be read any more.
  bool Move(const Region& region, const ObjectName& name, const Row& row);

  RegionLog* const log_;
  SsdIndex* const index_;
  RowCommit* const commit_;
  GroupCommit* const groups_;
  WriterCounts* const counts_;
  std::deque<WriteJob> moves_;
};

}  // namespace ems::ssd
