#include "mp_server/ssd/recovery.h"

#include <algorithm>
#include <vector>

#include "mp_server/ssd/disk/stored_record.h"

namespace ems::ssd {
namespace {

constexpr uint32_t kDeleteStep = 8192;

bool Plausible(const Row& row, const Region& region, uint64_t region_bytes) {
  if (region.state == RegionState::kFree || row.region_sequence != region.sequence) return false;
  if (row.value_bytes > region_bytes || row.key_bytes > 64 * kKiB) return false;
  const RecordBlocks blocks(row);
  if (blocks.shape.aligned && blocks.skip != 0) return false;
  return blocks.begin >= kBlockBytes && blocks.begin + blocks.bytes() <= region_bytes;
}

}  // namespace

Result<Recovered> Recover(RegionIndex* rows, RegionLog* log, SsdIndex* index) {
  Recovered recovered;
  std::vector<ObjectName> stale;
  const uint64_t region_bytes = log->options().region_bytes;
  EMS_RETURN_IF_ERROR(rows->ForEach(
      [&](const ObjectName& name, const Row& row) {
        if (row.sequence > kSequenceMax || row.region_sequence > kSequenceMax) {
          stale.push_back(name);
          return;
        }
        recovered.next_sequence = std::max(recovered.next_sequence, row.sequence + 1);
        log->RaiseSequence(
            row.region_sequence);  // never to be used again, whatever the headers say
        Region* const at = log->Find(row.region);
        const bool counts = at != nullptr && at->ns == name.ns && Plausible(row, *at, region_bytes);
        if (!counts) {
          stale.push_back(name);
          return;
        }
        index->Load(name, row);
        at->members.push_back(name.hash);
        ++recovered.objects;
      },
      &recovered.unreadable_rows));
  for (const auto& region : log->regions()) {
    if (region->state == RegionState::kSealed && region->members.empty())
      log->Release(region.get());
  }
  recovered.stale_rows = stale.size();
  RowBatch batch;
  for (size_t i = 0; i < stale.size(); ++i) {
    batch.Delete(stale[i]);
    if (batch.count() < kDeleteStep && i + 1 < stale.size()) continue;
    EMS_RETURN_IF_ERROR(rows->Write(batch, false));
    batch.Clear();
  }
  return recovered;
}

}  // namespace ems::ssd
