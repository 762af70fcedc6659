// What the log thread does besides writing: gives regions up, forgets rows, and comes back to life
// when the disk has refused.
#include <algorithm>
#include <utility>

#include "common/fail_point.h"
#include "common/logging.h"
#include "mp_server/ssd/log_writer.h"
#include "mp_server/ssd/moved_object.h"

namespace ems::ssd {
namespace {

constexpr Duration kBackoffMin = std::chrono::milliseconds(500);
constexpr Duration kBackoffMax = std::chrono::seconds(10);
constexpr uint32_t kForgetStep = 8192;
// What a region hands on when it is given up, as a part of it: beyond it even what is read goes.
constexpr uint64_t kMovePart = 4;
constexpr uint64_t kMovesMax = 1024;  // each is read by itself
constexpr Duration kCountEvery = std::chrono::seconds(1);

}  // namespace

// A part of it at a time: others wait for what they have put.
void LogWriter::ForgetSome() {
  if (options_.rows->broken()) return FailHeld();
  if (forgets_.empty()) return;
  Op& op = forgets_.front();
  for (uint32_t i = 0; i < kForgetStep && !op.all_owed.empty(); ++i) {
    commit_.Delete(op.all_owed.back(), nullptr, false);
    op.all_owed.pop_back();
  }
  if (!op.all_owed.empty()) return;
  commit_.RequireSync();  // until then each of them is owed
  for (auto& [name, value] : op.metas) {
    commit_.PutMeta(name, value);
    metas_[name] = std::move(value);
  }
  for (TicketPtr& ticket : op.held) commit_.Wait(std::move(ticket));
  forgets_.pop_front();
}

LogWriter::Op* LogWriter::LastWithMetas() {
  const auto last = std::find_if(forgets_.rbegin(), forgets_.rend(),
                                 [](const Op& op) { return !op.metas.empty(); });
  return last == forgets_.rend() ? nullptr : &*last;
}

void LogWriter::FinishDurable(TicketPtr ticket) {
  if (ticket == nullptr) return;
  Op* const forget = LastWithMetas();
  if (forget != nullptr && forget->held.size() < kOpsMax) {
    forget->held.push_back(std::move(ticket));
  } else {
    Finish(ticket, forget == nullptr);
  }
}

void LogWriter::FailHeld() {
  for (Op& op : forgets_) {
    for (const TicketPtr& ticket : std::exchange(op.held, {})) Finish(ticket, false);
  }
}

void LogWriter::Reclaim(Region* victim) {
  EMS_FAIL_POINT("ssd.reclaim");
  Commit();
  const uint64_t moved_max = options_.log->options().region_bytes / kMovePart;
  uint64_t moved_bytes = 0;
  uint64_t moved = 0;
  uint64_t gone = 0;
  for (const Hash128& hash : std::exchange(victim->members, {})) {
    const ObjectName name{victim->ns, hash};
    const SsdIndex::Reclaimed it = options_.index->Reclaim(
        name, victim->sequence, moved_bytes < moved_max && moved < kMovesMax);
    if (it.fate == SsdIndex::Fate::kGone) continue;
    if (it.fate == SsdIndex::Fate::kPending) {
      if (Move(*victim, name, it.row)) {
        moved_bytes += it.row.value_bytes;
        ++moved;
        continue;
      }
      if (!options_.index->AbandonMove(name, it.row.sequence)) continue;  // it has a new value
    }
    ++gone;
    commit_.Delete({name, 0}, nullptr, false);
    if (commit_.count() >= kForgetStep) Commit();
  }
  // No ticket waits for this sync: it ends what the names are owed, or the next Put or Remove of
  // each would have to wait for one. A power cut before it does no harm: a row that comes back
  // names this use of the region, so recovery drops it once the region's header says another; until
  // then the reader compares the record, and an object that is found again is one that nobody has
  // removed.
  if (gone > 0) commit_.RequireSync();
  Commit();
  counters_.reclaimed_regions.fetch_add(1, std::memory_order_relaxed);
  counters_.reclaimed_objects.fetch_add(gone, std::memory_order_relaxed);
  EMS_FAIL_POINT("ssd.reclaimed");
  options_.log->Release(victim);
}

bool LogWriter::Move(const Region& region, const ObjectName& name, const Row& row) {
  const RegionLog::Options& log = options_.log->options();
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

void LogWriter::BackOff() {
  backoff_ = std::clamp(backoff_ * 2, kBackoffMin, kBackoffMax);
  retry_at_ = options_.clock->Now() + backoff_;
}

void LogWriter::Degrade(std::string reason) {
  if (state() == TierState::kOk) {
    EMS_LOG(kWarn, "mp_server", "SSD tier degraded, new objects stay in DRAM alone: {}", reason);
    counters_.degraded.fetch_add(1, std::memory_order_relaxed);
    BackOff();  // longer each time, until a write has gone well again
  }
  {
    auto text = reason_.Lock();
    *text = std::move(reason);
  }
  state_.store(TierState::kDegraded, std::memory_order_release);
}

// An index that has failed once takes no more writes, and RocksDB's own recovery cannot be relied
// on: it is opened anew. The index in memory stays what it is, and all of it is written again: a
// part of the rows may have been lost with the error, or all of them with their folder.
void LogWriter::Heal() {
  if (state() != TierState::kDegraded || options_.clock->Now() < retry_at_ || stopping_) return;
  Status healed;
  if (options_.rows->broken()) {
    healed = options_.rows->Reopen(true);
    if (healed.ok()) healed = RewriteRows();
  }
  if (healed.ok()) {
    for (const OwedDelete& owed : options_.index->Owed()) commit_.Delete(owed, nullptr, true);
    commit_.PutMeta("healed", "");
    commit_.RequireSync();
    healed = commit_.Write();
  }
  if (!healed.ok()) {
    BackOff();
    return Degrade(std::string(Message(healed)));
  }
  state_.store(TierState::kOk, std::memory_order_release);
  EMS_LOG(kInfo, "mp_server", "SSD tier: writing again");
}

Status LogWriter::RewriteRows() {
  RowBatch batch;
  batch.PutMeta(kStoreIdMeta, std::to_string(options_.log->options().store_id));
  batch.PutMeta(kRegionBytesMeta, std::to_string(options_.log->options().region_bytes));
  for (const auto& [name, value] : metas_) batch.PutMeta(name, value);
  for (size_t shard = 0; shard < SsdIndex::kShards; ++shard) {
    for (const auto& [name, row] : options_.index->StoredIn(shard)) batch.Put(name, row);
    EMS_RETURN_IF_ERROR(options_.rows->Write(batch, shard + 1 == SsdIndex::kShards));
    batch.Clear();
  }
  return OkStatus();
}

void LogWriter::CountDisk() {
  if (options_.clock->Now() < count_at_) return;
  count_at_ = options_.clock->Now() + kCountEvery;
  counters_.index_bytes.store(options_.rows->disk_bytes(), std::memory_order_relaxed);
}

}  // namespace ems::ssd
