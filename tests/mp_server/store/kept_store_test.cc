// What must hold of objects whose slots were lost: neither clients nor readers of the shared index
// find them, they cost the namespace nothing, and they go before anything else.
#include <gtest/gtest.h>

#include "mp_server/index/object_index.h"
#include "mp_server/store/moved_slots.h"
#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

constexpr NamespaceRef kNs{NamespaceId(1), 3};
constexpr SlotId kMine{1}, kLost{2};
constexpr uint64_t kHistory = 5, kSince = 9;
constexpr Era kEra{kHistory, kSince};
constexpr uint64_t kPool = 16 * kMiB;

class KeptStoreTest : public ::testing::Test {
 protected:
  KeptStoreTest() {
    store_.SetOwnedSlots(AllSlots());
    EXPECT_TRUE(pool_.WaitReady(kPool, Soon()).ok());
    Namespaces(0);
  }
  void Namespaces(uint64_t quota, uint32_t generation = kNs.generation) {
    NamespaceTable table;
    NamespaceInfo info;
    info.ref = {kNs.id, generation};
    info.name = "kv";
    info.dram_quota_bytes = quota;
    table.by_id[info.ref.id] = info;
    store_.SetNamespaces(table, 1);
  }
  Status Put(SlotId slot, const std::string& key, std::string_view value) {
    clock_.Advance(Duration(1));
    auto room = store_.Reserve(kNs, slot, key, value.size());
    if (!room.ok()) return room.status();
    Fill(*room, value);
    const uint64_t checksum = CombinePieces(room->piece_sums());
    bool stored = false;
    return store_.Publish(std::move(*room), checksum, {}, &stored);
  }
  // kLost goes to another server.
  void Lose() {
    std::bitset<kSlotCount> lost;
    lost.set(kLost.value());
    store_.SetOwnedSlots(AllSlots() & ~lost, lost);
    moved_.Lose(kHistory, std::vector<uint64_t>(kSlotCount, kSince), AllSlots() & ~lost, lost);
  }
  std::string Kept(const std::string& key, Era era = kEra) {
    const auto store = store_.Open(kNs);
    const ObjectPin pin = store == nullptr ? ObjectPin() : store->GetKept(kLost, key, era);
    return pin ? std::string(AsText(pin.value())) : "(nothing)";
  }
  NamespaceUsage Usage() { return store_.Usage().front(); }

  ManualClock clock_;
  MovedSlots moved_{std::chrono::seconds(100), &clock_};
  SegmentPool pool_{SmallPool(kPool)};
  ObjectStore store_{ObjectStore::Options{.pool = &pool_, .clock = &clock_, .moved = &moved_}};
};

TEST_F(KeptStoreTest, OnlyTheNextOwnerFindsThem) {
  ASSERT_EQ(Put(kLost, "lost", "v1"), OkStatus());
  ASSERT_EQ(Put(kMine, "mine", "v2"), OkStatus());
  ObjectPin held = store_.Get(kNs, "lost", false);
  const auto* header = reinterpret_cast<const ObjectHeader*>(
      store_.Open(kNs)->objects().index().Find(KeyHash("lost"), "lost", false, false).entry->head);
  Lose();
  EXPECT_FALSE(store_.Get(kNs, "lost", false));
  EXPECT_FALSE(store_.Find(kNs, "lost", false).has_value());
  EXPECT_TRUE(store_.Find(kNs, "mine", false).has_value());
  EXPECT_EQ(Kept("lost"), "v1");
  EXPECT_EQ(Kept("mine"), "(nothing)");
  EXPECT_EQ(Kept("lost", {kHistory, kSince + 1}), "(nothing)");
  EXPECT_EQ(header->state_generation.load() & 0xff, static_cast<uint64_t>(ChunkState::kRetired))
      << "a reader that had found it before must not believe it";
  EXPECT_EQ(AsText(held.value()), "v1");
  EXPECT_FALSE(held.linked());
}

