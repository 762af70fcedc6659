#pragma once
// The index of the SSD tier in memory: tells whether and where an object is without the disk, and
// decides which of several Puts and Removes of one key counts.
//
// An object is *pending* from the moment its write is accepted until its row is in the durable
// index, and *stored* from then on. Drop makes both end at once: a write that completes later finds
// that it does not count any more. From then on the name is *owed a delete*: a row of it may be in
// the durable index, and nobody may be told that the old value is gone before that row is.
//
// Bound: one entry of kObjectMemoryBytes for each stored object, of which the log writer keeps as
// many as the durable index, and the memory that is given to this, have room for; pending ones are
// bounded by the tier's dirty bytes.
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "mp_server/ssd/dirty_object.h"
#include "mp_server/ssd/disk/record.h"
#include "mp_server/ssd/disk/region_index.h"
#include "mp_server/ssd/stored_observer.h"

namespace ems::ssd {

// A name that is owed a delete, and since when: 0: it is not owed one.
struct OwedDelete {
  ObjectName name;
  uint64_t since = 0;
  explicit operator bool() const { return since != 0; }
};

// Threading: thread-safe; one leaf lock of 16 a call. No I/O.
class SsdIndex final {
 public:
  SsdIndex();
  ~SsdIndex();
  SsdIndex(const SsdIndex&) = delete;
  SsdIndex& operator=(const SsdIndex&) = delete;

  struct Found {
    bool stored = false;
    bool pending = false;
    Row row;  // of what is stored
  };
  // `hit`: remembers that it was read, for when its region is reclaimed.
  Found Find(const ObjectName& name, bool hit);

  // A write begins to count: what was pending or stored before does not any more. Not begun when
  // `object` is not what the key leads to by then: another one's write has begun, or will, and
  // must not be overtaken by this one, or a Remove has dropped it. It must not be for another
  // reason, an eviction, say: what was stored before would count on.
  // Its sequence is the next of `next_sequence`, taken here: of writes of one name the one that
  // begins last has the highest, also where an object is put twice at once.
  // `may_hold`: where it overwrites something, it begins as held: until EndHold it is not given to
  // the disk, so that nothing is owed for it if it is overwritten itself.
  struct Begun {
    bool begun = false;
    bool held = false;
    uint64_t sequence = 0;
    OwedDelete owed;
  };
  Begun BeginWrite(const ObjectName& name, std::atomic<uint64_t>* next_sequence,
                   const DirtyObject& object, bool may_hold = false);
  // From now on it may be given to the disk, if it counts still.
  void EndHold(const ObjectName& name, uint64_t sequence);
  // Whether this write still counts.
  bool Counts(const ObjectName& name, uint64_t sequence);
  // Its row is in the durable index: from now on it is stored. False: it does not count any more.
  bool Commit(const ObjectName& name, const Row& row);
  // It failed, or was not begun: nothing is pending, unless another write has begun since.
  void AbandonWrite(const ObjectName& name, uint64_t sequence);
  // The same for a write that Reclaim began: its old row is still there.
  OwedDelete AbandonMove(const ObjectName& name, uint64_t sequence);

  OwedDelete Drop(const ObjectName& name);
  // Drops it if this very record is what is stored.
  OwedDelete DropRecord(const ObjectName& name, const Row& row);
  // For a record of a region that is being reclaimed. kGone: it was not there any more. kDropped:
  // the name is owed a delete. kPending: it was read since it was written, and
  // `may_move`; its next write begins with this.
  enum class Fate : uint8_t { kGone, kDropped, kPending };
  struct Reclaimed {
    Fate fate = Fate::kGone;
    Row row;
    OwedDelete owed;
  };
  Reclaimed Reclaim(const ObjectName& name, uint64_t region_sequence, bool may_move);
  // The row of a record in this use of a region, if it has been read since it was written and
  // nothing is about to take its place.
  std::optional<Row> Wanted(const ObjectName& name, uint64_t region_sequence);
  // Whether this very Put is what is stored, in this use of a region.
  bool LiesIn(const ObjectName& name, uint64_t sequence, uint64_t region_sequence);
  // If so, it lies where `row` says from now on, and has not been read there yet.
  bool Move(const ObjectName& name, const Row& row, uint64_t region_sequence);
  OwedDelete OwedTo(const ObjectName& name);
  // A write of a row of this name may have reached the durable index or not.
  void Owe(const ObjectName& name);
  // Their rows are gone, or never were; those that have been owed another since stay so.
  void EndOwing(std::span<const OwedDelete> deletes);
  std::vector<OwedDelete> Owed();

  static constexpr size_t kShards = 16;
  // The position of a walk over all that is stored.
  struct Cursor {
    size_t shard = 0;
    size_t bucket = 0;
    size_t buckets = 0;  // of the shard when it was begun
  };
  using Stored = std::vector<std::pair<ObjectName, Row>>;
  // Appends the next few, for who must not hold the lock. Each that is stored all the while comes
  // at least once: a shard that has grown is begun again. A cursor may be anything. False: that was
  // the last shard. Bound: `buckets_max` buckets a call.
  static constexpr size_t kBucketsMax = 256;  // some tens of microseconds
  bool SomeStored(Cursor* cursor, Stored* some, size_t buckets_max = kBucketsMax);
  // From now on `observer`, which must outlive the index, hears of what is stored and dropped.
  void Observe(StoredObserver* observer) { observer_.store(observer, std::memory_order_release); }
  // Objects that are stored.
  uint64_t objects() const { return objects_.load(std::memory_order_relaxed); }
  // Memory that an object takes, here and as a member of its region.
  static constexpr uint64_t kObjectMemoryBytes = 130;

  // At the start, from the durable index; the larger sequence wins.
  void Load(const ObjectName& name, const Row& row);
  // Room for so many, so that no shard grows while it is filled. A hint.
  void Reserve(uint64_t objects);
  void Clear();

  // Drops what `gone` says, of what is stored and of what is pending (of whose row only the slot is
  // set). Takes each lock in turn, for about 0.1 µs an object.
  void DropIf(const std::function<bool(const ObjectName& name, const Row& row)>& gone,
              std::vector<OwedDelete>* owed);

  struct Totals {
    uint64_t objects = 0;
    uint64_t value_bytes = 0;
  };
  Totals totals() const;

 private:
  struct ShardState;
  struct Shard;
  Shard& ShardOf(const ObjectName& name);
  void Tell(const ObjectName& name, bool stored);
  bool Erase(ShardState& state, const ObjectName& name);
  std::unique_ptr<std::array<Shard, kShards>> shards_;
  std::atomic<uint64_t> objects_{0};
  std::atomic<StoredObserver*> observer_{nullptr};
};

}  // namespace ems::ssd
