// What must hold: bytes that a client looks at stay as they are and stay charged, however much is
// evicted, removed or replaced; and they are freed when it looks away or goes.
#include "mp_server/index/sharing.h"

#include <gtest/gtest.h>

#include <map>
#include <new>

#include "tests/mp_server/shm/shared_reader.h"
#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

std::string MakeValue(std::string_view key, uint64_t bytes) {
  return testing::MakeValue("kv", key, 1, bytes);
}

class SharingTest : public NamespaceFixture {
 protected:
  void Begin(uint64_t pool_bytes, uint64_t quota_bytes = 0) {
    Make(pool_bytes, quota_bytes);
    ASSERT_TRUE(store_->Share().ok());
    store_->MaintainShared();
    page_ = AddSession(1);
  }
  shm::SessionPage* AddSession(uint64_t session) {
    auto made = fabric::ShmSegment::CreatePages(shm::kSessionBytes, true);
    EXPECT_TRUE(made.ok()) << made.status();
    auto* page = new (made->bytes().data()) shm::SessionPage;
    store_->sharing().AddSession(session,
                                 std::make_shared<const fabric::ShmSegment>(*std::move(made)));
    return page;
  }
  std::optional<SharedEntry> Find(std::string_view key) {
    const auto control = store_->sharing().index()->OpenControl();
    const Mapping page(control->fd, control->bytes);
    const Hash128 hash = KeyHash(key);
    const uint64_t word = page.as<const shm::ControlPage>()->shards[shm::ShardOf(hash)].load();
    const auto table = store_->sharing().index()->OpenTable(shm::TableOf(word));
    EXPECT_TRUE(table.ok()) << table.status();
    return LookUp(Mapping(table->fd, table->bytes), hash);
  }
  std::string BytesAt(const SharedEntry& entry) {
    const auto segment = store_->OpenSegment(shm::SegmentOf(entry.location));
    EXPECT_TRUE(segment.ok()) << segment.status();
    const Mapping mapped(*segment->fd, segment->bytes);
    const auto* header =
        reinterpret_cast<const ObjectHeader*>(mapped.data() + shm::OffsetOf(entry.location));
    return {reinterpret_cast<const char*>(header) + header->payload_offset, header->payload_bytes};
  }
  void Hold(uint32_t slot, const SharedEntry& entry) {
    page_->hazard_end = std::max(page_->hazard_end.load(), slot + 1);
    page_->hazards[slot] = entry.generation_tag;
  }

  shm::SessionPage* page_ = nullptr;
};

