#pragma once
// The durable index of the region log: which record holds which object. RocksDB, one column family,
// WAL on, rows of fixed size; values never go in here.
//
// Its rows are the only truth after a restart: a record without a row is garbage, so a Remove is
// one deleted row and nothing in the log can bring an object back. The row's key holds the key's
// 128-bit hash; the key itself is in the record and is compared at each read.
//
// Damage of what had been synced is refused, wherever it is: of logs and MANIFESTs by
// synced_ends.h, of tables by RocksDB's checksums. An end that a crash has torn behind the last
// sync is cut off, a batch at a time.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "mp_server/ssd/disk/index_files.h"
#include "mp_server/ssd/disk/record.h"

namespace rocksdb {
class DB;
class Env;
class Status;
class WriteBatch;
}  // namespace rocksdb

namespace ems::ssd {

class SyncedEnds;

// Names of meta rows.
inline constexpr std::string_view kStoreIdMeta = "store_id";
inline constexpr std::string_view kViewMeta = "view";
inline constexpr std::string_view kGrantMeta = "grant";  // says more of kViewMeta's view
inline constexpr std::string_view kRegionBytesMeta = "region_bytes";

// The place of a record and the object that it holds: 48 bytes in the index.
struct Row {
  uint64_t sequence = 0;  // of the Put: the larger one is the newer one
  uint64_t region_sequence = 0;
  uint64_t value_checksum = 0;
  uint64_t value_bytes = 0;
  uint32_t region = 0;
  uint32_t offset_units = 0;  // in the region, in kPackUnit
  uint32_t key_bytes = 0;
  uint16_t slot = 0;
  uint16_t reserved = 0;
};
static_assert(sizeof(Row) == 48);

// Whether both name the very same record: one that was moved has another region.
inline bool SameRecord(const Row& a, const Row& b) {
  return a.sequence == b.sequence && a.region_sequence == b.region_sequence;
}

// Rows to be written together, all or none. Threading: one thread (holder).
class RowBatch final {
 public:
  RowBatch();
  ~RowBatch();
  void Put(const ObjectName& name, const Row& row);
  void Delete(const ObjectName& name);
  void PutMeta(std::string_view name, std::string_view value);
  void Clear();
  uint32_t count() const;

 private:
  friend class RegionIndex;
  std::unique_ptr<rocksdb::WriteBatch> batch_;
};

// Threading: thread-safe, but for Reopen and what says otherwise.
class RegionIndex final {
 public:
  struct Options {
    std::string folder;
    bool create = true;  // make it when there is none
    // What its files may take of the disk while no more is written than HasRoom allows; 0: no
    // bound.
    uint64_t bytes_max = 0;
    rocksdb::Env* env = nullptr;  // of the machine; tests put faults in between. Must outlive this
  };
  // Errors: kNotFound  none, and not `create`    kDataLoss  damaged: what had been synced is not
  //   there as it was    kFailedPrecondition  of a newer format
  //   kUnavailable  the disk refuses (no space, no permission, read-only)
  static Result<std::unique_ptr<RegionIndex>> Open(const Options& options);
  ~RegionIndex();
  RegionIndex(const RegionIndex&) = delete;
  RegionIndex& operator=(const RegionIndex&) = delete;

  // Calls `visit` for each row; rows that cannot be read are counted and left out.
  // Errors: kDataLoss  the store cannot be walked to its end
  using Visit = std::function<void(const ObjectName&, const Row&)>;
  Status ForEach(const Visit& visit, uint64_t* unreadable) const;
  // The same for the rows whose keys are in [first, end): several threads may walk at once.
  struct KeyRange {
    std::string first, end;
  };
  Status ForEachIn(const KeyRange& range, const Visit& visit, uint64_t* unreadable) const;
  // Ranges that have each row once, up to 256 of each namespace and about equally large, as hashes
  // are spread evenly. Cost: a seek a namespace.
  std::vector<KeyRange> Split(uint32_t of_each_namespace) const;
  // About so many rows are there.
  uint64_t RowsAbout() const;
  // Empty: there is none. Errors: kUnavailable
  Result<std::string> Meta(std::string_view name) const;

  // Atomic. `sync`: durable against power loss when it returns; otherwise against the death of the
  // process. Errors: kUnavailable  nothing or all of it may have been written; after one the index
  // takes no more writes until it is reopened
  Status Write(const RowBatch& batch, bool sync);
  // What was written before is durable against power loss. Errors: kUnavailable
  Status SyncLog();
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  // Closes and reopens it: the only way out of an error. `create`: also when there is nothing
  // left to open. Nobody else may use it meanwhile. Errors: those of Open; it is broken then
  Status Reopen(bool create);
  // Bytes that its files take of the disk now.
  uint64_t disk_bytes() const { return bytes_.all.load(std::memory_order_relaxed); }
  // Bytes that they may take before RocksDB has merged them: each log becomes a table, and a table
  // is there twice while it is merged. Threading: one thread, that of HasRoom.
  uint64_t disk_bytes_needed();
  // Whether some thousand more rows stay within bytes_max; deletes need not ask, they have a share
  // of their own. Cost: some loads; after a file has come or gone RocksDB's lock.
  // Threading: one thread.
  bool HasRoom();
  // So many rows always find room in `bytes_max`.
  static uint64_t RowsMax(uint64_t bytes_max);

 private:
  explicit RegionIndex(Options options);
  Status OpenDb();
  Status CheckFormat();
  Status CheckEnds();
  Status PutRow(std::string_view key, std::string_view value);
  Status Judge(const rocksdb::Status& status);

  Options options_;
  IndexBytes bytes_;
  uint64_t tables_bytes_ = 0;  // of the tables that count, as of tables_seen_
  uint64_t tables_seen_ = 0;
  // Of this opening; in the order in which each is needed by the next.
  std::unique_ptr<SyncedEnds> ends_;
  std::unique_ptr<rocksdb::Env> env_;
  std::unique_ptr<rocksdb::DB> db_;  // null while it is broken and could not be opened
  std::atomic<bool> broken_{false};
};

}  // namespace ems::ssd
