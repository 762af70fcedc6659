#pragma once
// The allocation of regions to namespaces: the region that a namespace writes to next, and the
// region that is reclaimed for it.
//
// A namespace has at most its quota of regions (one at least, filled no further than the quota) and
// keeps its reservation. Beyond that the regions are shared: when none is free, the namespace
// furthest above its reservation loses one, unless the asking namespace is about as far above its
// own; then it loses one itself. Within a namespace the oldest region goes: objects that were read
// since they were written are written again, so this is an LRU order in steps of regions.
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "common/ids.h"
#include "common/status.h"
#include "mp_server/ssd/disk/region_log.h"

namespace ems::ssd {

// The limits of a namespace on this server's SSD.
struct NamespaceLimits {
  NamespaceRef ref;
  uint64_t quota_bytes = 0;  // 0: as much as the tier has
  uint64_t reserved_bytes = 0;
  // What is new survives the death of the process, not a power failure; what is deleted stays away.
  bool relaxed_sync = false;
};

// Threading: one thread (the tier's log thread).
class RegionSpace final {
 public:
  explicit RegionSpace(RegionLog* log);

  // The limits of all namespaces that there are. Those of others are treated as having none.
  void SetLimits(const std::vector<NamespaceLimits>& limits);
  bool relaxed_sync(NamespaceRef ns) const;
  // How far a region of the namespace may be filled.
  uint64_t FillLimit(NamespaceRef ns) const;

  // The region that `ns` adds records to; null: none.
  Region* OpenOf(NamespaceRef ns);
  // `region`, begun, is that from now on; one that was open before is sealed.
  void SetOpen(NamespaceRef ns, Region* region);
  void Seal(NamespaceRef ns);

  struct Choice {
    Region* region = nullptr;
    bool reclaim = false;       // it has records: give those up first
    Region* surplus = nullptr;  // one more than the quota allows: give that up, too
  };
  // Cost: looks at all regions only when none is free and no more may be made.
  // Errors: kUnavailable  wait: the one to go is still being written to, or moved from
  //   kResourceExhausted  none may go, or the disk is full and nothing is there yet
  Result<Choice> Next(NamespaceRef ns);
  // The region to reclaim next, of the namespace furthest above its reservation. Errors: as Next
  Result<Choice> NextToGo();
  // The region that Next would reclaim now, if any and if none of it is being written; changes
  // nothing. Cost: as Next.
  Region* NextVictim(NamespaceRef ns);
  uint64_t RegionsOf(NamespaceRef ns) const;
  // Namespaces that have not filled what they have reserved.
  std::set<NamespaceRef> BelowReserved();
  // Why the last attempt to make a region failed; OK: it did not.
  const Status& disk() const { return disk_; }

 private:
  uint64_t MostOf(NamespaceRef ns) const;
  // Above what another namespace must be to give a region to `ns`.
  int64_t FloorOf(NamespaceRef ns) const;
  int64_t ExcessOf(NamespaceRef ns) const;
  // Who has most above its reservation, if that is more than `most`.
  NamespaceRef FurthestAbove(NamespaceRef otherwise, int64_t most) const;
  Region* Orphan();
  Choice Give(Region* region);
  Result<Choice> OldestOf(NamespaceRef ns);
  // `open`: also regions that records are still added to.
  Region* OldestIdle(NamespaceRef ns, bool open, bool* busy);
  const NamespaceLimits* LimitsOf(NamespaceRef ns) const;

  RegionLog* const log_;
  std::map<NamespaceRef, NamespaceLimits> limits_;
  std::map<NamespaceRef, Region*> open_;
  Status disk_;
};

}  // namespace ems::ssd
