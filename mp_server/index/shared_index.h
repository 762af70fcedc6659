#pragma once
// The index as clients on this host see it: which header in which segment holds a key.
//
// A mirror of ObjectIndex, written under the locks of its shards and never read by the server. The
// layout and what readers may conclude from it: proto/shm_layout.h, docs/ONE_SIDED_READS.md.
//
// Invariant: an entry that stands names a live object. An object without an entry is in a shard
// whose word says incomplete, or that has no table; so is each key that another server may have.
// Bound: two tables while one grows into the
// other; 64 bytes for each 4 objects at full load, a table is replaced
// when a shard is filled to 40 %.
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "common/guarded.h"
#include "common/ids.h"
#include "fabric/shm/shm_segment.h"
#include "mp_server/index/object_entry.h"
#include "proto/shm_layout.h"

namespace ems::server {

// Threading: as stated at each.
class SharedIndex final {
 public:
  // Makes the control page; no table yet. Errors: those of ShmSegment::CreatePages
  // `all_objects`: what is not in the index is not on this server; otherwise a miss proves nothing.
  static Result<std::unique_ptr<SharedIndex>> Create(NamespaceRef ns, uint64_t boot_id,
                                                     bool all_objects = true);

  // --- Caller holds the lock of the shard that the entry's hash names.
  void Insert(const ObjectEntry& entry);
  void Remove(const ObjectEntry& entry);
  // From here on Insert fills the newest table; readers see it with FinishShard.
  void StartShard(uint32_t shard);
  void FinishShard(uint32_t shard);
  // Whether a miss proves that the key is nowhere, as far as the index holds all objects.
  void SetMissesProve(uint32_t shard, bool prove);

  // --- One thread ("ems-evict").
  // Whether a shard is too full, incomplete, or without a table.
  bool NeedsTable(uint64_t objects) const;
  // Makes a table that `objects` fill to a quarter at most, of twice the size of the present one at
  // least. Then every shard is to be moved (StartShard, Insert …, FinishShard), then DropOldTables.
  // Errors: kResourceExhausted  no memory: readers go on with the present one
  Status AddTable(uint64_t objects);
  void DropOldTables();

  // --- Any thread.
  // What readers compare with their own view, and until when they may believe it at all.
  void SetCurrent(ViewVersion view, TimePoint readable_until);
  void SetClosed();
  // The memory that readers see is about to be another process's: from its return on none of them
  // begins to read, and none that has begun finds that its bytes have stayed. What it holds by then
  // its hazards name, after a FullFence. For good; nothing may be inserted any more.
  void Shut();
  // Which look-ups readers report (ControlPage::sample_below). Writes only what is new.
  void SetSampleBelow(uint64_t below);
  // A read-only descriptor. Errors: kNotFound  no such table (any more)
  struct Opened {
    fabric::Fd fd;
    uint64_t bytes = 0;
  };
  Result<Opened> OpenControl() const;
  Result<Opened> OpenTable(uint64_t table_id);
  bool HasTable(uint64_t table_id);
  uint64_t table_bytes();
  // Objects that found no place; readers ask the server for them.
  uint64_t left_out() const { return left_out_.load(std::memory_order_relaxed); }

 private:
  struct Table {
    uint64_t id = 0;
    uint64_t buckets_per_shard = 0;
    fabric::ShmSegment memory;
  };
  struct alignas(64) Shard {  // under the shard's lock, but for the atomics
    shm::IndexBucket* buckets = nullptr;
    uint64_t bucket_count = 0;
    uint64_t table_id = 0;
    bool incomplete = false;
    bool elsewhere = false;  // what misses may be on another server
    bool moving = false;
    std::atomic<uint64_t> entries{0};
    std::atomic<bool> crowded{false};
  };
  SharedIndex(fabric::ShmSegment control, bool all_objects)
      : control_memory_(std::move(control)), all_objects_(all_objects) {}
  shm::ControlPage* control() const {
    return reinterpret_cast<shm::ControlPage*>(control_memory_.bytes().data());
  }
  void Publish(uint32_t shard) const;

  const fabric::ShmSegment control_memory_;
  const bool all_objects_;
  std::array<Shard, shm::kIndexShards> shards_;
  std::atomic<uint64_t> left_out_{0};
  uint64_t next_table_id_ = 1;  // ems-evict's
  Table* newest_ = nullptr;     // of tables_; written by ems-evict before it moves a shard
  Guarded<std::vector<std::unique_ptr<Table>>> tables_;
};

}  // namespace ems::server