TEST_F(SharingTest, TheIndexFollowsPutsReplacementsAndRemovals) {
  Begin(8 * kMiB);
  ASSERT_TRUE(PutTick("a", MakeValue("a", 1000)).ok());
  auto found = Find("a");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(BytesAt(*found), MakeValue("a", 1000));
  ASSERT_TRUE(Put(*store_, "a", MakeValue("b", 200'000), true).ok());
  found = Find("a");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(BytesAt(*found), MakeValue("b", 200'000));
  EXPECT_TRUE(store_->Remove("a"));
  EXPECT_FALSE(Find("a").has_value());
}

TEST_F(SharingTest, AnObjectThatIsLookedAtOutlivesItsRemovalAndAllEviction) {
  Begin(8 * kMiB);
  const std::string value = MakeValue("kept", 100'000);
  ASSERT_TRUE(PutTick("kept", value).ok());
  const SharedEntry entry = *Find("kept");
  Hold(5, entry);
  EXPECT_TRUE(store_->Remove("kept"));
  EXPECT_EQ(Read("kept"), "(miss)");
  EXPECT_GE(store_->Usage().retired_bytes, value.size());
  EXPECT_EQ(store_->Usage().value_bytes, value.size()) << "still charged";
  for (int i = 0; i < 500; ++i)
    ASSERT_TRUE(PutTick(std::to_string(i), MakeValue(std::to_string(i), 100'000)).ok()) << i;
  EXPECT_EQ(BytesAt(entry), value);
  EXPECT_FALSE(store_->objects().FreeRetired());
  page_->hazards[5] = 0;
  EXPECT_TRUE(store_->objects().FreeRetired());
  EXPECT_EQ(store_->Usage().retired_bytes, 0u);
}

TEST_F(SharingTest, RoomIsMadeOfWhatNobodyLooksAtAnyMore) {
  Begin(8 * kMiB);
  int held = 0;
  for (; held < 4; ++held) {
    const std::string key = "held" + std::to_string(held);
    ASSERT_TRUE(PutTick(key, MakeValue(key, kMiB)).ok());
    Hold(static_cast<uint32_t>(held), *Find(key));
    EXPECT_TRUE(store_->Remove(key));
  }
  // Each has a segment to itself, and less than its own size is left there.
  const Status status = PutTick("more", MakeValue("more", kMiB));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << "nothing large is left free";
  for (int i = 0; i < held; ++i) page_->hazards[static_cast<size_t>(i)] = 0;
  EXPECT_TRUE(PutTick("fits", MakeValue("fits", kMiB)).ok());
  EXPECT_EQ(store_->Usage().retired_bytes, 0u);
}

TEST_F(SharingTest, WhereALookIsCostlyManyShareOneAndTheBoundsHold) {
  Begin(64 * kMiB);
  for (uint64_t session = 2; session < 6; ++session)
    AddSession(session)->hazard_end = shm::kHazardsMax;
  const std::string value = MakeValue("kept", 10'000);
  ASSERT_TRUE(PutTick("kept", value).ok());
  const SharedEntry kept = *Find("kept");
  Hold(5, kept);
  EXPECT_TRUE(store_->Remove("kept"));  // its look finds out what looks cost
  ASSERT_TRUE(store_->sharing().look_is_costly());
  for (uint32_t i = 1; i < Sharing::kWaitingMax; ++i) {
    ASSERT_TRUE(PutTick("small", MakeValue("small", 100)).ok());
    ASSERT_TRUE(store_->Remove("small"));
    ASSERT_EQ(store_->sharing().waiting(), i);
  }
  ASSERT_TRUE(PutTick("small", MakeValue("small", 100)).ok());
  ASSERT_TRUE(store_->Remove("small"));
  EXPECT_EQ(store_->sharing().waiting(), 0u);
  EXPECT_EQ(store_->Usage().value_bytes, value.size()) << "all but what is looked at is free";
  ASSERT_TRUE(PutTick("large", MakeValue("large", kMiB / 2)).ok());
  ASSERT_TRUE(store_->Remove("large"));
  EXPECT_EQ(store_->sharing().waiting(), 0u) << "much does not wait for others";
  EXPECT_EQ(BytesAt(kept), value);
  page_->hazards[5] = 0;
}

TEST_F(SharingTest, WhereALookIsCostlyRoomIsMadeForEachPutAllTheSame) {
  Begin(8 * kMiB);
  for (uint64_t session = 2; session < 6; ++session)
    AddSession(session)->hazard_end = shm::kHazardsMax;
  for (const uint64_t bytes : {uint64_t{5'000}, uint64_t{60'000}, kMiB}) {
    const int puts = bytes < kMiB ? 1'000 : 100;
    for (int i = 0; i < puts; ++i) {
      const std::string key = std::to_string(bytes) + "-" + std::to_string(i % 700);
      clock_.Advance(Duration(1));
      ASSERT_TRUE(Put(*store_, key, MakeValue(key, bytes), true).ok()) << key;
      ASSERT_EQ(Read(key), MakeValue(key, bytes));
    }
  }
  ASSERT_TRUE(store_->sharing().look_is_costly());
  EXPECT_LE(store_->sharing().waiting(), Sharing::kWaitingMax);
}

TEST_F(SharingTest, WhatOnlyWaitsForALookIsRoomWhenNothingCanBeEvicted) {
  Begin(8 * kMiB, 30'000);
  for (uint64_t session = 2; session < 6; ++session)
    AddSession(session)->hazard_end = shm::kHazardsMax;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(PutTick("one", MakeValue("one", 20'000)).ok()) << i;
    ASSERT_TRUE(store_->Remove("one"));
  }
  EXPECT_TRUE(store_->sharing().look_is_costly());
}

TEST_F(SharingTest, WhatEachSessionHoldsBackIsCounted) {
  Begin(8 * kMiB);
  ASSERT_TRUE(PutTick("a", MakeValue("a", kMiB)).ok());
  ASSERT_TRUE(PutTick("b", MakeValue("b", kMiB)).ok());
  AddSession(2);
  Hold(0, *Find("a"));
  Hold(1, *Find("b"));
  EXPECT_TRUE(store_->sharing().HeldBytes().empty()) << "linked objects hold nothing back";
  store_->Remove("a");
  store_->Remove("b");
  const std::map<uint64_t, uint64_t> held = store_->sharing().HeldBytes();
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held.at(1), 2 * (kMiB + kObjectHeaderBytes));
  store_->sharing().RemoveSession(1);
  EXPECT_TRUE(store_->objects().FreeRetired());
}

TEST_F(SharingTest, WhatAClientHasJustUsedIsNotEvictedNext) {
  Begin(8 * kMiB);
  // Fills the memory, so that the next Put has to evict.
  int puts = 0;
  while (store_->Usage().evicted_objects == 0)
    ASSERT_TRUE(PutTick(std::to_string(puts++), std::string(kMiB / 2, 'x')).ok());
  const int coldest = static_cast<int>(store_->Usage().evicted_objects);
  const Hash128 hash = KeyHash(std::to_string(coldest));
  page_->touches[0].hash_lo = hash.lo;
  page_->touches[0].hash_hi = hash.hi;
  page_->touch_count = 1;
  clock_.Advance(std::chrono::milliseconds(1));
  const uint64_t before = store_->Usage().evicted_objects;
  // A Put may find what earlier ones have freed ahead.
  while (store_->Usage().evicted_objects == before)
    ASSERT_TRUE(PutTick(std::to_string(puts++), std::string(kMiB / 2, 'x')).ok());
  EXPECT_TRUE(store_->Find(std::to_string(coldest), false).has_value());
  EXPECT_EQ(store_->Usage().touches, 1u);
}

TEST_F(SharingTest, AClosedNamespaceSaysSoAndDropsItsIndex) {
  Begin(8 * kMiB);
  ASSERT_TRUE(PutTick("a", "value").ok());
  const auto control = store_->sharing().index()->OpenControl();
  const Mapping page(control->fd, control->bytes);
  store_->Close();
  EXPECT_EQ(page.as<const shm::ControlPage>()->closed.load(), 1u);
  EXPECT_FALSE(Find("a").has_value());
}

}  // namespace
}  // namespace ems::server
