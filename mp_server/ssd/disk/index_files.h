#pragma once
// The files of the index as RocksDB sees them: those of the machine, with an eye on what is synced
// (synced_ends.h) and on what they take of the disk. The files are checked and counted under
// RocksDB's lock of the folder, before it reads any.
#include <atomic>
#include <cstdint>
#include <memory>

namespace rocksdb {
class Env;
}

namespace ems::ssd {

class SyncedEnds;

// What the files take of the disk at this moment, in whole blocks. Threading: thread-safe.
struct IndexBytes {
  // RocksDB's threads have counted before they end, in a way that only RocksDB's own locks order:
  // reading what they wrote last makes that visible to what reads memory orders.
  ~IndexBytes() {
    for (const auto* count : {&all, &logs, &changes}) (void)count->load(std::memory_order_acquire);
  }
  std::atomic<uint64_t> all{0};
  std::atomic<uint64_t> logs{0};     // of them
  std::atomic<uint64_t> changes{0};  // files made and removed so far
};

// For one opening of the database, on the files of `below`. Opening fails as of a corruption when
// the files do not have what `ends` says. All must outlive the result, and that the database.
std::unique_ptr<rocksdb::Env> MakeIndexEnv(rocksdb::Env* below, SyncedEnds* ends,
                                           IndexBytes* bytes);

}  // namespace ems::ssd
