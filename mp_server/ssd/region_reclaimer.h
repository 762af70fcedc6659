#pragma once
// Reclaims whole regions: drops their records from the index, and writes those again that clients
// have wanted since they were written.
//
// That begins before the region has to go: a record that moves is stored, and read, where it is
// until its row leads elsewhere, and the region goes only then, so nothing is a miss meanwhile and
// a crash loses nothing. What is wanted only after that look, or where the open region of the
// namespace had no room, is read into memory when the region goes, and is a miss until it is
// written.
//
// Bound: a quarter of a region, 64 MiB and 1024 records of it at most, are moved; beyond that even
// what is read goes. No garbage collection: what is dropped is the region, never a part of it.
#include <deque>
#include <functional>
#include <optional>

#include "mp_server/ssd/disk/region_log.h"
#include "mp_server/ssd/group_commit.h"
#include "mp_server/ssd/region_space.h"
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

  // What is wanted of the region that will be reclaimed for the next one begins to move into what
  // is left of the open one; once, unless that is not possible yet.
  void LookAhead(Region* open, RegionSpace* space);
  // Begins to move what is wanted of a region that will be reclaimed; it is not added to any more.
  // False: not now, some of it moves still. Cost: sorts its members.
  bool BeginMoving(Region* from);
  // The region that it comes from; null: none.
  Region* moving() const { return moving_; }
  // The next one to be written elsewhere; none: when it is asked again, or `fits` says that there
  // is no room for it, or all have been. May block: one is read. Cost: looks at kLookStep records.
  std::optional<WriteJob> NextMove(const std::function<bool(uint64_t record_bytes)>& fits);
  void EndMoving() { moving_ = nullptr; }

  // Commits what has landed, then gives the region up; no write to it, or move from it, may be
  // under way. False: the disk refuses, and the region stays for now: what was to move may lie
  // nowhere else. May block: each record that is moved is read by itself.
  bool Reclaim(Region* victim);
  // Forgets members that lie elsewhere by now, once they outnumber all others: keys that are put
  // again and again would fill memory. Cost: O(regions), and sorts and looks up the members of
  // some.
  void DropDeadMembers();
  // What is still to be written again.
  std::deque<WriteJob>& moves() { return moves_; }

 private:
  bool MayMove(const Region& region) const;
  // Reads it. False: it cannot be read any more.
  bool Read(Region* region, const ObjectName& name, const Row& row, WriteJob* job);

  RegionLog* const log_;
  SsdIndex* const index_;
  RowCommit* const commit_;
  GroupCommit* const groups_;
  WriterCounts* const counts_;
  std::deque<WriteJob> moves_;
  size_t next_with_dead_ = 0;  // of the regions
  Region* moving_ = nullptr;
  size_t next_ = 0;  // of its members, to be looked at
};

}  // namespace ems::ssd
