#pragma once
// Which keys are read most over sockets: each thread counts into a table of its own, and once a
// period one reader merges what all of them have counted.
//
// Space-saving: a key that is not in a full table takes the place of the one with the fewest reads
// and its count as an error, so that what a key is said to have been read is never more than it
// was. Values of kCountedBytes and more are all counted, for sending one costs a thousand times as
// much; of the reads of smaller ones one in kSampleEvery, drawn at random, counts for all. Each
// table is two halves: a thread counts into one while the other, of the period before, may be
// read. Bound: kThreadsMax threads, which are the first ones; kKeys keys each. Threads that come
// later are not counted.
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/bytes.h"
#include "common/hash.h"
#include "common/ids.h"
#include "common/object_key.h"

namespace ems::server {

// Which object it is.
struct ReadKey {
  NamespaceRef ns;
  SlotId slot;
  std::string_view key;
  Hash128 hash;  // of the key
};

// What one was read in a period, at least.
struct ReadCount {
  NamespaceRef ns;
  SlotId slot;
  std::string key;
  Hash128 hash;
  uint64_t reads = 0;
  uint64_t bytes = 0;
};

// Threading: Count thread-safe, Take from one thread.
class ReadSketch final {
 public:
  static constexpr size_t kThreadsMax = 64;
  static constexpr size_t kKeys = 64;
  static constexpr uint32_t kSampleEvery = 16;
  static constexpr uint64_t kCountedBytes = 64 * kKiB;

  ReadSketch();
  ReadSketch(const ReadSketch&) = delete;
  ReadSketch& operator=(const ReadSketch&) = delete;

  // Whether a read of so many bytes is counted, by the calling thread. Cost: about a nanosecond,
  // but for the first read of a thread, which allocates its table.
  bool Samples(uint64_t value_bytes) {
    Table* const table = Mine();
    return table != nullptr && (value_bytes >= kCountedBytes || table->Draw());
  }
  // Counts one that is. Cost: a pass over the table's hashes; no lock, no allocation.
  void Count(const ReadKey& read, uint64_t value_bytes);
  // Ends the period: what was read in the one before it, in no order. What a thread counted that
  // has not read since is left out.
  std::vector<ReadCount> Take();

 private:
  struct Entry {
    NamespaceRef ns;
    SlotId slot;
    uint16_t key_bytes = 0;
    uint64_t reads = 0;
    uint64_t error = 0;  // of reads, those that may be of other keys
    uint64_t bytes = 0;
    std::array<char, kKeyBytesMax> key;
  };
  struct Half {
    size_t used = 0;
    std::array<Hash128, kKeys> hashes;
    std::array<Entry, kKeys> entries;
    Entry* PlaceOf(const ReadKey& read);
  };
  struct Table {
    bool Draw() {
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      return random % kSampleEvery == 0;
    }
    uint64_t random = 0;
    size_t active = 0;
    uint64_t period = 0;
    // Of the half that is not active: its period × 2 + its place. Stored with release by the
    // table's thread, loaded with acquire by Take.
    std::atomic<uint64_t> ended{0};
    std::array<Half, 2> halves;
  };
  Table* Mine();
  Table* MakeMine();

  const uint64_t id_;  // of this sketch among all that there have been
  // Stored with release by Take when it has read the halves of the period before; loaded with
  // acquire by Count, which may write to them then.
  // A table that has ended nothing yet says 0, which is the period before none.
  std::atomic<uint64_t> period_{2};
  std::atomic<size_t> used_{0};
  std::array<std::unique_ptr<Table>, kThreadsMax> owned_;  // each set once, by its thread
  std::array<std::atomic<Table*>, kThreadsMax> tables_{};  // the same, for Take
};

}  // namespace ems::server
