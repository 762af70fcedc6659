// What must hold: a key that is there all the while comes at least once, in whichever tier it is
// and however the indexes grow; one in both tiers comes once; any place is one to go on from.
#include "mp_server/store/key_walk.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "common/checksum.h"
#include "mp_server/store/namespace_store.h"
#include "tests/support/eventually.h"
#include "tests/support/self_verifying.h"
#include "tests/support/small_tier.h"

namespace ems::server {
namespace {

using testing::Eventually;
using wire::ItemTier;

class KeyWalkTest : public SmallTierTest {
 protected:
  KeyWalkTest() : SmallTierTest("key_walk") {
    std::bitset<kSlotCount> owned;
    owned.set();
    store_->SetOwnedSlots({{1, 1}, owned});
  }
  void Put(TieredStore* store, const std::string& key, SlotId slot = SlotId(11),
           size_t bytes = 100) {
    const std::string value = testing::MakeValue("kv", key, 1, bytes);
    Result<Reservation> room = dram_->Reserve(to_, slot, key, bytes);
    ASSERT_TRUE(room.ok()) << ToString(room.status());
    std::memcpy(room->value().data(), value.data(), bytes);
    PieceHasher hasher;
    hasher.Start(room->piece_sums());
    hasher.Update(AsBytes(value));
    bool stored = false;
    ssd::TicketPtr ticket;
    ASSERT_TRUE(store
                    ->Publish(
                        *std::move(room), hasher.Finish(), false, false, [] {}, &stored, &ticket)
                    .ok());
  }
  void Put(const std::string& key) { Put(store_.get(), key); }
  void Quiesce() {
    EXPECT_TRUE(Eventually([&] { return tier_->stats().writer.dirty_bytes == 0; }));
  }
  void Evict(const std::string& key) {
    const std::shared_ptr<NamespaceStore> store = dram_->Open(to_);
    const auto found = store->objects().index().Find(KeyHash(key), key, false, false);
    ASSERT_NE(found.entry, nullptr);
    ASSERT_TRUE(store->objects().EvictVictim(MakeVictim(found.entry)));
  }
  static KeyWalk::Options Wanted(uint64_t keys_max, std::string prefix = {}) {
    return {
        .prefix = std::move(prefix), .keys_max = keys_max, .bytes_max = kMiB, .shown = [](SlotId) {
          return true;
        }};
  }
  static void Finish(KeyWalk* walk) {
    ASSERT_TRUE(Eventually([&] {
      KeyWalk::Step step = KeyWalk::Step::kMore;
      while (step == KeyWalk::Step::kMore) step = walk->GoOn([] {});
      return step == KeyWalk::Step::kDone;
    }));
  }
  // How often each key came, page by page; `between` is called after each.
  std::map<std::string, int> All(TieredStore* store, uint64_t keys_max,
                                 const std::function<void()>& between = {}) {
    std::map<std::string, int> seen;
    const TieredNamespace objects = store->Open(kNs);
    KeyPlace place;
    for (int pages = 0; pages < 10'000; ++pages) {
      KeyWalk walk(&objects, place, Wanted(keys_max));
      Finish(&walk);
      for (const wire::ListedKey& one : walk.found()) {
        ++seen[one.key];
        tiers_[one.key] = one.tier;
      }
      if (walk.ended()) return seen;
      place = walk.place();
      if (between) between();
    }
    ADD_FAILURE() << "it does not end";
    return seen;
  }

