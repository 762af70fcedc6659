#include "mp_server/restart/hand_over.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bitset>
#include <cerrno>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "common/full_fence.h"
#include "mp_server/memory/slab_placement.h"
#include "mp_server/store/namespace_store.h"
#include "proto/shm_layout.h"

namespace ems::server {
namespace {

using Laid = SlabPlacement::Laid;

// A file with the record that nobody can write to any more.
Result<fabric::Fd> WriteRecord(HandOver* record) {
  const uint64_t bytes = record->size_bytes();
  fabric::Fd fd(::memfd_create("ems-hand-over", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return Error(StatusCode::kResourceExhausted, "a record of {}: {}", FormatBytes(bytes),
                 fabric::ErrnoText(errno));
  // Before it is touched: where there is no memory for it, this says so.
  if (::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)) != 0)
    return Error(StatusCode::kResourceExhausted, "no memory for a record of {}",
                 FormatBytes(bytes));
  void* const map = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED)
    return Error(StatusCode::kResourceExhausted, "mapping a record: {}", fabric::ErrnoText(errno));
  record->Encode({static_cast<std::byte*>(map), bytes});
  ::munmap(map, bytes);
  constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return Error(StatusCode::kInternal, "sealing a record: {}", fabric::ErrnoText(errno));
  return fd;
}

// Collects one namespace after the other. Threading: one thread.
class Collector final {
 public:
  Status Add(NamespaceStore* store);
  HandOver* record() { return &record_; }
  std::vector<int>* fds() { return &fds_; }
  HandedOver* counts() { return &counts_; }

 private:
  Result<uint32_t> RowOf(const Segment& segment);

  HandOver record_;
  std::vector<int> fds_;  // of the segments' rows
  HandedOver counts_;
};

Result<uint32_t> Collector::RowOf(const Segment& segment) {
  struct stat file {};
  if (::fstat(segment.memory.fd(), &file) != 0)
    return Error(StatusCode::kInternal, "segment {}: {}", segment.id, fabric::ErrnoText(errno));
  record_.segments.push_back({.device = file.st_dev,
                              .inode = file.st_ino,
                              .bytes = segment.size_bytes(),
                              .id = segment.id,
                              .page_kind = static_cast<uint32_t>(segment.memory.page_kind())});
  fds_.push_back(segment.memory.fd());
  return static_cast<uint32_t>(record_.segments.size() - 1);
}

Status Collector::Add(NamespaceStore* store) {
  NamespaceObjects& objects = store->objects();
  // What is kept for other owners of its slots stays behind; a client may look at it still.
  DropKept(&objects, std::bitset<kSlotCount>().set());
  objects.FreeRetired();
  // Again: until the last thread had gone a shard's word may have been written.
  objects.sharing().Shut();
  // Nothing writes from here on; what is dropped later leaves the bytes alone.
  objects.Abandon();
  std::map<uint32_t, const Segment*> segments;
  for (const Segment* segment : objects.slabs().Segments()) {
    EMS_RETURN_IF_ERROR(segment->memory.Protect());
    segments[segment->id] = segment;
  }
  std::vector<const ObjectEntry*> linked;
  objects.index().Visit([&](const ObjectEntry& entry) { linked.push_back(&entry); });
  // A segment that a client looks into is not written to again, by nobody, as long as it may look.
  const std::vector<uint64_t> named = objects.sharing().Named();
  std::set<uint32_t> left;
  objects.sharing().VisitRetired(
      [&](const ObjectEntry& entry) { left.insert(shm::SegmentOf(entry.location)); });
  for (const ObjectEntry* entry : linked) {
    if (std::binary_search(named.begin(), named.end(), entry->generation))
      left.insert(shm::SegmentOf(entry->location));
  }
  counts_.left_segments += left.size();
  std::erase_if(linked, [&](const ObjectEntry* entry) {
    return left.contains(shm::SegmentOf(entry->location)) ||
           entry->settling.load(std::memory_order_acquire);
  });
  if (linked.empty()) return OkStatus();
  std::sort(linked.begin(), linked.end(), [](const ObjectEntry* a, const ObjectEntry* b) {
    return a->touched_ns.load(std::memory_order_relaxed) <
           b->touched_ns.load(std::memory_order_relaxed);
  });
  SlabPlacement placement(&objects.slabs());
  std::map<Laid, uint32_t> runs;
  for (const ObjectEntry* entry : linked) runs[placement.RunOf(*entry)] = 0;
  NamespaceRow ns{.id = store->ref().id.value(),
                  .generation = store->ref().generation,
                  .newest_generation = store->newest_generation(),
                  .runs = runs.size(),
                  .objects = linked.size()};
  uint32_t last = 0, row = 0;
  for (auto& [laid, number] : runs) {
    if (laid.segment != last) {
      EMS_ASSIGN_OR_RETURN(row, RowOf(*segments.at(laid.segment)));
      last = laid.segment;
    }
    number = static_cast<uint32_t>(record_.runs.size());
    record_.runs.push_back({.segment = row,
                            .first_page = laid.first_page,
                            .pages = laid.pages,
                            .chunks = laid.chunks,
                            .size_class = laid.size_class});
  }
  for (const ObjectEntry* entry : linked) {
    record_.objects.push_back({.run = runs.at(placement.RunOf(*entry)),
                               .offset_units = static_cast<uint32_t>(entry->location),
                               .generation = entry->generation,
                               .hash_lo = entry->hash.lo,
                               .hash_hi = entry->hash.hi,
                               .value_bytes = entry->value_bytes,
                               .checksum = entry->checksum,
                               .touched_ns = entry->touched_ns.load(std::memory_order_relaxed),
                               .linked_ns = entry->linked_ns,
                               .key_bytes = entry->key_bytes,
                               .slot = entry->slot});
    counts_.value_bytes += entry->value_bytes;
  }
  record_.namespaces.push_back(ns);
  counts_.objects += linked.size();
  return OkStatus();
}

}  // namespace

void ShutSharing(const ObjectStore& store) {
  for (const auto& one : store.Stores()) one->sharing().Shut();
  FullFence();
}

Result<HandedOver> Seal(const ObjectStore& store, const HandOverHead& head, FdStore* fds) {
  Collector collector;
  for (const auto& one : store.Stores()) {
    if (!one->closed()) EMS_RETURN_IF_ERROR(collector.Add(one.get()));
  }
  HandOver* const record = collector.record();
  record->head = head;
  record->head.layout = LayoutFingerprint();
  EMS_ASSIGN_OR_RETURN(const fabric::Fd file, WriteRecord(record));
  collector.fds()->push_back(file.get());
  EMS_RETURN_IF_ERROR(fds->Put(*collector.fds()));
  collector.counts()->segments = record->segments.size();
  return *collector.counts();
}

}  // namespace ems::server
