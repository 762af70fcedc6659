#include "mp_server/ssd/recovery.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/thread_pool.h"
#include "mp_server/ssd/disk/stored_record.h"

namespace ems::ssd {
namespace {

constexpr uint32_t kDeleteStep = 8192;
constexpr uint32_t kThreadsMax = 16;
constexpr uint64_t kRowsEach = 50'000;

bool Plausible(const Row& row, const Region& region, uint64_t region_bytes) {
  if (region.state == RegionState::kFree || row.region_sequence != region.sequence) return false;
  if (row.value_bytes > region_bytes || row.key_bytes > 64 * kKiB) return false;
  const RecordBlocks blocks(row);
  if (blocks.shape.aligned && blocks.skip != 0) return false;
  return blocks.begin >= kBlockBytes && blocks.begin + blocks.bytes() <= region_bytes;
}

// One a core, where there is work for them.
uint32_t ThreadsFor(uint64_t rows) {
  const uint64_t cores = std::clamp(std::thread::hardware_concurrency(), 1U, kThreadsMax);
  return static_cast<uint32_t>(std::min(cores, 1 + rows / kRowsEach));
}

// What one thread has found.
struct Found {
  Recovered counts;
  uint64_t region_sequence_max = 0;
  std::vector<ObjectName> stale;
  std::unordered_map<uint32_t, std::vector<Hash128>> members;  // of regions
  Status status;
};

// Walks parts of the rows until none is left.
class Walk final {
 public:
  // All must outlive it.
  Walk(const RegionIndex* rows, RegionLog* log, SsdIndex* index, uint32_t threads)
      : rows_(rows), index_(index), region_bytes_(log->options().region_bytes) {
    for (const auto& region : log->regions()) regions_[region->id] = region.get();
    parts_ = rows->Split(threads == 1 ? 1 : threads * kPartsEach);
  }

  Found Run() {
    Found found;
    while (found.status.ok()) {
      const size_t part = next_.fetch_add(1, std::memory_order_relaxed);
      if (part >= parts_.size()) break;
      found.status = rows_->ForEachIn(
          parts_[part], [&](const ObjectName& name, const Row& row) { Look(name, row, &found); },
          &found.counts.unreadable_rows);
    }
    return found;
  }

 private:
  static constexpr uint32_t kPartsEach = 4;  // so that none ends much later than the others

  void Look(const ObjectName& name, const Row& row, Found* found) const {
    if (row.sequence > kSequenceMax || row.region_sequence > kSequenceMax)
      return found->stale.push_back(name);
    found->counts.next_sequence = std::max(found->counts.next_sequence, row.sequence + 1);
    found->region_sequence_max = std::max(found->region_sequence_max, row.region_sequence);
    const auto at = regions_.find(row.region);
    const bool counts = at != regions_.end() && at->second->ns == name.ns &&
                        Plausible(row, *at->second, region_bytes_);
    if (!counts) return found->stale.push_back(name);
    index_->Load(name, row);
    found->members[row.region].push_back(name.hash);
    ++found->counts.objects;
  }

