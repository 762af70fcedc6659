#pragma once
// The SSD tier of one server: values in a region log, their index in RocksDB and in memory.
//
//   folder/index     RocksDB: object → record (region_index.h)
//   folder/regions   the log's files, preallocated (region_log.h)
//
// An object may live in DRAM, here, or in both; this knows nothing of DRAM. A tier that cannot be
// opened, or whose disk refuses, says so in its state and is otherwise a tier that has nothing and
// takes nothing: it never stands in the way of DRAM. An index that is damaged is set aside
// (index.corrupt.<time>, the newest is kept) and the tier starts empty.
//
// Bound: capacity_bytes on the disk at every moment: regions, and the index within the part that is
// kept for it (IndexBytesFor), whatever the size of values: rows that find no room there are shed.
// index_memory_bytes in memory for objects that are stored; where that is less than the disk has
// room for, small ones are refused when it runs short.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "mp_server/ssd/dirty_object.h"
#include "mp_server/ssd/log_writer.h"
#include "mp_server/ssd/record_reader.h"
#include "mp_server/ssd/recovery.h"
#include "mp_server/ssd/scrubber.h"
#include "mp_server/ssd/slot_grant.h"

namespace ems::ssd {

struct TierOptions {
  std::string folder;
  uint64_t capacity_bytes = 0;
  uint64_t region_bytes = 0;  // 0: RegionBytesFor of the capacity
  uint64_t dirty_bytes_max = 256 * kMiB;
  Duration overwrite_quiet = HeldBack::kQuiet;  // as LogWriter's
  uint64_t index_memory_bytes = 0;  // that the index may take; 0: no bound but the disk's
  uint32_t reads_max = 64;
  uint64_t scrub_bytes_per_s = 0;  // 0: no scrubber
  Duration scrub_pass_at_least = std::chrono::minutes(10);
  // Of what is stored here: the same for as long as every life of the server has had this tier
  // (data_dir.h). 0: not known
  uint64_t lineage = 0;
  IoKind io = IoKind::kAuto;
  const Clock* clock = &Clock::System();
  // Unless null, hears of what is stored and dropped once what was found at the start may be shown;
  // must outlive the tier.
  StoredObserver* observer = nullptr;
  // Where faults can be put in between; null: the machine's own.
  RegionFiles* files = nullptr;
  rocksdb::Env* env = nullptr;
  std::function<std::unique_ptr<IoEngine>(std::unique_ptr<IoEngine>)> wrap_io;
};

// A thirty-second of the capacity, 8 MiB to 128 MiB, and more where that would be more than 4096
// regions.
uint64_t RegionBytesFor(uint64_t capacity_bytes);
// What is kept for the index: a sixteenth, 16 MiB to 64 GiB.
uint64_t IndexBytesFor(uint64_t capacity_bytes);

struct StoredInfo {
  Row row;
  uint64_t value_bytes() const { return row.value_bytes; }
  uint64_t checksum() const { return row.value_checksum; }
};

struct TierStats {
  TierState state = TierState::kOffline;
  std::string reason;
  std::string io_engine;
  bool direct_io = true;
  uint64_t capacity_bytes = 0;
  uint64_t region_bytes = 0;
  uint64_t regions_max = 0;
  uint64_t disk_bytes = 0;  // regions, index, and one that is set aside
  uint64_t free_bytes = 0;  // of the file system; UINT64_MAX: not known
  uint64_t objects = 0;
  uint64_t value_bytes = 0;
  uint64_t index_memory_bytes = 0;      // that the objects take, about
  uint64_t index_memory_bytes_max = 0;  // 0: no bound of its own
  std::string
      index_set_aside;  // where the index lies that was damaged at the start; empty: none was
  uint64_t recovered_objects = 0;
  uint64_t dropped_to_fit = 0;  // at the start: the index has no room for them any more
  double recovery_seconds = 0;
  uint64_t dropped_damaged = 0;  // records that did not match what they should be, or were not read
  WriterStats writer;
  RecordReader::Stats reader;
  Scrubber::Stats scrubber;
};

// Threading: thread-safe. No call waits for the disk but the constructor's and destructor's work,
// and stats(), which asks what is free.
class SsdTier final {
 public:
  // Opens what is there. A tier that cannot be opened is offline, with the reason in its state.
  static std::unique_ptr<SsdTier> Open(const TierOptions& options);
  // Writes what is queued, 5 s at most, and waits for what the disk is doing with this memory, for
  // ever if need be: who stops a process has a limit of its own (common/daemon.h).
  ~SsdTier();

