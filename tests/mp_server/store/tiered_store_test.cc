// What must hold: an object is found wherever it is; what goes from DRAM comes back from the SSD;
// what was removed or replaced does not, whatever was under way; acknowledged durable Puts and
// Removes hold over a restart.
#include "mp_server/store/tiered_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/checksum.h"
#include "common/object_key.h"
#include "common/thread_pool.h"
#include "mp_server/store/namespace_store.h"
#include "tests/support/eventually.h"
#include "tests/support/held_io.h"
#include "tests/support/self_verifying.h"
#include "tests/support/small_tier.h"

namespace ems::server {
namespace {

using std::chrono::seconds;
using testing::Eventually;
using testing::HeldIo;
using testing::MakeValue;

constexpr SlotId kSlot(11);

// Holds a lock of the SSD's index from the moment that an object is stored until it is let go.
// Threading: thread-safe.
class HeldShard final : public ssd::StoredObserver {
 public:
  void OnStored(const ssd::ObjectName& name) override {
    if (name != held_) return;
    here_.Set();
    (void)go_.WaitFor(seconds(20));
  }
  void OnDropped(const ssd::ObjectName&) override {}
  // Before this one is put.
  void Hold(const ssd::ObjectName& name) { held_ = name; }
  bool Wait() { return here_.WaitFor(seconds(10)); }
  void LetGo() { go_.Set(); }

 private:
  ssd::ObjectName held_;
  StopFlag here_, go_;
};

class TieredStoreTest : public SmallTierTest {
 protected:
  TieredStoreTest() : SmallTierTest("tiered") {
    owned_.set();
    store_->SetOwnedSlots({{1, 1}, owned_});
  }
  ~TieredStoreTest() override {
    shard_.LetGo();
    reads_.LetGo();
    Close();
  }
  void Restart() {
    Close();
    Open();
    store_->SetOwnedSlots({{1, 1}, owned_});
  }
  static bool Await(const ssd::TicketPtr& ticket) {
    if (ticket == nullptr) return true;
    (void)Eventually([&] { return ticket->state() != ssd::Ticket::State::kWaiting; });
    return ticket->state() == ssd::Ticket::State::kDone;
  }
  Result<Reservation> Filled(const std::string& key, uint64_t put_id, size_t bytes,
                             uint64_t* checksum) {
    const std::string value = MakeValue("kv", key, put_id, bytes);
    EMS_ASSIGN_OR_RETURN(Reservation room, dram_->Reserve(kNs, kSlot, key, bytes));
    std::memcpy(room.value().data(), value.data(), bytes);
    PieceHasher hasher;
    hasher.Start(room.piece_sums());
    hasher.Update(AsBytes(value));
    *checksum = hasher.Finish();
    return room;
  }
  Status Put(const std::string& key, uint64_t put_id, size_t bytes, bool durable,
             bool overwrite = false) {
    uint64_t checksum = 0;
    EMS_ASSIGN_OR_RETURN(Reservation room, Filled(key, put_id, bytes, &checksum));
    bool stored = false;
    ssd::TicketPtr ticket;
    EMS_RETURN_IF_ERROR(store_->Publish(
        std::move(room), checksum, overwrite, durable, [] {}, &stored, &ticket));
    return Await(ticket) ? OkStatus() : Error(StatusCode::kUnavailable, "not durable");
  }
  // As far as an overwrite has come when it is in DRAM and has not told the SSD yet.
  ObjectPin PutInDram(const std::string& key, uint64_t put_id, size_t bytes) {
    uint64_t checksum = 0;
    Result<Reservation> room = Filled(key, put_id, bytes, &checksum);
    ObjectPin pin;
    bool stored = false;
    EXPECT_TRUE(room.ok() &&
                ObjectStore::Publish(*std::move(room), checksum,
                                     {.overwrite = true, .pin = &pin, .settling = true}, &stored)
                    .ok());
    EXPECT_TRUE(stored);
    return pin;
  }
  uint64_t IdInDram(const std::string& key) {
    const ObjectPin pin = dram_->Get(kNs, key, false);
    return pin ? testing::VerifyValue("kv", key, AsText(pin.value())).value_or(1) : 0;
  }
  // Whether the SSD has nothing of the key but this, if anything.
  bool SsdHasNothingElse(const std::string& key, const ObjectPin& than) {
    const auto stored = tier_->Find({kNs, KeyHash(key)}, false);
    return !stored || stored->checksum() == than.checksum();
  }
  // From its return on the SSD answers nothing about the key, nor is it told anything, until
  // shard_.LetGo(). After a Restart with `observer_`.
  void HoldSsdOf(const std::string& key) {
    const auto shard_of = [](const std::string& name) { return KeyHash(name).hi >> 60; };
    std::string neighbour = "n";
    while (shard_of(neighbour) != shard_of(key)) neighbour += 'n';
    shard_.Hold({kNs, KeyHash(neighbour)});
    ASSERT_TRUE(Put(neighbour, 9, 100, false).ok());
    ASSERT_TRUE(shard_.Wait());
  }
  // As when memory is short.
  void Evict(const std::string& key) {
    const std::shared_ptr<NamespaceStore> store = dram_->Open(kNs);
    const auto found = store->objects().index().Find(KeyHash(key), key, false, false);
    ASSERT_NE(found.entry, nullptr);
    store->objects().EvictVictim(MakeVictim(found.entry));
  }
  // The put id of what is there; 0: a miss; 1: not the key's bytes.
  uint64_t Get(const std::string& key) {
    const TieredNamespace objects = Objects();
    const TieredNamespace::Got got = objects.Get(key, {});
    if (got.pin) return testing::VerifyValue("kv", key, AsText(got.pin.value())).value_or(1);
    if (!got.on_ssd) return 0;
    StopFlag done;
    const FetchPtr fetch = objects.StartFetch(key, [&done] { done.Set(); }).fetch;
    if (fetch == nullptr || !done.WaitFor(seconds(10))) return 1;
    if (fetch->state() == Fetch::State::kAgain) return Get(key);
    if (fetch->state() != Fetch::State::kHere) return 0;
    return testing::VerifyValue("kv", key, AsText(fetch->pin().value())).value_or(1);
  }
  bool Remove(const std::string& key) {
    const TieredNamespace::Removed removed = Objects().Remove(key, [] {});
    EXPECT_TRUE(Await(removed.ticket));
    return removed.found;
  }
  // Until nothing waits to be written.
  void Quiesce() {
    EXPECT_TRUE(Eventually([&] { return tier_->stats().writer.dirty_bytes == 0; }));
  }

