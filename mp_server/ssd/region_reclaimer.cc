#include "mp_server/ssd/region_reclaimer.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/fail_point.h"
#include "mp_server/ssd/moved_object.h"

namespace ems::ssd {
namespace {

constexpr uint64_t kMovePart = 4;
constexpr uint64_t kMovesMax = 1024;
constexpr uint64_t kMovedBytesMax = 64 * kMiB;  // they are in memory until they are written again

}  // namespace

void RegionReclaimer::Reclaim(Region* victim) {
  EMS_FAIL_POINT("ssd.reclaim");
  groups_->Commit();
  EMS_CHECK(victim->writes_under_way == 0, "region {} is reclaimed with {} writes under way",
            victim->id, victim->writes_under_way);
  const uint64_t moved_max = std::min(log_->options().region_bytes / kMovePart, kMovedBytesMax);
  uint64_t moved_bytes = 0;
  uint64_t moved = 0;
  uint64_t gone = 0;
  for (const Hash128& hash : std::exchange(victim->members, {})) {
    const ObjectName name{victim->ns, hash};
    const SsdIndex::Reclaimed it =
        index_->Reclaim(name, victim->sequence, moved_bytes < moved_max && moved < kMovesMax);
    if (it.fate == SsdIndex::Fate::kGone) continue;
    if (it.fate == SsdIndex::Fate::kPending) {
      if (Move(*victim, name, it.row)) {
        moved_bytes += it.row.value_bytes;
        ++moved;
        continue;
      }
      if (!index_->AbandonMove(name, it.row.sequence)) continue;  // it has a new value
    }
    ++gone;
    commit_->Delete({name, 0}, nullptr, false);
    if (commit_->count() >= DeleteLog::kDeletesStep) groups_->Commit();
  }
  // No ticket waits for this sync: it ends what the names are owed, or the next Put or Remove of
  // each would have to wait for one. A power cut before it does no harm: a row that comes back
  // names this use of the region, so recovery drops it once the region's header says another; until
  // then the reader compares the record, and an object that is found again is one that nobody has
  // removed.
  if (gone > 0) commit_->RequireSync();
  groups_->Commit();
  counts_->Add(&WriterStats::reclaimed_regions);
  counts_->Add(&WriterStats::reclaimed_objects, gone);
  EMS_FAIL_POINT("ssd.reclaimed");
  log_->Release(victim);
}

bool RegionReclaimer::Move(const Region& region, const ObjectName& name, const Row& row) {
  const RegionLog::Options& log = log_->options();
  Result<std::unique_ptr<DirtyObject>> object =
      MovedObject::Read(log.files, region.fd.get(), log.store_id, name, row);
  if (!object.ok()) return false;
  WriteJob job;
  job.name = name;
  job.sequence = row.sequence;
  job.value_bytes = row.value_bytes;
  job.moved = true;
  job.object = *std::move(object);
  moves_.push_back(std::move(job));
  return true;
}

}  // namespace ems::ssd
