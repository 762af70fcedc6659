#pragma once
// Fills the index in memory from the durable one, at the start, and the durable one from that in
// memory after an error.
//
// A row counts when its region still has the use that the row names; the others are stale and
// dropped. No record is read here: each is checked when it is first read. Cost: about 1 µs a row
// and thread.
#include <cstdint>
#include <map>
#include <string>

#include "common/status.h"
#include "mp_server/ssd/disk/region_index.h"
#include "mp_server/ssd/disk/region_log.h"
#include "mp_server/ssd/ssd_index.h"

namespace ems::ssd {

struct Recovered {
  uint64_t objects = 0;
  uint64_t stale_rows = 0;
  uint64_t unreadable_rows = 0;
  uint64_t dropped_objects = 0;  // of the oldest regions: there was no room for them
  uint64_t next_sequence = 1;    // larger than that of every Put so far
};

// Fills `index` and the regions' members; regions without any become free. Nobody else may use the
// three meanwhile. Blocks; `threads` work, the caller's among them (0: one a core, 16
// at most, where there are rows enough; "ems-ssd-load-N"). Where there are more than `objects_max`
// rows, those of the oldest regions are deleted first, durably: they are misses from then on.
// Cost of that: two more walks by one thread, and no memory.
// Errors: kDataLoss  the durable index cannot be walked    kUnavailable
Result<Recovered> Recover(RegionIndex* rows, RegionLog* log, SsdIndex* index, uint32_t threads = 0,
                          uint64_t objects_max = UINT64_MAX);

// The other way round, for a durable index that has lost some of its rows or all: writes all that
// is stored, and the meta rows, and syncs them. Nothing may be added to `index` meanwhile. Blocks.
// Errors: kUnavailable  the disk refuses
Status WriteBack(SsdIndex* index, const RegionLog::Options& log,
                 const std::map<std::string, std::string>& metas, RegionIndex* rows);

}  // namespace ems::ssd
