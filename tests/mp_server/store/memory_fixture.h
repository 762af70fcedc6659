#pragma once
// A small pool, a source that hands out its segments, and stores on top: what the memory tests have
// in common.
#include <gtest/gtest.h>

#include <bitset>
#include <memory>
#include <string>
#include <utility>

#include "common/checksum.h"
#include "mp_server/store/namespace_store.h"
#include "mp_server/store/object_store.h"
#include "tests/support/self_verifying.h"

namespace ems::server {

inline SegmentPool::Options SmallPool(uint64_t bytes, uint64_t segment_bytes = 2 * kMiB) {
  SegmentPool::Options options;
  options.bytes = bytes;
  options.segment_bytes = segment_bytes;
  options.huge_pages = HugePages::kOff;
  return options;
}

inline Deadline Soon() { return Deadline::After(std::chrono::seconds(20)); }

// Hands out what the pool has; a full pool means: evict your own. Threading: thread-safe.
class PlainSource final : public SegmentSource {
 public:
  explicit PlainSource(SegmentPool* pool) : pool_(pool) {}
  Result<std::unique_ptr<Segment>> Acquire(RoomMaker*, uint64_t bytes_min) override {
    return pool_->Acquire(bytes_min);
  }
  void HurryWrites() override {}

 private:
  SegmentPool* pool_;
};

inline std::bitset<kSlotCount> AllSlots() { return std::bitset<kSlotCount>().set(); }

inline void Fill(const Reservation& room, std::string_view value) {
  std::memcpy(room.value().data(), value.data(), value.size());
  const auto sums = room.piece_sums();
  for (size_t i = 0; i < sums.size(); ++i)
    sums[i] = Hash64(AsBytes(value.substr(i * kPieceBytes, kPieceBytes)));
}

inline Status Put(NamespaceStore& store, std::string_view key, std::string_view value,
                  bool overwrite = false, bool* stored = nullptr) {
  EMS_ASSIGN_OR_RETURN(Reservation room, store.Reserve(SlotId(7), key, value.size()));
  Fill(room, value);
  const uint64_t checksum = CombinePieces(room.piece_sums());
  bool was_stored = false;
  const Status status =
      NamespaceStore::Publish(std::move(room), checksum, {.overwrite = overwrite}, &was_stored);
  if (stored != nullptr) *stored = was_stored;
  return status;
}

// One namespace on a pool of its own. Waits until all of the pool is there.
class NamespaceFixture : public ::testing::Test {
 protected:
  void Make(uint64_t pool_bytes, uint64_t quota_bytes = 0, uint64_t segment_bytes = 2 * kMiB,
            Hash128 (*hash)(std::string_view) = &KeyHash) {
    store_.reset();  // it gives its memory back to the pool that it came from
    pool_ = std::make_unique<SegmentPool>(SmallPool(pool_bytes, segment_bytes));
    source_ = std::make_unique<PlainSource>(pool_.get());
    owned_->Set(AllSlots());
    NamespaceStore::Options options;
    options.ref = {NamespaceId(1), 1};
    options.name = "kv";
    options.pool = pool_.get();
    options.source = source_.get();
    options.owned = owned_;
    options.clock = &clock_;
    options.hash = hash;
    store_ = std::make_shared<NamespaceStore>(std::move(options));
    store_->SetLimits(quota_bytes, 0, quota_bytes);
    ASSERT_TRUE(pool_->WaitReady(pool_bytes, Soon()).ok());
  }
  Status PutTick(std::string_view key, std::string_view value) {
    clock_.Advance(Duration(1));
    return Put(*store_, key, value);
  }
  SlabPool::Stats Memory() { return store_->objects().slabs().stats(); }
  std::string Read(std::string_view key) {
    const ObjectPin pin = store_->Get(key, false);
    return pin ? std::string(AsText(pin.value())) : "(miss)";
  }

  ManualClock clock_;
  std::shared_ptr<OwnedSlots> owned_ = std::make_shared<OwnedSlots>();
  std::unique_ptr<SegmentPool> pool_;
  std::unique_ptr<PlainSource> source_;
  std::shared_ptr<NamespaceStore> store_;
};

}  // namespace ems::server
