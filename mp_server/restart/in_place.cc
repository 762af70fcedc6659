#include "mp_server/restart/in_place.h"

#include <sys/stat.h>

#include <array>
#include <chrono>
#include <span>
#include <utility>

#include "common/hash.h"
#include "common/logging.h"
#include "common/random_id.h"

namespace ems::server {
namespace {

// Differs after each process that has opened the tier in this folder: RocksDB writes that file anew
// each time. 0: there is none.
uint64_t TierMark(const std::string& folder) {
  struct stat file {};
  if (folder.empty() || ::stat((folder + "/index/CURRENT").c_str(), &file) != 0) return 0;
  const std::array<uint64_t, 3> facts = {file.st_ino, static_cast<uint64_t>(file.st_mtim.tv_sec),
                                         static_cast<uint64_t>(file.st_mtim.tv_nsec)};
  return Hash64(std::as_bytes(std::span(facts)), 0x74696572) | 1;
}

double SecondsSince(TimePoint began) {
  return std::chrono::duration<double>(Clock::System().Now() - began).count();
}

int64_t UnixMs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

}  // namespace

InPlace::InPlace(Options options, DataDir* dir) : options_(std::move(options)), dir_(dir) {
  const TimePoint began = Clock::System().Now();
  // First, and in any case: what is not taken now is not taken by a later process either.
  TakeOver::Expected expected;
  expected.number = dir->TakeHandOver();
  std::vector<fabric::Fd> fds;
  if (options_.fds != nullptr) fds = options_.fds->Take();
  if (!on() || (fds.empty() && expected.number == 0)) {
    if (!fds.empty()) EMS_LOG(kInfo, "mp_server", "cold start: restart.in_place is false");
    return;
  }
  expected.folder_id = dir->folder_id();
  expected.cluster = dir->cluster();
  expected.highest = dir->highest_view();
  expected.tier_mark = TierMark(options_.tier_folder);
  expected.huge_pages = options_.huge_pages;
  auto taken = TakeOver::Begin(std::move(fds), expected);
  if (!taken.ok()) {
    EMS_LOG(kWarn, "mp_server", "cold start: {}", Message(taken.status()));
    return;
  }
  taken_ = *std::move(taken);
  EMS_LOG(kInfo, "mp_server", "handed over from={} bytes={} objects={} ago_ms={} ms={:.0f}",
          options_.fds->name(), FormatBytes(taken_->bytes()), taken_->head().objects,
          UnixMs() - taken_->head().unix_ms, 1e3 * SecondsSince(began));
}

void InPlace::Prepare(const fabric::NumaNodes& nodes, SegmentPool::Options* pool) const {
  if (!on()) return;
  pool->create = [nodes](uint64_t bytes, HugePages huge_pages) {
    return fabric::ShmSegment::CreateOn(nodes, bytes, huge_pages, fabric::Writers::kSuccessor);
  };
  if (taken_ == nullptr) return;
  pool->adopted_bytes = taken_->bytes();
  pool->first_id = taken_->next_segment_id();
}

uint64_t InPlace::Lineage(uint64_t lineage, SegmentPool* pool) {
  if (lineage == 0 && on() && options_.tier_folder.empty()) {
    // Without a tier the lineage is the memory's: another one with each cold start.
    lineage = taken_ != nullptr ? taken_->head().lineage : RandomId();
    dir_->UseLineageOfMemory(lineage);
  }
  if (taken_ != nullptr && taken_->head().lineage != lineage) {
    EMS_LOG(kWarn, "mp_server", "cold start: the SSD tier is not that of the process before");
    Drop(pool);
  }
  return lineage;
}

TakeOver::Taken InPlace::Adopt(const NamespaceTable& table, ObjectStore* store, SegmentPool* pool) {
  const TimePoint began = Clock::System().Now();
  const uint64_t bytes = taken_->bytes();
  const TakeOver::Taken taken = taken_->Adopt(table, store, pool);
  taken_.reset();
  seconds_ = SecondsSince(began);
  EMS_LOG(kInfo, "mp_server",
          "took over {} objects, {} in {:.0f} ms dropped_objects={} memory={} view={}",
          taken.objects, FormatBytes(taken.value_bytes), 1e3 * seconds_, taken.dropped,
          FormatBytes(bytes), table.version);
  return taken;
}

void InPlace::Drop(SegmentPool* pool) {
  if (taken_ == nullptr) return;
  taken_->Drop(pool);
  taken_.reset();
}

bool InPlace::HandOver(const ObjectStore& store, const ssd::GrantRecord& granted, NodeId node,
                       uint64_t pool_boot_id) {
  const TimePoint began = Clock::System().Now();
  // What was handed to this process and never taken over is no one's.
  if (!on() || taken_ != nullptr || granted.view == ViewVersion() || dir_->lineage() == 0)
    return false;
  HandOverHead head;
  head.node_id = node.value();
  head.number = RandomId();
  head.folder_id = dir_->folder_id();
  head.cluster = dir_->cluster().value();
  head.lineage = dir_->lineage();
  head.view = granted.view.packed();
  head.history = granted.history;
  head.highest_view = dir_->highest_view().version.packed();
  head.highest_fingerprint = dir_->highest_view().fingerprint;
  head.pool_boot_id = pool_boot_id;
  head.tier_mark = TierMark(options_.tier_folder);
  head.unix_ms = UnixMs();
  const Result<HandedOver> sealed = Seal(store, head, options_.fds.get());
  const Status done = sealed.ok() ? dir_->SetHandOver(head.number) : sealed.status();
  if (!done.ok()) {
    EMS_LOG(kWarn, "mp_server", "nothing is handed over, the next start is cold: {}",
            Message(done));
    return false;
  }
  EMS_LOG(kInfo, "mp_server",
          "handed over {} objects, {} in {:.0f} ms to={} segments={} left_with_clients={}",
          sealed->objects, FormatBytes(sealed->value_bytes), 1e3 * SecondsSince(began),
          options_.fds->name(), sealed->segments, sealed->left_segments);
  return true;
}

}  // namespace ems::server
