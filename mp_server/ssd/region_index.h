#pragma once
// The durable index of the region log: which record holds which object. RocksDB, one column family,
// WAL on, rows of fixed size; values never go in here.
//
// Its rows are the only truth after a restart: a record without a row is garbage, so a Remove is
// one deleted row and nothing in the log can bring an object back. The row's key holds the key's
// 128-bit hash; the key itself is in the record and is compared at each read.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/status.h"
#include "mp_server/ssd/record.h"

namespace rocksdb {
class Env;
}

namespace ems::ssd {

// Names of meta rows.
inline constexpr std::string_view kStoreIdMeta = "store_id";
inline constexpr std::string_view kViewMeta = "view";
inline constexpr std::string_view kGrantMeta = "grant";  // says more of kViewMeta's view
inline constexpr std::string_view kRegionBytesMeta = "region_bytes";

// Where a record lies and what it holds: 48 bytes in the index.
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
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Threading: thread-safe, but for Reopen.
class RegionIndex final {
 public:
  struct Options {
    std::string folder;
    bool create = true;           // make it when there is none
    rocksdb::Env* env = nullptr;  // of the machine; tests put faults in between. Must outlive this
  };
  // Errors: kNotFound  none, and not `create`    kDataLoss  damaged    kFailedPrecondition  of a
  // newer
  //   format
  //   kUnavailable  the disk refuses (no space, no permission, read-only)
  static Result<std::unique_ptr<RegionIndex>> Open(const Options& options);
  ~RegionIndex();
  RegionIndex(const RegionIndex&) = delete;
  RegionIndex& operator=(const RegionIndex&) = delete;

  // Calls `visit` for each row; rows that cannot be read are counted and left out.
  // Errors: kDataLoss  the store cannot be walked to its end
  Status ForEach(const std::function<void(const ObjectName&, const Row&)>& visit,
                 uint64_t* unreadable) const;
  // Empty: there is none. Errors: kUnavailable
  Result<std::string> Meta(std::string_view name) const;

  // Atomic. `sync`: durable against power loss when it returns; otherwise against the death of the
  // process. Errors: kUnavailable  nothing or all of it may have been written; after one the index
  // takes no more writes until it is opened anew
  Status Write(const RowBatch& batch, bool sync);
  // What was written before is durable against power loss. Errors: kUnavailable
  Status SyncLog();
  bool broken() const;
  // Closes it and opens it anew: the only way out of an error. `create`: also when there is nothing
  // left to open. Nobody else may use it meanwhile. Errors: those of Open; it is broken then
  Status Reopen(bool create);
  const std::string& folder() const;
  // Bytes of its files on the disk.
  uint64_t disk_bytes() const;

 private:
  struct Impl;
  explicit RegionIndex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ems::ssd
