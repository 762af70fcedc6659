#pragma once
// The server's record of one object, without its bytes: private to the process, never in a shared
// segment.
//
// Invariant: `holds` is 0 exactly when the entry is free; the caller that lowers it to 0 frees
// chunk and entry. Bound: one entry for each chunk in use; entries are recycled, and freed only
// with their namespace.
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "common/bytes.h"
#include "common/guarded.h"
#include "common/hash.h"
#include "mp_server/index/eviction_policy.h"
#include "proto/object_header.h"

namespace ems::server {

using shm::ChunkState;
using shm::HeaderChecksum;
using shm::kObjectHeaderBytes;
using shm::kObjectMagic;
using shm::ObjectHeader;
using shm::StateWord;

// `holds`: one bit for the index, the rest counts pins. Exactly kLinked: in the index, and nobody
// looks at it.
inline constexpr uint32_t kLinked = uint32_t{1} << 31;

// Fields are set by Reserve before anyone else can see the entry, and constant until it is free;
// `checksum` by Publish. Threading: constant after publication, but for the atomics and the index's
// links (under the shard's lock).
class alignas(32) ObjectEntry final : public EvictionHook {
 public:
  ObjectHeader* header() const { return reinterpret_cast<ObjectHeader*>(head); }
  std::string_view key() const { return {reinterpret_cast<const char*>(key_data), key_bytes}; }
  ConstBytes value() const { return {payload, value_bytes}; }
  bool evictable() const { return holds.load(std::memory_order_acquire) == kLinked; }

  // Looking an object up takes what comes first, and no more than two cache lines.
  std::atomic<uint32_t> holds{0};
  Hash128 hash;
  ObjectEntry* next = nullptr;  // in its bucket, or in the free list
  std::byte* key_data = nullptr;
  uint64_t value_bytes = 0;
  uint64_t checksum = 0;
  uint16_t key_bytes = 0;
  uint16_t slot = 0;
  uint8_t size_class = 0;
  bool uncharged = false;  // its bytes are not the quota's any more; set by who has a pin on it
  // Its Put has still to tell another tier of it, where an older value may be: until then it is not
  // evicted. Set before it is linked; cleared by who has a pin on it (release).
  std::atomic<bool> settling{false};
  // Writes of it to another tier that are queued or under way: until they end it is not evicted.
  // Counted while it is settling, or by who has a pin on it.
  std::atomic<uint32_t> unwritten{0};
  uint32_t unit_index = 0;    // which chunk of its slab
  void* unit = nullptr;       // Slab*, or PageRuns::Page* of a run; SlabPool's
  std::byte* head = nullptr;  // the header
  std::byte* payload = nullptr;
  std::span<uint64_t> piece_sums;  // in the chunk
  uint64_t generation = 0;         // unique for each use
  int64_t linked_ns = 0;  // when it was linked, on the store's clock; under the shard's lock
  uint64_t location = 0;  // shm::Location of the header; SlabPool's
};

// An object that is about to be evicted, as it was when a lock was held. By the time it is used the
// entry may be another object's: the index compares pointer and generation under its lock.
struct Victim {
  ObjectEntry* entry = nullptr;
  Hash128 hash;
  uint64_t generation = 0;
};
inline Victim MakeVictim(ObjectEntry* entry) { return {entry, entry->hash, entry->generation}; }

// Entries in blocks, recycled. Threading: thread-safe. Cost: one leaf lock; allocates only while
// growing.
class EntryPool final {
 public:
  // nullptr: `entries_max` are in use, or the machine has no memory for more.
  ObjectEntry* Take(uint64_t entries_max);
  void Give(ObjectEntry* entry);
  // Entries in use.
  uint64_t taken();

 private:
  static constexpr size_t kBlock = 512;
  struct State {
    std::vector<std::unique_ptr<ObjectEntry[]>> blocks;
    ObjectEntry* free = nullptr;
    uint64_t taken = 0;
  };
  Guarded<State> state_;
};

}  // namespace ems::server
