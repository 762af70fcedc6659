#pragma once
// What the tests of the SSD tier share: a temporary folder, objects whose values verify themselves,
// region files that refuse on demand, and records written without the writer's thread.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/checksum.h"
#include "common/guarded.h"
#include "common/object_key.h"
#include "common/thread_pool.h"
#include "mp_server/ssd/dirty_object.h"
#include "mp_server/ssd/disk/aligned_buffer.h"
#include "mp_server/ssd/disk/region_index.h"
#include "mp_server/ssd/disk/region_log.h"
#include "mp_server/ssd/ssd_index.h"
#include "mp_server/ssd/write_group.h"
#include "tests/support/self_verifying.h"

namespace ems::testing {

inline constexpr uint64_t kStoreId = 0x5eed;
inline constexpr NamespaceRef kNs{NamespaceId(7), 3};
inline constexpr NamespaceRef kOtherNs{NamespaceId(8), 1};
// Of every wait: long enough for a sanitizer on a loaded machine, and never reached otherwise.
inline constexpr std::chrono::seconds kPatience{20};

// A folder of its own for each test, gone with this. Threading: one thread (holder).
class TempFolder final {
 public:
  TempFolder() : path_(::testing::TempDir() + "ems-ssd-XXXXXX") {
    EMS_CHECK(::mkdtemp(path_.data()) != nullptr, "no folder {}", path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

inline ssd::ObjectName NameOf(std::string_view key, NamespaceRef ns = kNs) {
  return {ns, KeyHash(key)};
}

// The name under which self_verifying.h knows a namespace.
inline std::string TextOf(NamespaceRef ns) {
  return fmt::format("{}.{}", ns.id.value(), ns.generation);
}

// An object whose value is MakeValue(TextOf(ns), key, put_id, bytes), on a block and with a whole
// last block. Threading: one thread at a time, but for `current`.
class TestObject final : public ssd::DirtyObject {
 public:
  using Flag = std::shared_ptr<std::atomic<bool>>;

  TestObject(std::string key, uint64_t put_id, uint64_t bytes, NamespaceRef ns = kNs,
             uint16_t slot = 11)
      : key_(std::move(key)),
        slot_(slot),
        sums_(PieceCount(bytes)),
        current_(std::make_shared<std::atomic<bool>>(true)) {
    const MutableBytes all = memory_.Take(std::max<uint64_t>(bytes, 1));
    std::fill(all.begin(), all.end(), std::byte{0xee});
    value_ = all.first(bytes);
    FillValue(TextOf(ns), key_, put_id, value_);
    PieceHasher hasher;
    hasher.Start(sums_);
    hasher.Update(value_);
    checksum_ = hasher.Finish();
  }
  bool current() const override { return current_->load(); }
  std::string_view key() const override { return key_; }
  ConstBytes value() const override { return value_; }
  uint64_t checksum() const override { return checksum_; }
  std::span<const uint64_t> piece_sums() const override { return sums_; }
  uint16_t slot() const override { return slot_; }
  // Outlives the object: set it to false and the key leads elsewhere.
  const Flag& current_flag() const { return current_; }

 private:
  const std::string key_;
  const uint16_t slot_;
  ssd::AlignedBuffer memory_;
  MutableBytes value_;
  std::vector<uint64_t> sums_;
  uint64_t checksum_ = 0;
  Flag current_;
};

inline std::unique_ptr<TestObject> MakeObject(std::string key, uint64_t put_id, uint64_t bytes,
                                              NamespaceRef ns = kNs, uint16_t slot = 11) {
  return std::make_unique<TestObject>(std::move(key), put_id, bytes, ns, slot);
}

// As SsdIndex's, with this sequence.
inline ssd::SsdIndex::Begun BeginWrite(ssd::SsdIndex* index, const ssd::ObjectName& name,
                                       uint64_t sequence, const ssd::DirtyObject& object,
                                       bool may_hold = false) {
  std::atomic<uint64_t> next{sequence};
  return index->BeginWrite(name, &next, object, may_hold);
}

// The put id of `value`, if it is a whole one of this key (8 bytes or more).
inline std::optional<uint64_t> PutIdOf(std::string_view key, ConstBytes value,
                                       NamespaceRef ns = kNs) {
  return VerifyValue(TextOf(ns), key, AsText(value));
}

// Waits for one call from another thread: give `wake()` away, then Wait. Threading: thread-safe.
class Waiter final {
 public:
  std::function<void()> wake() const {
    return [called = called_] { called->Set(); };
  }
  // False: not called in time.
  bool Wait() const { return called_->WaitFor(kPatience); }
  bool called() const { return called_->IsSet(); }

 private:
  std::shared_ptr<StopFlag> called_ = std::make_shared<StopFlag>();
};

// The machine's files, some of whose calls fail. Threading: thread-safe.
class FaultyFiles final : public ssd::RegionFiles {
 public:
  enum Call : uint8_t { kOpen, kPreallocate, kSync, kRead, kWrite };
  static constexpr int kForEver = 1 << 30;

  // After `skip` more calls of this kind, the next `count` fail with `code` and do nothing.
  void Fail(Call call, StatusCode code, int count = kForEver, int skip = 0) {
    auto plans = plans_.Lock();
    (*plans)[call].code = code;
    (*plans)[call].left = count;
    (*plans)[call].skip = skip;
  }
  void Mend() {
    auto plans = plans_.Lock();
    for (Plan& plan : *plans) plan.left = 0;
  }
  // So far, the failed ones included.
  uint64_t calls(Call call) {
    auto plans = plans_.Lock();
    return (*plans)[call].calls;
  }

  Result<fabric::Fd> Open(const std::string& path, bool create, bool* direct) override {
    EMS_RETURN_IF_ERROR(Next(kOpen));
    return RegionFiles::Open(path, create, direct);
  }
  Status Preallocate(int fd, uint64_t bytes) override {
    EMS_RETURN_IF_ERROR(Next(kPreallocate));
    return RegionFiles::Preallocate(fd, bytes);
  }
  std::function<void()> before_sync;  // set it while nobody syncs

  Status Sync(int fd) override {
    if (before_sync) before_sync();
    EMS_RETURN_IF_ERROR(Next(kSync));
    return RegionFiles::Sync(fd);
  }
  Status Read(int fd, MutableBytes into, uint64_t offset) override {
    EMS_RETURN_IF_ERROR(Next(kRead));
    return RegionFiles::Read(fd, into, offset);
  }
  Status Write(int fd, ConstBytes bytes, uint64_t offset) override {
    EMS_RETURN_IF_ERROR(Next(kWrite));
    return RegionFiles::Write(fd, bytes, offset);
  }

 private:
  struct Plan {
    StatusCode code = StatusCode::kOk;
    int skip = 0;
    int left = 0;
    uint64_t calls = 0;
  };
  Status Next(Call call) {
    auto plans = plans_.Lock();
    Plan& plan = (*plans)[call];
    ++plan.calls;
    if (plan.left == 0 || plan.skip-- > 0) return OkStatus();
    plan.skip = 0;
    --plan.left;
    return Error(plan.code, "call {} of kind {} fails on demand", plan.calls, int{call});
  }
  Guarded<std::array<Plan, 5>> plans_;
};

inline ssd::RegionLog::Options LogOptions(std::string folder, ssd::RegionFiles* files,
                                          uint32_t regions_max = 4,
                                          uint64_t region_bytes = 256 * kKiB) {
  ssd::RegionLog::Options options;
  options.folder = std::move(folder);
  options.region_bytes = region_bytes;
  options.regions_max = regions_max;
  options.store_id = kStoreId;
  options.files = files;
  return options;
}

inline size_t FreeRegions(ssd::RegionLog& log) {
  return static_cast<size_t>(
      std::count_if(log.regions().begin(), log.regions().end(),
                    [](const auto& region) { return region->state == ssd::RegionState::kFree; }));
}

// A free region, begun for `ns`; null when there is none.
inline ssd::Region* BeginRegion(ssd::RegionLog* log, NamespaceRef ns = kNs) {
  Result<ssd::Region*> region = log->TakeFree();
  return region.ok() && log->Begin(*region, ns).ok() ? *region : nullptr;
}

struct WrittenRecord {
  ssd::ObjectName name;
  ssd::Row row;
};
// Writes records one after the other to where `region` is filled to, as the log's writer would: all
// packed or all aligned, with sequences from `sequence` on. Empty when a write fails. Blocks.
inline std::vector<WrittenRecord> WriteRecords(
    ssd::RegionFiles* files, ssd::Region* region,
    std::vector<std::unique_ptr<ssd::DirtyObject>> objects, uint64_t sequence,
    uint64_t store_id = kStoreId) {
  class Group final : public ssd::WriteGroup {
    void OnDone(int64_t) override {}
  };
  Group group;
  group.Start(region, objects.front()->value().size() >= ssd::kAlignedFrom);
  for (std::unique_ptr<ssd::DirtyObject>& object : objects) {
    const ssd::RecordShape shape(object->value().size(), object->key().size());
    ssd::WriteJob job;
    job.name = NameOf(object->key(), region->ns);
    job.sequence = sequence++;
    job.value_bytes = shape.value_bytes;
    job.object = std::move(object);
    group.Add(std::move(job), shape, store_id);
  }
  group.Place();
  uint64_t at = group.offset;
  for (const iovec& part : group.parts) {
    const ConstBytes bytes(static_cast<const std::byte*>(part.iov_base), part.iov_len);
    if (!files->Write(group.fd, bytes, at).ok()) return {};
    at += part.iov_len;
  }
  std::vector<WrittenRecord> written;
  for (const ssd::WriteJob& job : group.jobs()) {
    region->members.push_back(job.name.hash);
    written.push_back({job.name, job.row});
  }
  return written;
}
inline WrittenRecord WriteRecord(ssd::RegionFiles* files, ssd::Region* region,
                                 std::unique_ptr<ssd::DirtyObject> object, uint64_t sequence,
                                 uint64_t store_id = kStoreId) {
  std::vector<std::unique_ptr<ssd::DirtyObject>> one;
  one.push_back(std::move(object));
  const auto written = WriteRecords(files, region, std::move(one), sequence, store_id);
  EMS_CHECK(written.size() == 1, "a record could not be written");
  return written.front();
}

}  // namespace ems::testing
