#pragma once
// Fills the index in memory from the durable one, at the start.
//
// A row counts when its region still has the use that the row names; the others are stale and
// dropped. No record is read here: each is checked when it is first read. Cost: about 1 µs a row.
#include "common/status.h"
#include "mp_server/ssd/disk/region_index.h"
#include "mp_server/ssd/disk/region_log.h"
#include "mp_server/ssd/ssd_index.h"

namespace ems::ssd {

struct Recovered {
  uint64_t objects = 0;
  uint64_t stale_rows = 0;
  uint64_t unreadable_rows = 0;
  uint64_t next_sequence = 1;  // larger than that of every Put so far
};

// Fills `index` and the regions' members; regions without any become free. Nobody else may use the
// three meanwhile. Errors: kDataLoss  the durable index cannot be walked    kUnavailable
Result<Recovered> Recover(RegionIndex* rows, RegionLog* log, SsdIndex* index);

}  // namespace ems::ssd