  const RegionIndex* const rows_;
  SsdIndex* const index_;
  const uint64_t region_bytes_;
  std::unordered_map<uint32_t, const Region*> regions_;
  std::vector<RegionIndex::KeyRange> parts_;
  std::atomic<size_t> next_{0};
};

// How many rows lead to each use of a region, the oldest first. Notes the largest sequence.
Result<std::map<uint64_t, uint64_t>> CountRows(const RegionIndex& rows, RegionLog* log,
                                               Recovered* noted) {
  std::map<uint64_t, uint64_t> counts;
  for (const auto& region : log->regions()) {
    if (region->state != RegionState::kFree) counts[region->sequence] = 0;
  }
  const auto count = [&](const ObjectName&, const Row& row) {
    if (row.sequence <= kSequenceMax)
      noted->next_sequence = std::max(noted->next_sequence, row.sequence + 1);
    if (const auto at = counts.find(row.region_sequence); at != counts.end()) ++at->second;
  };
  uint64_t unreadable = 0;
  EMS_RETURN_IF_ERROR(rows.ForEach(count, &unreadable));
  return counts;
}

// Deletes the rows of uses of regions before `oldest`. Synced: what takes their place may never be
// on the disk, and a power cut must not bring them back then.
Status DeleteOlderRows(uint64_t oldest, RegionIndex* rows) {
  RowBatch batch;
  Status written;
  const auto drop = [&](const ObjectName& name, const Row& row) {
    if (row.region_sequence >= oldest || !written.ok()) return;
    batch.Delete(name);
    if (batch.count() < kDeleteStep) return;
    written = rows->Write(batch, false);
    batch.Clear();
  };
  uint64_t unreadable = 0;
  EMS_RETURN_IF_ERROR(rows->ForEach(drop, &unreadable));
  EMS_RETURN_IF_ERROR(written);
  return batch.count() > 0 ? rows->Write(batch, true) : rows->SyncLog();
}

// Before any is loaded, so that the index in memory never takes more than it may.
Status DropOldest(uint64_t objects_max, RegionLog* log, RegionIndex* rows, Recovered* recovered) {
  EMS_ASSIGN_OR_RETURN(const auto counts, CountRows(*rows, log, recovered));
  uint64_t left = 0, oldest = 0;
  for (const auto& [sequence, count] : counts) left += count;
  for (const auto& [sequence, count] : counts) {
    if (left <= objects_max) break;
    left -= count;
    recovered->dropped_objects += count;
    oldest = sequence + 1;
  }
  return oldest == 0 ? OkStatus() : DeleteOlderRows(oldest, rows);
}

Status DeleteRows(const std::vector<ObjectName>& names, RegionIndex* rows) {
  RowBatch batch;
  for (size_t i = 0; i < names.size(); ++i) {
    batch.Delete(names[i]);
    if (batch.count() < kDeleteStep && i + 1 < names.size()) continue;
    EMS_RETURN_IF_ERROR(rows->Write(batch, false));
    batch.Clear();
  }
  return OkStatus();
}

}  // namespace

Result<Recovered> Recover(RegionIndex* rows, RegionLog* log, SsdIndex* index, uint32_t threads,
                          uint64_t objects_max) {
  Recovered recovered;
  const uint64_t about = rows->RowsAbout();
  if (about > objects_max) EMS_RETURN_IF_ERROR(DropOldest(objects_max, log, rows, &recovered));
  index->Reserve(std::min(about, objects_max));
  if (threads == 0) threads = ThreadsFor(about);
  Walk walk(rows, log, index, threads);
  std::vector<Found> all(threads);
  {
    std::vector<Thread> others;
    for (uint32_t i = 1; i < threads; ++i) {
      others.emplace_back("ems-ssd-load-" + std::to_string(i),
                          [&walk, found = &all[i]] { *found = walk.Run(); });
    }
    all[0] = walk.Run();
  }
  for (Found& found : all) {
    EMS_RETURN_IF_ERROR(found.status);
    recovered.objects += found.counts.objects;
    recovered.unreadable_rows += found.counts.unreadable_rows;
    recovered.stale_rows += found.stale.size();
    recovered.next_sequence = std::max(recovered.next_sequence, found.counts.next_sequence);
    log->RaiseSequence(found.region_sequence_max);  // never to be used again, as headers may say
    for (auto& [region, hashes] : found.members) {
      std::vector<Hash128>& members = log->Find(region)->members;
      const std::vector<Hash128> more = std::move(hashes);  // gone as soon as it is there
      members.insert(members.end(), more.begin(), more.end());
    }
  }
  for (const auto& region : log->regions()) {
    if (region->state == RegionState::kSealed && region->members.empty())
      log->Release(region.get());
  }
  for (const Found& found : all) EMS_RETURN_IF_ERROR(DeleteRows(found.stale, rows));
  return recovered;
}

Status WriteBack(SsdIndex* index, const RegionLog::Options& log,
                 const std::map<std::string, std::string>& metas, RegionIndex* rows) {
  RowBatch batch;
  batch.PutMeta(kStoreIdMeta, std::to_string(log.store_id));
  batch.PutMeta(kRegionBytesMeta, std::to_string(log.region_bytes));
  for (const auto& [name, value] : metas) batch.PutMeta(name, value);
  SsdIndex::Cursor cursor;
  SsdIndex::Stored some;
  while (index->SomeStored(&cursor, &some)) {
    for (const auto& [name, row] : std::exchange(some, {})) batch.Put(name, row);
    EMS_RETURN_IF_ERROR(rows->Write(batch, false));
    batch.Clear();
  }
  return rows->SyncLog();
}

}  // namespace ems::ssd