  std::optional<StoredInfo> Find(const ObjectName& name, bool hit);
  // Whether a write of it is under way.
  bool Pending(const ObjectName& name);
  // As LogWriter's. A tier that is offline fails what is to be durable and has nothing to remove.
  TicketPtr Put(const ObjectName& name, std::unique_ptr<DirtyObject> object, bool durable,
                std::function<void()> wake);
  TicketPtr Remove(const ObjectName& name, std::function<void()> wake);
  TicketPtr MakeDurable(const ObjectName& name, std::function<void()> wake);
  TicketPtr MakeForgotten(const ObjectName& name, std::function<void()> wake);
  bool HasRoomFor(uint64_t value_bytes) const;
  void HurryHeldBack();
  // As LogWriter's.
  bool RefusesSmall(NamespaceRef ns, uint64_t value_bytes);
  // Larger values never go to the SSD.
  uint64_t value_bytes_max() const;
  // As RecordReader's. A record that is damaged or cannot be read is dropped before `done`.
  bool Read(const ObjectName& name, std::string key, const StoredInfo& stored,
            const ReadTarget& target, std::function<void(ReadOutcome)> done);
  // The same for the key alone, which must stay until `done`, whatever it is.
  bool ReadKey(const ObjectName& name, const Row& row, std::string* key,
               std::function<void(ReadOutcome)> done);

  // Whether what is stored here is of the lineage that it was opened with.
  bool continues() const;
  // Before the first SetOwnedSlots: what is stored here is of this lineage from the next view on.
  void BeginLineage(uint64_t lineage);
  // Objects of slots that are not owned are dropped, and those that others may have changed or
  // removed since the view that was installed here last. Calls come from one thread.
  void SetOwnedSlots(const SlotGrant& grant);
  // Objects of other namespaces are dropped.
  void SetNamespaces(const std::vector<NamespaceLimits>& limits);

  // As SsdIndex's; none while what was found at the start may not be shown.
  bool SomeStored(SsdIndex::Cursor* cursor, SsdIndex::Stored* some,
                  size_t buckets_max = SsdIndex::kBucketsMax);

  TierState state() const;
  std::string reason() const;  // why it is not kOk; empty when it is
  uint32_t reads_max() const;
  TierStats stats() const;

 private:
  explicit SsdTier(const TierOptions& options);
  Status OpenAll();
  Status Divide();
  Status OpenRows(const RegionIndex::Options& wanted);
  Status SetAside();
  Status OpenLog();
  Result<uint64_t> StoreId();
  Status ReadGrant();
  Status StartIo();
  void Stop();
  bool ReadRecord(const ObjectName& name, std::optional<std::string> key, const Row& row,
                  const ReadTarget& target, std::function<void(ReadOutcome)> done);

  TierOptions options_;
  RegionFiles machine_files_;
  std::string io_name_;
  std::unique_ptr<RegionIndex> rows_;
  std::unique_ptr<RegionLog> log_;
  SsdIndex index_;
  std::unique_ptr<IoEngine> io_;
  std::unique_ptr<RecordReader> reader_;
  std::unique_ptr<LogWriter> writer_;  // null: offline
  std::unique_ptr<Scrubber> scrubber_;
  std::string offline_reason_;
  std::string index_set_aside_;
  Recovered recovered_;
  double recovery_seconds_ = 0;
  uint64_t index_bytes_ = 0;
  uint64_t aside_bytes_ = 0;
  uint64_t region_bytes_ = 0;
  uint64_t regions_max_ = 0;
  uint64_t objects_max_ = 0;
  bool direct_ = true;
  std::atomic<uint64_t> dropped_damaged_{0};
  std::atomic<bool> trusted_{false};  // a view has been installed: what is stored may be shown
  // The caller of SetOwnedSlots's.
  GrantRecord before_;
  uint64_t lineage_ = 0;
  std::set<NamespaceRef> namespaces_;
  bool namespaces_checked_ = false;
};

}  // namespace ems::ssd