TEST_F(KeptStoreTest, TheyAreNotChargedToTheQuota) {
  Namespaces(64 * kKiB);
  const std::string value(16 * kKiB, 'v');
  for (int i = 0; i < 4; ++i) ASSERT_EQ(Put(kLost, "lost" + std::to_string(i), value), OkStatus());
  EXPECT_EQ(Usage().value_bytes, 64 * kKiB);
  Lose();
  EXPECT_EQ(Usage().value_bytes, 0U);
  EXPECT_EQ(Usage().kept_objects, 4U);
  EXPECT_EQ(Usage().kept_bytes, 64 * kKiB);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(Put(kMine, "mine" + std::to_string(i), value), OkStatus());
  EXPECT_EQ(Usage().evicted_objects, 0U);
  EXPECT_EQ(Kept("lost0"), value) << "there is memory for both";
}

TEST_F(KeptStoreTest, TheyGoBeforeAnythingElse) {
  const std::string value(256 * kKiB, 'v');
  const int most = 40;
  for (int i = 0; i < most / 2; ++i) {
    ASSERT_EQ(Put(kMine, "mine" + std::to_string(i), value), OkStatus());
    ASSERT_EQ(Put(kLost, "lost" + std::to_string(i), value), OkStatus());
  }
  Lose();
  int puts = 0;
  const Deadline deadline = Soon();
  while (puts < 30 && !deadline.Passed())
    if (Put(kMine, "new" + std::to_string(puts), value).ok()) ++puts;
  EXPECT_EQ(Usage().evicted_objects, 0U);
  EXPECT_LT(Usage().kept_objects, static_cast<uint64_t>(most) / 2);
  for (int i = 0; i < most / 2; ++i)
    EXPECT_TRUE(store_.Find(kNs, "mine" + std::to_string(i), false).has_value()) << i;
}

TEST_F(KeptStoreTest, TheyGoAfterTheirTime) {
  ASSERT_EQ(Put(kLost, "lost", "v1"), OkStatus());
  Lose();
  clock_.Advance(std::chrono::seconds(99));
  (void)store_.EvictToWatermark();
  EXPECT_EQ(Kept("lost"), "v1");
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(Kept("lost"), "(nothing)");
  (void)store_.EvictToWatermark();
  EXPECT_EQ(Usage().kept_objects, 0U);
  EXPECT_EQ(Usage().chunk_bytes, 0U) << "and their memory with them";
}

TEST_F(KeptStoreTest, ANamespaceThatIsDeletedTakesThemAlong) {
  ASSERT_EQ(Put(kLost, "lost", "v1"), OkStatus());
  Lose();
  Namespaces(0, kNs.generation + 1);
  EXPECT_EQ(Kept("lost"), "(nothing)");
  EXPECT_EQ(Usage().kept_objects, 0U);
}

TEST_F(KeptStoreTest, AnotherLossDropsWhatWasKeptBefore) {
  ASSERT_EQ(Put(kLost, "lost", "v1"), OkStatus());
  Lose();
  std::bitset<kSlotCount> lost;
  lost.set(kLost.value());
  store_.DropKept(lost);
  EXPECT_EQ(Kept("lost"), "(nothing)");
  EXPECT_EQ(Usage().kept_bytes, 0U);
}

// A change is marked where it is made, whoever makes it.
TEST_F(KeptStoreTest, WhatIsKeptElsewhereLandsOnlyWhereNothingChanged) {
  std::bitset<kSlotCount> mine;
  mine.set(kMine.value());
  moved_.Gain(kHistory, std::vector<uint64_t>(kSlotCount, kSince), mine,
              {{kMine.value(), {kEra, NodeId(3)}}});
  const auto land = [&](const std::string& key, std::string_view value) {
    auto room = store_.Reserve(kNs, kMine, key, value.size());
    EXPECT_TRUE(room.ok());
    Fill(*room, value);
    const uint64_t checksum = CombinePieces(room->piece_sums());
    bool stored = false;
    (void)store_.Publish(std::move(*room), checksum, {.kept_for = kSince}, &stored);
    return stored;
  };
  EXPECT_TRUE(land("quiet", "v1"));
  ASSERT_EQ(Put(kMine, "put", "v2"), OkStatus());
  EXPECT_FALSE(land("put", "v1")) << "there is another value";
  EXPECT_TRUE(store_.Remove(kNs, "put"));
  EXPECT_FALSE(land("put", "v1"));
  EXPECT_FALSE(store_.Remove(kNs, "removed"));
  EXPECT_FALSE(land("removed", "v1"));
  EXPECT_TRUE(store_.Remove(kNs, "quiet"));
  EXPECT_FALSE(land("quiet", "v1"));
}

}  // namespace
}  // namespace ems::server
