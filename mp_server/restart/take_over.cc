#include "mp_server/restart/take_over.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/check.h"
#include "common/logging.h"
#include "mp_server/memory/slab_placement.h"
#include "mp_server/store/namespace_store.h"
#include "proto/shm_layout.h"

namespace ems::server {
namespace {

// The record's file is the one that cannot be written to.
Result<HandOver> ReadRecord(const std::vector<fabric::Fd>& fds) {
  if (fds.empty()) return Error(StatusCode::kNotFound, "nothing was handed over");
  for (const fabric::Fd& fd : fds) {
    const int seals = ::fcntl(fd.get(), F_GET_SEALS);
    constexpr int kNeeded = F_SEAL_WRITE | F_SEAL_SHRINK;
    struct stat file {};
    if (seals < 0 || (seals & kNeeded) != kNeeded || ::fstat(fd.get(), &file) != 0) continue;
    const auto bytes = static_cast<uint64_t>(file.st_size);
    if (bytes == 0) break;
    void* const map = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (map == MAP_FAILED) break;
    Result<HandOver> record = HandOver::Decode({static_cast<const std::byte*>(map), bytes});
    ::munmap(map, bytes);
    return record;
  }
  return Error(StatusCode::kDataLoss, "{} descriptors without a record", fds.size());
}

Status CheckExpected(const HandOverHead& head, const TakeOver::Expected& expected) {
  const auto other = [](std::string_view what) {
    return Error(StatusCode::kFailedPrecondition, "the record is of another {}", what);
  };
  // 0: the process before did not stop in order, or another one has begun with what it left.
  if (expected.number == 0 || head.number != expected.number) return other("stop, or was used");
  if (head.folder_id != expected.folder_id || head.folder_id == 0) return other("data_dir");
  if (ClusterId(head.cluster) != expected.cluster || head.cluster == 0) return other("cluster");
  if (head.lineage == 0) return other("kind of server");
  if (ViewVersion::FromPacked(head.highest_view) != expected.highest.version ||
      head.highest_fingerprint != expected.highest.fingerprint)
    return other("view: a process has run in between");
  if (head.tier_mark != expected.tier_mark) return other("SSD tier");
  return OkStatus();
}

// What the record says beyond the header's own checks.
bool IsTrue(const ObjectEntry& entry, const ObjectHeader& header, const HandOverHead& head,
            const NamespaceStore& store) {
  return header.boot_id == head.pool_boot_id && header.version == shm::kObjectHeaderVersion &&
         header.namespace_generation == store.ref().generation && header.slot == entry.slot &&
         header.key_offset == static_cast<uint64_t>(entry.key_data - entry.head) &&
         header.payload_offset == static_cast<uint64_t>(entry.payload - entry.head) &&
         store.HashOf(entry.key()) == entry.hash;
}

}  // namespace

TakeOver::TakeOver(HandOver record) : record_(std::move(record)) {
  kept_.set();
  before_ = granted();
}

TakeOver::~TakeOver() {
  EMS_CHECK(bytes() == 0, "{} bytes that were handed over belong to nobody", bytes());
}

Result<std::unique_ptr<TakeOver>> TakeOver::Begin(std::vector<fabric::Fd> fds,
                                                  const Expected& expected) {
  EMS_ASSIGN_OR_RETURN(HandOver record, ReadRecord(fds));
  EMS_RETURN_IF_ERROR(CheckExpected(record.head, expected));
  std::map<std::pair<uint64_t, uint64_t>, fabric::Fd*> files;
  for (fabric::Fd& fd : fds) {
    struct stat file {};
    if (::fstat(fd.get(), &file) == 0) files[{file.st_dev, file.st_ino}] = &fd;
  }
  std::vector<std::unique_ptr<Segment>> segments;
  for (const SegmentRow& row : record.segments) {
    const auto file = files.find({row.device, row.inode});
    if (file == files.end())
      return Error(StatusCode::kDataLoss, "segment {} is not among {} descriptors", row.id,
                   fds.size());
    const auto kind = static_cast<fabric::PageKind>(row.page_kind);
    if (expected.huge_pages == HugePages::kRequire && kind != fabric::PageKind::kHugetlb)
      return Error(StatusCode::kFailedPrecondition, "its pages are small, huge ones are required");
    auto segment = std::make_unique<Segment>();
    segment->id = row.id;
    EMS_ASSIGN_OR_RETURN(segment->memory,
                         fabric::ShmSegment::Adopt(std::move(*file->second), row.bytes, kind));
    files.erase(file);
    EMS_ASSIGN_OR_RETURN(fabric::Fd read_only, segment->memory.OpenReadOnly());
    segment->read_only = std::make_shared<const fabric::Fd>(std::move(read_only));
    segments.push_back(std::move(segment));
  }
  std::unique_ptr<TakeOver> taken(new TakeOver(std::move(record)));
  taken->segments_ = std::move(segments);
  return taken;
}

uint64_t TakeOver::bytes() const {
  uint64_t bytes = 0;
  for (const auto& segment : segments_) bytes += segment == nullptr ? 0 : segment->size_bytes();
  return bytes;
}

uint32_t TakeOver::next_segment_id() const {
  uint32_t id = 1;
  for (const SegmentRow& row : record_.segments) id = std::max(id, row.id + 1);
  return id;
}

ssd::GrantRecord TakeOver::granted() const {
  return {ViewVersion::FromPacked(record_.head.view), record_.head.history, 0};
}

void TakeOver::Expect(const ssd::SlotGrant& next) {
  kept_ &= next.Kept(std::exchange(before_, next.Record(0)));
  expects_ = true;
}

void TakeOver::Drop(SegmentPool* pool) {
  for (auto& segment : segments_) {
    if (segment != nullptr) pool->Release(std::move(segment));
  }
}

TakeOver::Taken TakeOver::Adopt(const NamespaceTable& table, ObjectStore* store,
                                SegmentPool* pool) {
  EMS_CHECK(expects_, "nobody has said which slots are kept");
  Taken taken;
  uint64_t run = 0, object = 0;
  for (const NamespaceRow& row : record_.namespaces) {
    const auto known = table.by_id.find(NamespaceId(row.id));
    // A name may have come back; this very namespace has not.
    if (known != table.by_id.end() &&
        known->second.ref == NamespaceRef{NamespaceId(row.id), row.generation}) {
      const std::shared_ptr<NamespaceStore> prepared = store->Prepare(known->second);
      AdoptNamespace(row, run, object, prepared.get(), pool, &taken);
      store->Enter(prepared);
    }
    run += row.runs;
    object += row.objects;
  }
  taken.dropped = record_.objects.size() - taken.objects;
  Drop(pool);
  record_.objects.clear();
  return taken;
}

// The record lists them from the coldest on, and so they are linked; which of them there is room
// for is seen from the other end.
std::vector<bool> TakeOver::Choose(const NamespaceRow& row, uint64_t object,
                                   NamespaceStore& store) const {
  const uint64_t limit = store.objects().quota().limit();
  const uint64_t bytes_max = limit == 0 ? UINT64_MAX : limit;
  const uint64_t objects_max = store.room().objects_max();
  std::vector<bool> chosen(row.objects, false);
  uint64_t bytes = 0, count = 0;
  for (uint64_t i = row.objects; i-- > 0 && count < objects_max;) {
    const ObjectRow& one = record_.objects[object + i];
    if (!kept_[one.slot]) continue;
    if (one.value_bytes > bytes_max - bytes) break;
    chosen[i] = true;
    bytes += one.value_bytes;
    ++count;
  }
  return chosen;
}

void TakeOver::AdoptNamespace(const NamespaceRow& row, uint64_t run, uint64_t object,
                              NamespaceStore* store, SegmentPool* pool, Taken* taken) {
  NamespaceObjects& objects = store->objects();
  const int64_t now_ns = store->clock().Now().time_since_epoch().count();
  store->SkipGenerations(row.newest_generation);
  const std::vector<bool> chosen = Choose(row, object, *store);
  std::vector<bool> used(row.runs, false);
  for (uint64_t i = 0; i < row.objects; ++i)
    if (chosen[i]) used[record_.objects[object + i].run - run] = true;
  SlabPlacement placement(&objects.slabs());
  std::vector<PageRuns::Page*> placed(row.runs, nullptr);
  for (uint64_t i = 0; i < row.runs; ++i) {
    if (!used[i]) continue;
    const RunRow& laid = record_.runs[run + i];
    const uint32_t id = record_.segments[laid.segment].id;
    if (auto& segment = segments_[laid.segment]; segment != nullptr)
      objects.slabs().Add(std::move(segment));
    placed[i] = placement.Place(
        {id, laid.first_page, laid.pages, laid.chunks, static_cast<uint8_t>(laid.size_class)});
  }
  for (uint64_t i = object; i < object + row.objects; ++i) {
    const ObjectRow& one = record_.objects[i];
    PageRuns::Page* const page = placed[one.run - run];
    if (!chosen[i - object] || page == nullptr || !objects.quota().TryCharge(one.value_bytes))
      continue;
    ObjectEntry* const entry = objects.entries().Take(store->room().objects_max());
    if (entry == nullptr ||
        !placement.PlaceIn(page, uint64_t{one.offset_units} * shm::kOffsetUnit, entry)) {
      if (entry != nullptr) objects.entries().Give(entry);
      objects.quota().Refund(one.value_bytes);
      continue;
    }
    entry->hash = {one.hash_lo, one.hash_hi};
    entry->generation = one.generation;
    entry->value_bytes = one.value_bytes;
    entry->checksum = one.checksum;
    entry->key_bytes = one.key_bytes;
    entry->slot = one.slot;
    entry->linked_ns = std::min(one.linked_ns, now_ns);
    entry->settling.store(false, std::memory_order_relaxed);
    entry->holds.store(1, std::memory_order_relaxed);
    const Footprint footprint = SizeClasses::Get().For(one.value_bytes, one.key_bytes);
    if (footprint.is_run()) entry->payload = entry->head + footprint.head_bytes;
    Arrange(entry);
    ObjectHeader* const header = entry->header();
    bool good =
        HeaderMatches(*entry, store->ref().id) && IsTrue(*entry, *header, record_.head, *store);
    if (good) {
      // Readers that this process does not know still have the memory: to them it is no object.
      header->boot_id = pool->boot_id();
      header->header_checksum = HeaderChecksum(*header);
      good = objects.index().Adopt(entry, std::min(one.touched_ns, now_ns));
    }
    if (!good) {
      if (footprint.is_run()) placed[one.run - run] = nullptr;  // goes with it
      objects.Drop(entry, 1);
      continue;
    }
    ++taken->objects;
    taken->value_bytes += one.value_bytes;
  }
  for (PageRuns::Page* const page : placed)
    if (page != nullptr) placement.Settle(page);
  objects.ReleaseEmpty(0);
}

}  // namespace ems::server