  std::bitset<kSlotCount> owned_;
  HeldIo reads_;
  HeldShard shard_;
};

TEST_F(TieredStoreTest, WhatDramHasNoRoomForComesBackFromTheSsd) {
  for (int i = 0; i < 80; ++i) {
    ASSERT_TRUE(
        Put("k" + std::to_string(i), 7, 400 * kKiB + 13 * static_cast<size_t>(i), false).ok());
    Quiesce();
  }
  int gone = 0;
  for (int i = 0; i < 80; ++i) {
    gone += dram_->Find(kNs, "k" + std::to_string(i), false) ? 0 : 1;
    EXPECT_TRUE(Objects().Find("k" + std::to_string(i), false)) << i;
  }
  EXPECT_GT(gone, 30);
  for (int i = 0; i < 80; ++i) EXPECT_EQ(Get("k" + std::to_string(i)), 7u) << i;
  EXPECT_GT(tier_->stats().reader.reads, 30u);
}

TEST_F(TieredStoreTest, SmallAndLargeValuesSurviveARestart) {
  const std::vector<size_t> sizes = {8, 100, 4096, 65535, 65536, 65537, 147 * kKiB, kMiB + 1};
  for (size_t i = 0; i < sizes.size(); ++i)
    ASSERT_TRUE(Put("s" + std::to_string(i), 3, sizes[i], true).ok()) << sizes[i];
  Restart();
  EXPECT_EQ(tier_->stats().recovered_objects, sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) EXPECT_EQ(Get("s" + std::to_string(i)), 3u) << sizes[i];
}

TEST_F(TieredStoreTest, ManyAreFoundInTheTierThatHasThem) {
  ASSERT_TRUE(Put("in dram", 1, 100, true).ok());
  ASSERT_TRUE(Put("on the ssd", 2, 50'000, true).ok());
  Quiesce();
  Evict("on the ssd");
  const std::vector<std::string_view> keys = {"on the ssd", "nowhere", "in dram"};
  std::vector<std::optional<TieredNamespace::Found>> found(keys.size());
  Objects().FindMany(keys, true, found);
  ASSERT_TRUE(found[0] && found[2]);
  EXPECT_FALSE(found[1]);
  EXPECT_FALSE(found[0]->in_dram);
  EXPECT_EQ(found[0]->info.value_bytes, 50'000U);
  EXPECT_TRUE(found[2]->in_dram);
  EXPECT_EQ(found[2]->info.value_bytes, 100U);
}

TEST_F(TieredStoreTest, AnEmptyValueLivesOnTheSsdToo) {
  ASSERT_TRUE(Put("empty", 0, 0, true).ok());
  Restart();
  const auto info = Objects().Find("empty", false);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->info.value_bytes, 0u);
  StopFlag done;
  const FetchPtr fetch = Objects().StartFetch("empty", [&done] { done.Set(); }).fetch;
  ASSERT_NE(fetch, nullptr);
  ASSERT_TRUE(done.WaitFor(seconds(10)));
  EXPECT_EQ(fetch->state(), Fetch::State::kHere);
}

TEST_F(TieredStoreTest, WhatWasRemovedStaysAwayOverARestart) {
  ASSERT_TRUE(Put("a", 3, 100 * kKiB, true).ok());
  ASSERT_TRUE(Put("b", 3, 100, true).ok());
  EXPECT_TRUE(Remove("a"));
  EXPECT_FALSE(Remove("a"));
  EXPECT_EQ(Get("a"), 0u);
  Restart();
  EXPECT_EQ(Get("a"), 0u);
  EXPECT_EQ(Get("b"), 3u);
}

TEST_F(TieredStoreTest, AnOverwriteThatOnlyDramAcknowledgedLeavesNothingOldBehind) {
  ASSERT_TRUE(Put("a", 3, 100 * kKiB, true).ok());
  ASSERT_TRUE(Put("a", 4, 90 * kKiB, false, true).ok());
  Restart();  // writes what was queued
  EXPECT_EQ(Get("a"), 4u);
  ASSERT_TRUE(Put("a", 5, 80 * kKiB, true, true).ok());
  Restart();
  EXPECT_EQ(Get("a"), 5u);
}

TEST_F(TieredStoreTest, WhatIsHeldBackIsWrittenWhenDramIsFull) {
  overwrite_quiet_ = std::chrono::hours(1);
  Restart();
  ASSERT_TRUE(Put("a", 3, 100 * kKiB, true).ok());
  ASSERT_TRUE(Put("a", 4, 90 * kKiB, false, true).ok());
  ASSERT_EQ(tier_->stats().writer.held_back_bytes, 90 * kKiB);
  std::vector<Reservation> all;
  Result<Reservation> more = Objects().Reserve(kSlot, "b", kMiB);
  for (; more.ok() && all.size() < 16; more = Objects().Reserve(kSlot, "b", kMiB))
    all.push_back(*std::move(more));
  EXPECT_EQ(more.status().code(), StatusCode::kResourceExhausted);
  Quiesce();
  EXPECT_TRUE(tier_->Find({kNs, KeyHash("a")}, false));
}

// Its segment goes to another namespace: it is chosen by what lies at its beginning, an old object.
class LeavingSegmentTest : public TieredStoreTest {
 protected:
  LeavingSegmentTest() {
    overwrite_quiet_ = std::chrono::hours(1);
    wrap_io_ = [this](auto inner) { return reads_.Wrap(std::move(inner)); };
    Restart();
    EXPECT_TRUE(Put("old", 2, 100, true).ok() && Put("a", 3, 100, true).ok());
    EXPECT_TRUE(Put("a", 4, 100, false, true).ok());
    EXPECT_EQ(tier_->stats().writer.held_back_bytes, 100U);
    reads_.Hold(HeldIo::kWrites);
    EXPECT_TRUE(Room().SurrenderSegment(true));
    Room().FinishDraining();
  }
  RoomMaker& Room() { return dram_->Open(kNs)->room(); }
  // When nothing waits to be written any more.
  bool IsGone() {
    Quiesce();
    Room().FinishDraining();
    return dram_->Open(kNs)->objects().slabs().stats().segment_bytes == 0;
  }
};

TEST_F(LeavingSegmentTest, WhatIsHeldBackIsWrittenBeforeItGoes) {
  EXPECT_EQ(IdInDram("old"), 0U);
  EXPECT_EQ(IdInDram("a"), 4U) << "the SSD has none of it yet";
  ASSERT_TRUE(reads_.WaitForOne()) << "the write does not wait for quiet";
  Room().FinishDraining();
  EXPECT_EQ(IdInDram("a"), 4U);
  reads_.LetGo();
  EXPECT_TRUE(IsGone());
  EXPECT_EQ(Get("a"), 4U);
}

TEST_F(LeavingSegmentTest, WhatTheDiskRefusesGoesAllTheSame) {
  ASSERT_TRUE(reads_.WaitForOne());
  reads_.Refuse();
  EXPECT_TRUE(IsGone());
  EXPECT_EQ(Get("a"), 0U);
}

TEST_F(TieredStoreTest, TheSameContentIsNotWrittenTwice) {
  ASSERT_TRUE(Put("a", 3, 100 * kKiB, true).ok());
  const uint64_t written = tier_->stats().writer.written_objects;
  Restart();
  ASSERT_TRUE(Put("a", 3, 100 * kKiB, true).ok());  // DRAM has lost it, the SSD has not
  EXPECT_TRUE(dram_->Find(kNs, "a", false));
  EXPECT_EQ(written, 1u);
  EXPECT_EQ(tier_->stats().writer.written_objects, 0u);
}

TEST_F(TieredStoreTest, AFetchThatIsOvertakenByARemoveBringsNothingBack) {
  for (int i = 0; i < 200; ++i) {
    const std::string key = "r" + std::to_string(i);
    ASSERT_TRUE(Put(key, 3, 200 * kKiB, true).ok());
    ASSERT_TRUE(dram_->Remove(kNs, key));  // from DRAM alone
    StopFlag done;
    const FetchPtr fetch = Objects().StartFetch(key, [&done] { done.Set(); }).fetch;
    ASSERT_NE(fetch, nullptr);
    const bool found = Remove(key);
    ASSERT_TRUE(done.WaitFor(seconds(10)));
    EXPECT_TRUE(found);
    EXPECT_EQ(Get(key), 0u) << i;
  }
}

// The new value may be evicted before the fetch ends: then nothing in DRAM stands in the way of the
// old one.
TEST_F(TieredStoreTest, AFetchThatIsOvertakenByAnOverwriteBringsNothingOldBack) {
  wrap_io_ = [this](auto inner) { return reads_.Wrap(std::move(inner)); };
  Restart();
  ASSERT_TRUE(Put("a", 3, 200 * kKiB, true).ok());
  ASSERT_TRUE(dram_->Remove(kNs, "a"));  // from DRAM alone
  reads_.Hold();
  StopFlag done;
  const FetchPtr fetch = Objects().StartFetch("a", [&done] { done.Set(); }).fetch;
  ASSERT_NE(fetch, nullptr);
  ASSERT_TRUE(reads_.WaitForOne());
  EXPECT_TRUE(Put("a", 4, 100 * kKiB, true, true).ok());
  EXPECT_TRUE(dram_->Remove(kNs, "a"));
  reads_.LetGo();
  ASSERT_TRUE(done.WaitFor(seconds(10)));
  EXPECT_NE(fetch->state(), Fetch::State::kHere);
  EXPECT_EQ(Get("a"), 4u);
}

// Between DRAM and SSD. If it went then, the older value would be in force for good.
TEST_F(TieredStoreTest, AnOverwriteIsNotEvictedBeforeTheSsdHasBeenTold) {
  observer_ = &shard_;
  Restart();
  ASSERT_TRUE(Put("a", 3, 100 * kKiB, true).ok());
  HoldSsdOf("a");
  Status put;
  Thread thread("put", [&] { put = Put("a", 4, 90 * kKiB, false, true); });
  EXPECT_TRUE(Eventually([&] { return IdInDram("a") == 4; }));
  Evict("a");
  shard_.LetGo();
  thread.Join();
  EXPECT_TRUE(put.ok()) << put;
  EXPECT_EQ(Get("a"), 4u);
  Quiesce();
  Evict("a");
  EXPECT_EQ(IdInDram("a"), 0u) << "it goes afterwards";
  EXPECT_EQ(Get("a"), 4u);
}

// Nor by who finds it damaged: then a fetch under way would land in its place.
TEST_F(TieredStoreTest, AFetchFindsAnOverwriteInItsPlaceThatTheSsdHasNotBeenToldOf) {
  observer_ = &shard_;
  wrap_io_ = [this](auto inner) { return reads_.Wrap(std::move(inner)); };
  Restart();
  ASSERT_TRUE(Put("a", 3, 200 * kKiB, true).ok());
  ASSERT_TRUE(dram_->Remove(kNs, "a"));  // from DRAM alone
  reads_.Hold();
  StopFlag done;
  const FetchPtr fetch = Objects().StartFetch("a", [&done] { done.Set(); }).fetch;
  ASSERT_NE(fetch, nullptr);
  ASSERT_TRUE(reads_.WaitForOne());
  HoldSsdOf("a");
  Status put;
  Thread thread("put", [&] { put = Put("a", 4, 90 * kKiB, false, true); });
  EXPECT_TRUE(Eventually([&] { return IdInDram("a") == 4; }));
  if (const ObjectPin pin = dram_->Get(kNs, "a", false)) pin.DropDamaged();
  reads_.LetGo();
  EXPECT_TRUE(done.WaitFor(seconds(10)));
  EXPECT_NE(fetch->state(), Fetch::State::kHere);
  shard_.LetGo();
  thread.Join();
  EXPECT_TRUE(put.ok()) << put;
  EXPECT_EQ(Get("a"), 4u);
}

// The one that has replaced it may stand there for a while, and the process may die meanwhile.
TEST_F(TieredStoreTest, AnOverwriteThatIsReplacedAtOnceIsAnsweredWhenTheSsdHasNothingOlder) {
  observer_ = &shard_;
  Restart();
  ASSERT_TRUE(Put("a", 3, 100 * kKiB, true).ok());
  HoldSsdOf("a");
  Status put;
  Thread thread("put", [&] { put = Put("a", 4, 90 * kKiB, false, true); });
  EXPECT_TRUE(Eventually([&] { return IdInDram("a") == 4; }));
  const ObjectPin newest = PutInDram("a", 5, 80 * kKiB);
  shard_.LetGo();
  thread.Join();
  EXPECT_TRUE(put.ok()) << put;
  EXPECT_TRUE(SsdHasNothingElse("a", newest));
}

TEST_F(TieredStoreTest, ASecondPutOfAValueIsAnsweredWhenTheSsdHasNothingOlder) {
  for (const bool durable : {false, true}) {
    const std::string key = durable ? "durable" : "dram";
    ASSERT_TRUE(Put(key, 3, 100 * kKiB, true).ok());
    const ObjectPin first = PutInDram(key, 4, 90 * kKiB);
    EXPECT_TRUE(Put(key, 4, 90 * kKiB, durable).ok());
    EXPECT_TRUE(SsdHasNothingElse(key, first));
    EXPECT_TRUE(!durable || tier_->Find({kNs, KeyHash(key)}, false));
  }
}

TEST_F(TieredStoreTest, WhoWantsAnotherKeyOfTheSameHashDoesNotGetWhatIsFetched) {
  hash_ = [](std::string_view) { return Hash128{1, 1}; };
  wrap_io_ = [this](auto inner) { return reads_.Wrap(std::move(inner)); };
  Restart();
  ASSERT_TRUE(Put("a", 3, 200 * kKiB, true).ok());
  ASSERT_TRUE(dram_->Remove(kNs, "a"));  // from DRAM alone
  reads_.Hold();
  StopFlag done, joined;
  const FetchPtr fetch = Objects().StartFetch("a", [&done] { done.Set(); }).fetch;
  ASSERT_NE(fetch, nullptr);
  const TieredNamespace::Started other = Objects().StartFetch("b", [] {});
  EXPECT_EQ(other.fetch, nullptr);
  EXPECT_FALSE(other.busy);
  EXPECT_EQ(Objects().StartFetch("a", [&joined] { joined.Set(); }).fetch, fetch);
  reads_.LetGo();
  EXPECT_TRUE(done.WaitFor(seconds(10)) && joined.WaitFor(seconds(10)));
  EXPECT_EQ(Get("a"), 3u);
  EXPECT_EQ(Get("b"), 0u) << "the SSD has another key's";
}

TEST_F(TieredStoreTest, SlotsThatAreLostAreForgottenForGood) {
  ASSERT_TRUE(Put("a", 3, 100 * kKiB, true).ok());
  store_->SetOwnedSlots({{1, 2}, {}});
  EXPECT_EQ(Get("a"), 0u);
  store_->SetOwnedSlots({{1, 3}, owned_});
  EXPECT_EQ(Get("a"), 0u);
  Close();
  Open();  // installs view 1.1 again, which is older: all is dropped
  EXPECT_EQ(Get("a"), 0u);
}

TEST_F(TieredStoreTest, AMissedViewDropsWhatOthersMayHaveChanged) {
  ASSERT_TRUE(Put("a", 3, 100 * kKiB, true).ok());
  store_->SetOwnedSlots({{1, 2}, owned_});
  EXPECT_EQ(Get("a"), 3u);
  Quiesce();
  Close();
  ssd::TierOptions tier;
  tier.folder = folder_;
  tier.capacity_bytes = 64 * kMiB;
  tier.region_bytes = 8 * kMiB;
  tier.lineage = 40;
  const ssd::ObjectName name{kNs, KeyHash("a")};
  {
    const auto next = ssd::SsdTier::Open(tier);
    next->SetOwnedSlots({{2, 3}, owned_});  // the very next one
    EXPECT_TRUE(next->Find(name, false));
  }
  const auto later = ssd::SsdTier::Open(tier);
  EXPECT_EQ(later->stats().objects, 1u);
  EXPECT_FALSE(later->Find(name, false));  // no view yet: nothing is shown
  later->SetOwnedSlots({{2, 5}, owned_});
  EXPECT_EQ(later->stats().objects, 0u);
  EXPECT_FALSE(later->Find(name, false));
}

// While it lives, too: of views that were skipped the slots that were another's begin empty, and
// the others go on.
TEST_F(TieredStoreTest, SkippedViewsDropWhatWasAnothersAlone) {
  ssd::SlotGrant grant;
  grant.owned = owned_;
  grant.history = 7;
  grant.since.assign(kSlotCount, 1);
  grant.view = {1, 2};
  store_->SetOwnedSlots(grant);
  ASSERT_TRUE(Put("a", 3, 100 * kKiB, false).ok());
  grant.view = {1, 9};
  store_->SetOwnedSlots(grant);
  EXPECT_EQ(Get("a"), 3u);
  grant.view = {1, 20};
  grant.since[kSlot.value()] = 11;
  store_->SetOwnedSlots(grant);
  EXPECT_EQ(Get("a"), 0u);
  EXPECT_TRUE(Put("a", 4, 100 * kKiB, false).ok());
  EXPECT_EQ(Get("a"), 4u);
}

TEST_F(TieredStoreTest, ANamespaceThatIsGoneTakesItsObjectsAlong) {
  ASSERT_TRUE(Put("a", 3, 100 * kKiB, true).ok());
  store_->SetNamespaces(NamespaceTable{.version = 2, .by_id = {}}, 1.0);
  EXPECT_EQ(tier_->stats().objects, 0u);
}

TEST_F(TieredStoreTest, AFullLogGivesUpTheOldestAndStaysBelowItsCap) {
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(Put("f" + std::to_string(i), 3, 500 * kKiB, false).ok());
    Quiesce();
  }
  const ssd::TierStats stats = tier_->stats();
  EXPECT_LE(stats.disk_bytes, stats.capacity_bytes);
  EXPECT_GT(stats.writer.reclaimed_regions, 5u);
  EXPECT_EQ(Get("f0"), 0u);
  EXPECT_EQ(Get("f299"), 3u);
  EXPECT_EQ(Get("f260"), 3u);
  const uint64_t objects = tier_->stats().objects;
  Restart();
  EXPECT_EQ(tier_->stats().recovered_objects, objects);
  EXPECT_EQ(Get("f299"), 3u);
}

}  // namespace
}  // namespace ems::server
