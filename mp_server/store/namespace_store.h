#pragma once
// One namespace on this server: finds, reserves, publishes and removes its objects, and shares them
// with clients on this host.
//
// Invariant: an object is reachable only between Publish and Remove or eviction, with the header
// that was laid out for it. Bound: as of RoomMaker, which finds room for each object.
#include <atomic>
#include <bitset>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/quota_part.h"
#include "common/clock.h"
#include "common/guarded.h"
#include "common/ids.h"
#include "common/object_key.h"
#include "mp_server/store/moved_slots.h"
#include "mp_server/store/namespace_objects.h"
#include "mp_server/store/namespace_usage.h"
#include "mp_server/store/object_pin.h"
#include "mp_server/store/owned_slots.h"
#include "mp_server/store/reservation.h"
#include "mp_server/store/room_maker.h"
#include "mp_server/store/segment_source.h"

namespace ems::server {

// Fills in where key, value and piece checksums lie, of an entry with head, payload, value_bytes
// and key_bytes.
void Arrange(ObjectEntry* entry);
// Whether what lies in front of the value is what the process knows of it, as an object of `ns`.
bool HeaderMatches(const ObjectEntry& entry, NamespaceId ns);

// Threading: thread-safe; leaf locks only, none held across another part.
class NamespaceStore final : public std::enable_shared_from_this<NamespaceStore> {
 public:
  struct Options : NamespaceObjects::Options {
    SegmentSource* source = nullptr;  // must outlive the store, as the pool
    std::shared_ptr<const OwnedSlots> owned;
    MovedSlots* moved = nullptr;  // must outlive the store; null: no slot is ever open
    bool another_tier = false;    // as in ObjectStore::Options
    Hash128 (*hash)(std::string_view key) = &KeyHash;
  };
  explicit NamespaceStore(Options options);
  // No pin and no reservation may be left. Gives all segments back.
  ~NamespaceStore();

  // `quota_bytes` 0: no limit. A quota below what is used is reached by RoomMaker::TrimToQuota and
  // Reserve. `quota_total_bytes`: that of all servers together. A part that SetPart has set since
  // stays as long as `quota_bytes` does.
  void SetLimits(uint64_t quota_bytes, uint64_t reserved_bytes, uint64_t quota_total_bytes);
  // The part that the controller gives this server instead; that of another generation, or of
  // another quota than the namespace has, is passed over. The caller locks, as for SetLimits.
  void SetPart(const QuotaPart& part);
  NamespaceRef ref() const { return options_.ref; }
  const std::string& name() const { return options_.name; }
  bool immutable() const { return options_.immutable; }
  // What the key is found by here; other keys may have the same.
  Hash128 HashOf(std::string_view key) const { return options_.hash(key); }

  // As in ObjectStore. What is touched was used at `now`, by default when this is called.
  ObjectPin Get(std::string_view key, bool touch, TimePoint now = {});
  std::optional<ObjectInfo> Find(std::string_view key, bool touch, TimePoint now = {});
  // The same for a Put: it is used, but nobody has looked it up.
  std::optional<ObjectInfo> FindForPut(std::string_view key, TimePoint now);
  // As ObjectIndex::FindMany.
  void FindMany(std::span<const std::string_view> keys, bool touch, TimePoint now,
                std::span<ObjectIndex::Found> found);
  Result<Reservation> Reserve(SlotId slot, std::string_view key, uint64_t value_bytes);
  static Status Publish(Reservation reservation, uint64_t checksum, const PublishOptions& options,
                        bool* stored);
  // With its slot, which costs less while slots are open for what others keep.
  bool Remove(std::string_view key, std::optional<SlotId> slot = std::nullopt);

  // Refuses what is published from now on and drops every object; memory goes as pins end.
  void Close() { objects_.Close(); }
  bool closed() const { return objects_.closed(); }
  const Clock& clock() const { return *options_.clock; }
  // Drops the objects of slots that are not owned any more, and of which no copies are held; those
  // in `keep` are kept for others.
  void DropLostSlots(const std::bitset<kSlotCount>& keep);
  // What is kept of the key for the era of its slot; empty pin: nothing.
  ObjectPin GetKept(SlotId slot, std::string_view key, Era era);
  NamespaceObjects& objects() { return objects_; }
  // Evicts, and gives memory back.
  RoomMaker& room() { return room_; }

  // --- For clients on this host (docs/ONE_SIDED_READS.md).
  // Begins to share; the index follows with the next MaintainShared. From one thread ("ems-shm").
  Status Share();
  Sharing& sharing() { return objects_.sharing(); }
  Result<SlabPool::Opened> OpenSegment(uint32_t id) { return objects_.slabs().OpenSegment(id); }
  // Segments that have left: see SlabPool::LeftSince.
  uint64_t segments_left() { return objects_.slabs().left_count(); }
  bool SegmentsLeftSince(uint64_t* seen, std::vector<uint32_t>* ids) {
    return objects_.slabs().LeftSince(seen, ids);
  }
  // Makes or enlarges the shared index when needed. From one thread ("ems-evict").
  // Cost: when it does, each shard's lock in turn for about 50 ns an object.
  void MaintainShared();
  // Half of what the namespace could have in this server's memory: what the views of one client may
  // pin.
  uint64_t pin_bytes_max() const;

  // --- For what goes from one process to the next (mp_server/restart).
  // No generation up to `newest` is used.
  void SkipGenerations(uint64_t newest);

  // Grows with each Reserve.
  uint64_t newest_generation() const { return generation_.load(std::memory_order_relaxed); }
  // How long nobody has asked for anything, as far as calls of this one have seen it.
  Duration QuietFor(TimePoint now);
  NamespaceUsage Usage();

 private:
  struct Admission {
    const NamespaceStore* store = nullptr;
    const std::atomic<bool>* cancelled = nullptr;
    std::optional<uint32_t> slot_losses;  // when the reservation was made
    TimePoint until = TimePoint::max();   // of the reservation
    uint64_t kept_for = 0;                // as in PublishOptions
    Hash128 hash{};
    bool copy = false;  // of what is a copy, or may be one
  };
  static bool MayPublish(const void* admission, uint16_t slot);
  Status PublishEntry(ObjectEntry* entry, uint64_t checksum, const PublishOptions& options,
                      const Admission& admission, bool* stored);
  // Writes seldom: all threads that look keys up share this line.
  void NoteUse() {
    if (!used_.load(std::memory_order_relaxed)) used_.store(true, std::memory_order_relaxed);
  }
  void LayOut(std::string_view key, ObjectEntry* entry);
  // Whether another server may have what is not here, as readers of the index are to know. Any
  // thread.
  bool MayBeElsewhere() const;
  void ShowOpenSlots();
  // Of a look-up that counts as a use.
  void Sample(Hash128 hash, const ObjectIndex::Found& found);
  std::shared_ptr<NamespaceObjects> Keep() { return {shared_from_this(), &objects_}; }

  const Options options_;
  std::atomic<uint64_t> generation_;
  std::atomic<uint64_t> quota_total_bytes_{0};
  uint64_t even_bytes_ = 0;  // as SetLimits has it
  NamespaceObjects objects_;
  RoomMaker room_;
  Guarded<TimePoint> last_use_;
  std::atomic<bool> used_{false};  // since QuietFor was called
  bool index_refused_ = false;     // ems-evict's, as the next
  TimePoint index_again_at_{};
};

}  // namespace ems::server
