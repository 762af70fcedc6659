#pragma once
// Reads objects of one server without it: the client's half of docs/ONE_SIDED_READS.md.
//
// Invariant: what a call reports as a hit was the object's at one moment of the call; bytes that
// were recycled under the reader never get out. Every number read from the server's memory is
// checked against the memory it points into before it is used. Bound: three attempts a call.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/copy_crew.h"
#include "common/hash.h"
#include "common/ids.h"
#include "fabric/shm/transport.h"
#include "mp_sdk/options.h"
#include "proto/shm_layout.h"

namespace ems::internal {

// The memories of one namespace on one server, as far as they are within reach. Threading:
// thread-safe.
class PoolMemory {
 public:
  virtual ~PoolMemory() = default;
  virtual const fabric::RemoteMemory& control() const = 0;
  // nullptr: not here (yet).
  virtual const fabric::RemoteMemory* table(uint64_t id) const = 0;
  virtual const fabric::RemoteMemory* segment(uint32_t id) const = 0;
};

// The fields that each header must have besides its key.
struct PoolIdentity {
  NamespaceRef ns;
  uint64_t boot_id = 0;
};

enum class ReadOutcome : uint8_t {
  kHit,
  kMiss,           // there is none, and the server would say the same
  kTooSmall,       // a hit, but the room is smaller than the value
  kOutOfRange,     // a hit, but the range ends beyond the value, or it is not whole_bytes long
  kNeedTable,      // not here: ask for table `needed`
  kNeedSegment,    // not here: ask for segment `needed`
  kNotCurrent,     // the index is of an older view, out of its lease, or closed
  kNotConclusive,  // no entry, but the server may know more
  kChanged,        // changed under the reader, each time
  kMismatch,       // the value does not match its checksum, or its header makes no sense here
};

// An object that was found, and what proves that it is still there.
struct FoundObject {
  const fabric::RemoteMemory* table = nullptr;
  const fabric::RemoteMemory* segment = nullptr;
  uint64_t entry_at = 0;    // in the table
  uint64_t entry_word = 0;  // generation_tag
  uint64_t shard_at = 0;    // in the control page
  uint64_t shard_word = 0;
  uint64_t header_at = 0;   // in the segment, as the next three
  uint64_t payload_at = 0;  // payload_bytes of it lie inside the segment
  uint64_t table_at = 0;    // piece checksums; 0: one piece, whose checksum is `checksum`
  uint64_t payload_bytes = 0;
  uint64_t checksum = 0;
  uint64_t needed = 0;  // kNeedTable, kNeedSegment
};

// The bytes to copy and their destination. Borrows everything.
struct CopyRequest {
  MutableBuffers into;
  std::string* grow = nullptr;  // allocate here instead of `into`
  bool ranged = false;          // only [offset, offset + into.size_bytes())
  uint64_t offset = 0;
  uint64_t whole_bytes = 0;  // ranged: what the whole value must be long; 0: anything
  bool verify = true;        // compare the checksum
  CopyCrew* crew = nullptr;  // helps with large values
};

// Cheap to make: one for each call. Threading: thread-safe.
class ObjectReader final {
 public:
  static constexpr int kAttempts = 3;

  // `view` is ViewVersion::packed() of the caller's own view.
  ObjectReader(const PoolMemory* pool, const PoolIdentity* identity, uint64_t view)
      : pool_(pool), identity_(identity), view_(view), control_(pool->control()) {}

  // Whether the index may be read at all. `now` as Clock. Ask before each call or batch.
  bool IsCurrent(TimePoint now) const;
  // Finds `key`, whose KeyHash is `hash`. Outcomes: kHit, kMiss, kNeed…, kNotConclusive, kChanged,
  // kMismatch. Cost: about six cache lines; no allocation.
  ReadOutcome Find(std::string_view key, Hash128 hash, FoundObject* found) const;
  // Finds `key` and copies. On kHit and kTooSmall `found` tells the value's length. After anything
  // but kHit the contents of the room are undefined. Cost: no allocation, but for `grow` and once a
  // thread.
  ReadOutcome Read(std::string_view key, Hash128 hash, const CopyRequest& request,
                   FoundObject* found) const;
  // Whether the object is still in the index. All that was read of it before the call is its own
  // then.
  bool StillThere(const FoundObject& found) const;

  // For many keys: each step for all of them before the next one, then Find for each finds
  // everything in the cache. Locating and loading are steps of their own: so the page walks of
  // many keys, of which each costs as much as a line, are under way together. Lines are loaded, not
  // prefetched: a prefetch may be dropped, and with loads 1,000 keys among 200,000 take 181 us, not
  // 252. Nothing that these look at is believed. A hint is good for one key, from step to step;
  // where memory has no address it stays empty.
  struct Hint {
    const shm::IndexBucket* first = nullptr;
    const shm::IndexBucket* second = nullptr;
    const shm::ObjectHeader* header = nullptr;
    uint64_t room = 0;  // bytes from the header to the end of its segment
  };
  void LocateBuckets(Hash128 hash, Hint* hint) const;  // 1
  static void LoadBuckets(const Hint& hint);           // 2
  void LocateHeader(Hash128 hash, Hint* hint) const;   // 3
  static void LoadHeader(const Hint& hint);            // 4
  static void PrefetchKey(const Hint& hint);           // 5

 private:
  enum class Candidate : uint8_t { kThisKey, kOtherKey, kNeedSegment, kChanged, kDamaged };
  // A memory whose words are loaded often: straight from its address, if it has one.
  class Words final {
   public:
    Words(const fabric::RemoteMemory& memory)  // NOLINT(google-explicit-constructor)
        : memory_(memory), address_(memory.address()) {}
    uint64_t Load(uint64_t offset) const {
      if (address_ == nullptr) return memory_.LoadWord(offset);
      return reinterpret_cast<const std::atomic<uint64_t>*>(address_ + offset)
          ->load(std::memory_order_acquire);
    }
    const std::byte* address() const { return address_; }

   private:
    const fabric::RemoteMemory& memory_;
    const std::byte* address_;
  };
  struct Buckets {
    bool valid = false;
    uint64_t first = 0;  // offsets in the table
    uint64_t second = 0;
  };

  static Buckets BucketsOf(uint64_t table_bytes, Hash128 hash);
  ReadOutcome FindOnce(std::string_view key, Hash128 hash, FoundObject* found) const;
  ReadOutcome FindInBucket(std::string_view key, Hash128 hash, uint64_t bucket_at,
                           FoundObject* found) const;
  Candidate Examine(std::string_view key, Hash128 hash, uint64_t location,
                    FoundObject* found) const;
  bool CheckHeader(const shm::ObjectHeader& header) const;
  static bool TakeGeometry(const shm::ObjectHeader& header, FoundObject* found);
  // False when the bytes do not match their checksum: worth something once StillThere.
  static bool Copy(const FoundObject& found, const CopyRequest& request);

  const PoolMemory* pool_;
  const PoolIdentity* identity_;
  uint64_t view_;
  Words control_;
};

}  // namespace ems::internal
