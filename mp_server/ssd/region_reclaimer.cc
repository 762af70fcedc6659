#include "mp_server/ssd/region_reclaimer.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/fail_point.h"
#include "mp_server/ssd/moved_object.h"

namespace ems::ssd {
namespace {

constexpr uint64_t kMovePart = 4;
constexpr uint64_t kMovesMax = 1024;
constexpr uint64_t kMovedBytesMax = 64 * kMiB;  // they are in memory until they are written again
constexpr size_t kLookStep = 1024;
constexpr uint64_t kDeadMembersMax = 1 << 16;  // beside as many as there are objects
constexpr uint64_t kLookForDeadMax = 1 << 19;  // at once: about a tenth of a second

void DropRepeats(std::vector<Hash128>* members) {
  std::sort(members->begin(), members->end());
  members->erase(std::unique(members->begin(), members->end()), members->end());
}

void DropDead(const Region& region, SsdIndex* index, std::vector<Hash128>* members) {
  DropRepeats(members);
  std::erase_if(*members, [&](const Hash128& hash) {
    const SsdIndex::Found found = index->Find({region.ns, hash}, false);
    return !found.stored || found.row.region_sequence != region.sequence;
  });
  members->shrink_to_fit();
}

}  // namespace

bool RegionReclaimer::MayMove(const Region& region) const {
  const uint64_t bytes_max = std::min(log_->options().region_bytes / kMovePart, kMovedBytesMax);
  return region.moved_bytes < bytes_max && region.moved_objects < kMovesMax;
}

void RegionReclaimer::LookAhead(Region* open, RegionSpace* space) {
  if (open->looked_ahead || moving_ != nullptr) return;
  Region* const next = space->NextVictim(open->ns);
  open->looked_ahead = next == nullptr || BeginMoving(next);
}

bool RegionReclaimer::BeginMoving(Region* from) {
  if (from->moves_under_way > 0) return false;
  DropRepeats(&from->members);  // each moves once
  moving_ = from;
  next_ = 0;
  return true;
}

std::optional<WriteJob> RegionReclaimer::NextMove(
    const std::function<bool(uint64_t record_bytes)>& fits) {
  for (size_t looked = 0; moving_ != nullptr; ++looked) {
    if (next_ == moving_->members.size() || !MayMove(*moving_)) break;
    if (looked == kLookStep) return std::nullopt;
    const ObjectName name{moving_->ns, moving_->members[next_++]};
    const std::optional<Row> row = index_->Wanted(name, moving_->sequence);
    if (!row) continue;
    if (!fits(RecordShape(row->value_bytes, row->key_bytes).record_bytes())) break;
    WriteJob job;
    if (!Read(moving_, name, *row, &job)) return std::nullopt;  // whoever reads it drops it
    job.from = moving_;
    ++moving_->moves_under_way;
    return job;
  }
  EndMoving();
  return std::nullopt;
}

void RegionReclaimer::DropDeadMembers() {
  const auto& regions = log_->regions();
  uint64_t members = 0, looked = 0;
  for (const auto& region : regions) members += region->members.size();
  const uint64_t most = 2 * index_->objects() + kDeadMembersMax;
  for (size_t i = 0; i < regions.size() && members > most && looked < kLookForDeadMax; ++i) {
    Region* const region = regions[next_with_dead_++ % regions.size()].get();
    if (region == moving_) continue;  // its members are being counted off
    looked += region->members.size();
    members -= region->members.size();
    DropDead(*region, index_, &region->members);
    DropDead(*region, index_, &region->unsynced_members);
    members += region->members.size();
  }
}

bool RegionReclaimer::Reclaim(Region* victim) {
  EMS_FAIL_POINT("ssd.reclaim");
  if (!groups_->Commit()) return false;
  EMS_CHECK(victim->writes_under_way == 0 && victim->moves_under_way == 0,
            "region {} is reclaimed with {} writes and {} moves under way", victim->id,
            victim->writes_under_way, victim->moves_under_way);
  if (moving_ == victim) EndMoving();
  uint64_t gone = 0;
  for (const Hash128& hash : std::exchange(victim->members, {})) {
    const ObjectName name{victim->ns, hash};
    const SsdIndex::Reclaimed it = index_->Reclaim(name, victim->sequence, MayMove(*victim));
    if (it.fate == SsdIndex::Fate::kGone) continue;
    if (it.fate == SsdIndex::Fate::kPending) {
      WriteJob job;
      if (Read(victim, name, it.row, &job)) {
        job.moved = true;
        moves_.push_back(std::move(job));
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
  // removed. The rows of what has moved on are durable with this sync, so those that lead here may
  // go.
  if (gone > 0 || victim->moved_objects > 0) commit_->RequireSync();
  if (!groups_->Commit()) return false;
  counts_->Add(&WriterStats::reclaimed_regions);
  counts_->Add(&WriterStats::reclaimed_objects, gone);
  EMS_FAIL_POINT("ssd.reclaimed");
  log_->Release(victim);
  return true;
}

bool RegionReclaimer::Read(Region* region, const ObjectName& name, const Row& row, WriteJob* job) {
  const RegionLog::Options& log = log_->options();
  ++region->moved_objects;  // also those that cannot be read: each takes its time
  Result<std::unique_ptr<DirtyObject>> object =
      MovedObject::Read(log.files, region->fd.get(), log.store_id, name, row);
  if (!object.ok()) return false;
  job->name = name;
  job->sequence = row.sequence;
  job->value_bytes = row.value_bytes;
  job->object = *std::move(object);
  region->moved_bytes += row.value_bytes;
  return true;
}

}  // namespace ems::ssd