  std::map<std::string, ItemTier> tiers_;  // as they came last
  NamespaceRef to_ = kNs;                  // of Put and Evict
};

TEST_F(KeyWalkTest, EachKeyComesOnceWhenNothingChanges) {
  TieredStore alone(dram_.get(), nullptr);
  for (int i = 0; i < 3000; ++i) Put(&alone, fmt::format("k{}", i));
  for (const uint64_t keys_max : {1U, 7U, 100U, 1024U}) {
    const auto seen = All(&alone, keys_max);
    EXPECT_EQ(seen.size(), 3000U) << keys_max;
    for (const auto& [key, times] : seen) EXPECT_EQ(times, 1) << key;
  }
}

TEST_F(KeyWalkTest, APageEndsWhereItsLimitsAreReached) {
  TieredStore alone(dram_.get(), nullptr);
  for (int i = 0; i < 2000; ++i) Put(&alone, fmt::format("k{:0400}", i));
  const TieredNamespace objects = alone.Open(kNs);
  KeyWalk few(&objects, {}, Wanted(50));
  Finish(&few);
  EXPECT_GE(few.found().size(), 50U);
  EXPECT_LE(few.found().size(), 70U);
  KeyWalk::Options small = Wanted(1024);
  small.bytes_max = 4010;
  KeyWalk short_one(&objects, {}, small);
  Finish(&short_one);
  EXPECT_GE(short_one.found().size(), 10U);
  EXPECT_LE(short_one.found().size(), 30U);
}

TEST_F(KeyWalkTest, APageThatFindsNothingEndsToo) {
  TieredStore alone(dram_.get(), nullptr);
  for (int i = 0; i < 20'000; ++i) Put(&alone, fmt::format("k{}", i));
  const TieredNamespace objects = alone.Open(kNs);
  KeyWalk walk(&objects, {}, Wanted(1024, "no-such"));
  Finish(&walk);
  EXPECT_TRUE(walk.found().empty());
  EXPECT_FALSE(walk.ended());
}

TEST_F(KeyWalkTest, APageReadsABoundedNumberOfRecordsAndFewOfThemAtOnce) {
  constexpr int kKeys = 1500;  // in 16 shards
  for (int i = 0; i < kKeys; ++i) Put(fmt::format("k{}", i));
  Quiesce();
  for (int i = 0; i < kKeys; ++i) Evict(fmt::format("k{}", i));
  const TieredNamespace objects = Objects();
  std::atomic<uint32_t> come{0};
  KeyWalk walk(&objects, {}, Wanted(kKeys));
  KeyWalk::Step step = KeyWalk::Step::kMore;
  while (step == KeyWalk::Step::kMore) step = walk.GoOn([&come] { ++come; });
  ASSERT_EQ(step, KeyWalk::Step::kComing);
  EXPECT_TRUE(Eventually([&] { return come >= KeyWalk::kReadsAtOnce; }));
  ::poll(nullptr, 0, 50);  // others that were under way would come, too
  EXPECT_EQ(come, KeyWalk::kReadsAtOnce);
  Finish(&walk);
  EXPECT_GE(walk.found().size(), KeyWalk::kPageReads);
  EXPECT_LE(walk.found().size(), KeyWalk::kPageReads + 2 * kKeys / 16);
}

TEST_F(KeyWalkTest, KeysThatStayComeHoweverTheIndexesGrow) {
  for (int i = 0; i < 500; ++i) Put(fmt::format("stays{}", i));
  Quiesce();
  for (int i = 0; i < 500; i += 2) Evict(fmt::format("stays{}", i));
  int noise = 0;
  const auto seen = All(store_.get(), 20, [&] {
    if (noise >= 6000) return;
    for (const int end = noise + 300; noise < end; ++noise) Put(fmt::format("noise{}", noise));
    for (int gone = noise - 300; gone < noise; gone += 3)
      (void)Objects().Remove(fmt::format("noise{}", gone), [] {});
  });
  for (int i = 0; i < 500; ++i) EXPECT_TRUE(seen.contains(fmt::format("stays{}", i))) << i;
}

TEST_F(KeyWalkTest, KeysThatStayComeWhileOthersArePutAndRemoved) {
  for (int i = 0; i < 500; ++i) Put(fmt::format("stays{}", i));
  StopFlag stop;
  Thread other("noise", [&] {
    for (int i = 0; !stop.IsSet() && i < 50'000; ++i) {
      Put(fmt::format("noise{}", i));
      if (i >= 100) (void)Objects().Remove(fmt::format("noise{}", i - 100), [] {});
    }
  });
  for (int round = 0; round < 5; ++round) {
    const auto seen = All(store_.get(), 10);
    for (int i = 0; i < 500; ++i) EXPECT_TRUE(seen.contains(fmt::format("stays{}", i))) << i;
  }
  stop.Set();
  other.Join();
}

TEST_F(KeyWalkTest, AKeyInBothTiersComesOnceAndOneOfTheSsdAloneIsReadThere) {
  for (int i = 0; i < 300; ++i) Put(fmt::format("k{}", i));
  Put(store_.get(), "large", SlotId(11), 200 * kKiB);  // its head lies in blocks of its own
  Quiesce();
  for (int i = 0; i < 300; i += 3) Evict(fmt::format("k{}", i));
  Evict("large");
  const auto seen = All(store_.get(), 64);
  EXPECT_EQ(seen.size(), 301U);
  for (const auto& [key, times] : seen) EXPECT_EQ(times, 1) << key;
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(tiers_[fmt::format("k{}", i)], i % 3 == 0 ? ItemTier::kSsd : ItemTier::kDram) << i;
  }
  EXPECT_EQ(tiers_["large"], ItemTier::kSsd);
}

TEST_F(KeyWalkTest, AKeyThatComesToDramBehindTheWalkIsNotTakenForOneThatItHasMet) {
  Put("back");
  Quiesce();
  Evict("back");
  const TieredNamespace objects = Objects();
  const auto shard = static_cast<uint32_t>(KeyHash("back").hi >> 60);
  KeyWalk walk(&objects, {.shard = shard}, Wanted(1024));
  ASSERT_EQ(walk.GoOn([] {}), KeyWalk::Step::kMore);
  ASSERT_TRUE(walk.place().on_ssd) << "the shard's DRAM is walked";
  StopFlag here;
  const FetchPtr fetch = objects.StartFetch("back", [&] { here.Set(); }).fetch;
  ASSERT_NE(fetch, nullptr);
  ASSERT_TRUE(here.WaitFor(std::chrono::seconds(10)));
  ASSERT_TRUE(dram_->Find(kNs, "back", false));
  Finish(&walk);
  EXPECT_EQ(std::ranges::count(walk.found(), "back", &wire::ListedKey::key), 1);
}

TEST_F(KeyWalkTest, AgeAndIdleTimeAreTold) {
  Put("k");
  const TieredNamespace objects = Objects();
  KeyWalk walk(&objects, {.shard = static_cast<uint32_t>(KeyHash("k").hi >> 60)}, Wanted(1));
  Finish(&walk);
  ASSERT_EQ(walk.found().size(), 1U);
  EXPECT_LT(walk.found()[0].age_ms, 60'000U);
  EXPECT_LE(walk.found()[0].idle_ms, walk.found()[0].age_ms + 1);
  EXPECT_EQ(walk.found()[0].value_bytes, 100U);
}

TEST_F(KeyWalkTest, KeysOfSlotsThatAreNotShownAndWithAnotherBeginningAreLeftOut) {
  for (int i = 0; i < 40; ++i)
    Put(store_.get(), fmt::format("a/{}", i), SlotId(static_cast<uint16_t>(i % 2)));
  for (const char* key : {"b/in-dram", "b/on-ssd"}) Put(store_.get(), key, SlotId(1));
  Quiesce();
  for (int i = 0; i < 40; i += 4) Evict(fmt::format("a/{}", i));
  for (int i = 1; i < 40; i += 4) Evict(fmt::format("a/{}", i));
  Evict("b/on-ssd");
  const TieredNamespace objects = Objects();
  KeyWalk::Options options = Wanted(1024, "a/");
  options.shown = [](SlotId slot) { return slot == SlotId(1); };
  std::vector<std::string> keys;
  for (KeyPlace place; place.shard < ObjectIndex::kShards;) {
    KeyWalk walk(&objects, place, options);
    Finish(&walk);
    for (const wire::ListedKey& one : walk.found()) keys.push_back(one.key);
    place = walk.place();
  }
  EXPECT_EQ(keys.size(), 20U);
  for (const std::string& key : keys) {
    EXPECT_TRUE(key.starts_with("a/")) << key;
    EXPECT_EQ((key.back() - '0') % 2, 1) << key;
  }
}

TEST_F(KeyWalkTest, KeysOfAnotherNamespaceAreNotListedFromEitherTier) {
  constexpr NamespaceRef kOther{NamespaceId(2), 5};
  NamespaceTable table;
  table.version = 2;
  for (const NamespaceRef& ref : {kNs, kOther}) {
    NamespaceInfo& info = table.by_id[ref.id];
    info.ref = ref;
    info.name = ref == kNs ? "kv" : "other";
  }
  store_->SetNamespaces(table, 1.0);
  for (const NamespaceRef& ref : {kOther, kNs}) {
    to_ = ref;
    for (const char* key : {"in-dram", "on-ssd"})
      Put(fmt::format("{}{}", ref == kNs ? "mine-" : "theirs-", key));
    Quiesce();
    Evict(ref == kNs ? "mine-on-ssd" : "theirs-on-ssd");
  }
  const auto seen = All(store_.get(), 64);
  EXPECT_EQ(seen.size(), 2U);
  for (const char* key : {"mine-in-dram", "mine-on-ssd"}) EXPECT_TRUE(seen.contains(key)) << key;
}

TEST_F(KeyWalkTest, AnyPlaceIsOneToGoOnFrom) {
  for (int i = 0; i < 200; ++i) Put(fmt::format("k{}", i));
  Quiesce();
  const TieredNamespace objects = Objects();
  for (const bool on_ssd : {false, true}) {
    for (const uint32_t shard : {0U, 15U, 16U, 17U, UINT32_MAX}) {
      for (const uint32_t bucket : {0U, 1U, 255U, 1U << 20, UINT32_MAX}) {
        for (const uint32_t buckets : {0U, 1U, 13U, UINT32_MAX}) {
          for (const int64_t began_ns : {INT64_MIN, int64_t{0}, INT64_MAX}) {
            KeyWalk walk(&objects, {on_ssd, shard, bucket, buckets, began_ns}, Wanted(1024));
            Finish(&walk);
            EXPECT_LE(walk.found().size(), 400U);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ems::server
