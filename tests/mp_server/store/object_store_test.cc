#include "mp_server/store/object_store.h"

#include <gtest/gtest.h>

#include "tests/mp_server/shm/shared_reader.h"
#include "tests/mp_server/store/memory_fixture.h"

namespace ems::server {
namespace {

using testing::MakeValue;
using testing::VerifyValue;

constexpr NamespaceRef kA{NamespaceId(1), 1};
constexpr NamespaceRef kB{NamespaceId(2), 1};

class ObjectStoreTest : public ::testing::Test {
 protected:
  void Make(uint64_t pool_bytes, uint64_t segment_bytes = 2 * kMiB) {
    pool_ = std::make_unique<SegmentPool>(SmallPool(pool_bytes, segment_bytes));
    ObjectStore::Options options;
    options.pool = pool_.get();
    options.clock = store_clock_;
    store_ = std::make_unique<ObjectStore>(options);
    store_->SetOwnedSlots(AllSlots());
    ASSERT_TRUE(pool_->WaitReady(pool_bytes, Soon()).ok());
  }
  void Namespaces(std::vector<NamespaceInfo> infos, double share = 1) {
    NamespaceTable table;
    for (NamespaceInfo& info : infos) {
      info.name = "ns" + std::to_string(info.ref.id.value());
      table.by_id[info.ref.id] = info;
    }
    store_->SetNamespaces(table, share);
  }
  static NamespaceInfo Info(NamespaceRef ref, uint64_t quota = 0, uint64_t reserved = 0) {
    NamespaceInfo info;
    info.ref = ref;
    info.dram_quota_bytes = quota;
    info.dram_reserved_bytes = reserved;
    return info;
  }
  Status Put(NamespaceRef ns, const std::string& key, std::string_view value, uint16_t slot = 0) {
    auto room = store_->Reserve(ns, SlotId(slot), key, value.size());
    if (!room.ok()) return room.status();
    Fill(*room, value);
    const uint64_t checksum = CombinePieces(room->piece_sums());
    bool stored = false;
    return store_->Publish(std::move(*room), checksum, {}, &stored);
  }
  // As a client does: "try again shortly" until the deadline.
  Status PutRetrying(NamespaceRef ns, const std::string& key, std::string_view value) {
    const Deadline deadline = Soon();
    Status put = Put(ns, key, value);
    while (put.code() == StatusCode::kResourceExhausted && !deadline.Passed())
      put = Put(ns, key, value);
    return put;
  }
  NamespaceUsage UsageOf(NamespaceRef ns) {
    for (const NamespaceUsage& usage : store_->Usage())
      if (usage.ref == ns) return usage;
    return {};
  }
  bool Has(NamespaceRef ns, const std::string& key) {
    return store_->Find(ns, key, false).has_value();
  }

  ManualClock clock_;
  const Clock* store_clock_ = &Clock::System();
  std::unique_ptr<SegmentPool> pool_;
  std::unique_ptr<ObjectStore> store_;
};

TEST_F(ObjectStoreTest, NamespacesAreApartAndUnknownOnesRefused) {
  Make(8 * kMiB);
  Namespaces({Info(kA), Info(kB)});
  ASSERT_TRUE(Put(kA, "k", "a").ok());
  EXPECT_TRUE(Has(kA, "k"));
  EXPECT_FALSE(Has(kB, "k"));
  EXPECT_EQ(store_->Open({NamespaceId(1), 2}), nullptr);
  EXPECT_FALSE(store_->Get({NamespaceId(1), 2}, "k", false));
  EXPECT_EQ(Put({NamespaceId(3), 1}, "k", "c").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_->Find(kA, "k", false)->value_bytes, 1u);
}

TEST_F(ObjectStoreTest, ANewGenerationLosesTheOldObjectsAtOnceAndTheirMemoryWithThePins) {
  Make(8 * kMiB);
  Namespaces({Info(kA)});
  ASSERT_TRUE(Put(kA, "k", "old").ok());
  ObjectPin pin = store_->Get(kA, "k", false);
  auto room = store_->Reserve(kA, SlotId(0), "late", 4);
  const NamespaceRef again{kA.id, 2};
  Namespaces({Info(again)});
  EXPECT_EQ(store_->Open(kA), nullptr);
  EXPECT_FALSE(Has(again, "k"));
  bool stored = true;
  EXPECT_EQ(store_->Publish(std::move(*room), 0, {}, &stored).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(AsText(pin.value()), "old");
  pin = ObjectPin();
  EXPECT_EQ(pool_->stats().bytes_in_use, 0u);
}

TEST_F(ObjectStoreTest, LostSlotsLoseTheirObjectsAndRefusePublication) {
  Make(8 * kMiB);
  Namespaces({Info(kA)});
  for (uint16_t slot = 0; slot < 100; ++slot)
    ASSERT_TRUE(Put(kA, std::to_string(slot), "v", slot).ok());
  auto late = store_->Reserve(kA, SlotId(5), "late", 1);
  auto owned = AllSlots();
  for (size_t slot = 0; slot < 50; ++slot) owned.reset(slot);
  store_->SetOwnedSlots(owned);
  for (uint16_t slot = 0; slot < 100; ++slot) EXPECT_EQ(Has(kA, std::to_string(slot)), slot >= 50);
  EXPECT_EQ(UsageOf(kA).objects, 50u);
  bool stored = false;
  EXPECT_EQ(store_->Publish(std::move(*late), 0, {}, &stored).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(UsageOf(kA).value_bytes, 50u);
}

// Who had the slot between may take Puts for it still.
TEST_F(ObjectStoreTest, ASlotThatWasLostAndCameBackRefusesWhatBeganBefore) {
  Make(8 * kMiB);
  Namespaces({Info(kA)});
  auto late = store_->Reserve(kA, SlotId(5), "late", 1);
  auto kept = store_->Reserve(kA, SlotId(6), "kept", 1);
  auto owned = AllSlots();
  owned.reset(5);
  store_->SetOwnedSlots(owned);
  store_->SetOwnedSlots(AllSlots());
  bool stored = false;
  EXPECT_EQ(store_->Publish(std::move(*late), 0, {}, &stored).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_->Publish(std::move(*kept), 0, {}, &stored), OkStatus());
  EXPECT_EQ(Put(kA, "new", "v", 5), OkStatus());
  EXPECT_FALSE(Has(kA, "late"));
}

// Until when readers without the server's help may believe what they see of a namespace.
int64_t ReadableUntil(ObjectStore* store, NamespaceRef ns) {
  const auto shared = store->Share(ns);
  EXPECT_TRUE(shared.ok()) << shared.status();
  const auto opened = (*shared)->sharing().index()->OpenControl();
  EXPECT_TRUE(opened.ok()) << opened.status();
  const Mapping page(opened->fd, opened->bytes);
  return page.as<const shm::ControlPage>()->readable_until_ns.load();
}

TEST_F(ObjectStoreTest, ReadersThatAreStoppedDoNotBeginAgain) {
  Make(8 * kMiB);
  NamespaceInfo immutable = Info(kB);
  immutable.immutable = true;
  const NamespaceRef late{NamespaceId(3), 1};
  Namespaces({Info(kA), immutable, Info(late)});
  const TimePoint until = clock_.Now() + std::chrono::seconds(5);
  store_->SetCurrent(ViewVersion(1, 2), until);
  EXPECT_EQ(ReadableUntil(store_.get(), kA), until.time_since_epoch().count());
  EXPECT_EQ(ReadableUntil(store_.get(), kB), TimePoint::max().time_since_epoch().count());
  store_->StopReaders();
  EXPECT_EQ(ReadableUntil(store_.get(), kA), 0) << "at once, not with the next SetCurrent";
  EXPECT_EQ(ReadableUntil(store_.get(), kB), TimePoint::max().time_since_epoch().count())
      << "what cannot change is true for ever";
  // A thread that looked at the lease before it was given up, and stood still.
  store_->SetCurrent(ViewVersion(1, 2), until);
  EXPECT_EQ(ReadableUntil(store_.get(), kA), 0);
  EXPECT_EQ(ReadableUntil(store_.get(), late), 0) << "shared after that";
}

TEST_F(ObjectStoreTest, APartHoldsUntilTheQuotaOrTheShareOfSlotsChanges) {
  Make(8 * kMiB);
  Namespaces({Info(kA, 4000)}, 0.5);
  const auto set = [&](NamespaceRef ref, uint64_t quota, uint64_t part) {
    store_->SetQuotaParts(
        std::vector<QuotaPart>{{.ref = ref, .quota_bytes = quota, .part_bytes = part}});
    return UsageOf(kA).quota_bytes;
  };
  EXPECT_EQ(set(kA, 4000, 2500), 2500U);
  EXPECT_EQ(UsageOf(kA).quota_total_bytes, 4000U);
  EXPECT_EQ(set({kA.id, 2}, 4000, 1500), 2500U) << "of another generation";
  EXPECT_EQ(set(kA, 5000, 1500), 2500U) << "of another quota";
  EXPECT_EQ(set(kA, 4000, 0), 2500U) << "zero would be no limit";
  Namespaces({Info(kA, 4000), Info(kB)}, 0.5);
  EXPECT_EQ(UsageOf(kA).quota_bytes, 2500U) << "another namespace is no reason";
  EXPECT_EQ(set(kB, 0, 7), 2500U);
  EXPECT_EQ(UsageOf(kB).quota_bytes, 0U) << "there is no quota to have a part of";
  Namespaces({Info(kA, 4000)}, 0.25);
  EXPECT_EQ(UsageOf(kA).quota_bytes, 1000U);
  EXPECT_EQ(set(kA, 4000, 1200), 1200U);
  Namespaces({Info(kA, 8000)}, 0.25);
  EXPECT_EQ(UsageOf(kA).quota_bytes, 2000U);
}

TEST_F(ObjectStoreTest, TheColdestAgeIsThatOfTheObjectThatGoesNext) {
  store_clock_ = &clock_;
  Make(8 * kMiB);
  Namespaces({Info(kA, kMiB)});
  EXPECT_EQ(UsageOf(kA).coldest_age, Duration::zero());
  ASSERT_TRUE(Put(kA, "k", "a").ok());
  clock_.Advance(std::chrono::seconds(5));
  ASSERT_TRUE(Put(kA, "l", "a").ok());
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_EQ(UsageOf(kA).coldest_age, std::chrono::seconds(7));
  ASSERT_TRUE(store_->Remove(kA, "k"));
  EXPECT_EQ(UsageOf(kA).coldest_age, std::chrono::seconds(2));
}

TEST_F(ObjectStoreTest, QuotasAreThisServersShareAndNeverTurnIntoNoLimit) {
  Make(8 * kMiB);
  Namespaces({Info(kA, 10000)}, 0.25);
  EXPECT_EQ(UsageOf(kA).quota_bytes, 2500u);
  EXPECT_EQ(Put(kA, "k", std::string(2501, 'x')).code(), StatusCode::kOutOfRange);
  EXPECT_TRUE(Put(kA, "k", std::string(2500, 'x')).ok());
  Namespaces({Info(kA, 10000)}, 0);
  EXPECT_EQ(UsageOf(kA).quota_bytes, 1u);
  EXPECT_EQ(UsageOf(kA).value_bytes, 0u);
}

TEST_F(ObjectStoreTest, AFullPoolGivesANamespaceItsReservationBackFromOthers) {
  Make(32 * kMiB);
  Namespaces({Info(kA), Info(kB, 0, 8 * kMiB)});
  for (int i = 0; i < 500; ++i)
    ASSERT_TRUE(PutRetrying(kA, std::to_string(i), std::string(100 * kKiB, 'a')).ok());
  EXPECT_EQ(pool_->stats().bytes_in_use, 32 * kMiB);
  for (int i = 0; i < 75; ++i) {
    const std::string key = std::to_string(i);
    ASSERT_TRUE(PutRetrying(kB, key, MakeValue("b", key, 1, 100 * kKiB)).ok());
  }
  EXPECT_GT(UsageOf(kB).segment_bytes, 0u);
  EXPECT_GT(UsageOf(kA).objects, 0u);
  EXPECT_EQ(VerifyValue("b", "74", AsText(store_->Get(kB, "74", false).value())), 1u);
}

TEST_F(ObjectStoreTest, ASmallerPoolLosesTheColdestAndNobodyBelowItsReservationFirst) {
  Make(32 * kMiB);
  Namespaces({Info(kA), Info(kB, 0, 8 * kMiB)});
  for (int i = 0; i < 70; ++i)
    ASSERT_TRUE(PutRetrying(kB, std::to_string(i), std::string(100 * kKiB, 'b')).ok());
  const uint64_t reserved = UsageOf(kB).objects;
  for (int i = 0; i < 500; ++i)
    ASSERT_TRUE(PutRetrying(kA, std::to_string(i), std::string(100 * kKiB, 'a')).ok());
  ASSERT_EQ(pool_->stats().bytes_in_use, 32 * kMiB);
  EXPECT_TRUE(store_->EvictToWatermark());  // Puts have come
  pool_->Resize(16 * kMiB);
  EXPECT_FALSE(store_->EvictToWatermark());  // nothing is in use: one round is enough
  EXPECT_LE(pool_->stats().bytes_in_use, 16 * kMiB);
  EXPECT_GE(pool_->stats().bytes_in_use, 14 * kMiB);  // and no more than that
  EXPECT_EQ(UsageOf(kB).objects, reserved);
  const auto left = [&](int begin, int end) {
    int found = 0;
    for (int i = begin; i < end; ++i) found += Has(kA, std::to_string(i)) ? 1 : 0;
    return found;
  };
  EXPECT_GT(left(420, 500), left(270, 350));  // whole segments went, by the mean of their objects
  // Below all reservations: the machine's need counts for more.
  pool_->Resize(4 * kMiB);
  store_->EvictToWatermark();
  EXPECT_LE(pool_->stats().bytes_in_use, 4 * kMiB);
  ASSERT_TRUE(PutRetrying(kB, "again", std::string(100 * kKiB, 'b')).ok());
  pool_->Resize(32 * kMiB);
  // A full namespace asks for more memory each some milliseconds, and evicts its own until then.
  const Deadline deadline = Soon();
  for (int i = 0; UsageOf(kA).objects <= 200 && !deadline.Passed(); ++i)
    ASSERT_TRUE(PutRetrying(kA, std::to_string(i), std::string(100 * kKiB, 'a')).ok());
  EXPECT_GT(UsageOf(kA).objects, 200u);
}

TEST_F(ObjectStoreTest, ASmallerPoolWaitsForWhatIsInUse) {
  Make(8 * kMiB);
  Namespaces({Info(kA)});
  for (int i = 0; i < 70; ++i)
    ASSERT_TRUE(PutRetrying(kA, std::to_string(i), std::string(100 * kKiB, 'a')).ok());
  std::vector<ObjectPin> pins;
  for (int i = 0; i < 70; ++i) {
    if (ObjectPin pin = store_->Get(kA, std::to_string(i), false)) pins.push_back(std::move(pin));
  }
  pool_->Resize(2 * kMiB);
  EXPECT_TRUE(store_->EvictToWatermark());  // again soon
  EXPECT_GT(pool_->excess_bytes(), 0u);
  for (const ObjectPin& pin : pins) EXPECT_EQ(pin.value()[0], std::byte{'a'});
  pins.clear();
  store_->EvictToWatermark();
  EXPECT_EQ(pool_->excess_bytes(), 0u);
}

TEST_F(ObjectStoreTest, AQuietNamespaceIsTakenFromDownToItsReservation) {
  store_clock_ = &clock_;
  Make(16 * kMiB);
  Namespaces({Info(kA, 0, 4 * kMiB), Info(kB)});
  for (int i = 0; i < 200; ++i)
    ASSERT_TRUE(PutRetrying(kA, std::to_string(i), std::string(100 * kKiB, 'a')).ok());
  const auto grow = [&](uint64_t bytes) {
    const Deadline deadline = Soon();
    for (int i = 0; UsageOf(kB).segment_bytes < bytes && !deadline.Passed(); ++i)
      (void)Put(kB, "b" + std::to_string(i), std::string(100 * kKiB, 'b'));
    return UsageOf(kB).segment_bytes;
  };
  EXPECT_GE(grow(4 * kMiB), 4 * kMiB);
  (void)store_->EvictToWatermark();
  clock_.Advance(std::chrono::seconds(61));
  EXPECT_EQ(grow(12 * kMiB), 12 * kMiB);
  for (int i = 0; i < 200; ++i) (void)Put(kB, "c" + std::to_string(i), std::string(kMiB / 2, 'b'));
  EXPECT_GE(UsageOf(kA).segment_bytes, 4 * kMiB);
}

TEST_F(ObjectStoreTest, NobodyIsTakenFromBelowItsReservation) {
  Make(16 * kMiB);
  Namespaces({Info(kA), Info(kB, 0, 16 * kMiB)});
  for (int i = 0; i < 200; ++i)
    ASSERT_TRUE(PutRetrying(kB, std::to_string(i), std::string(100 * kKiB, 'b')).ok());
  const uint64_t objects = UsageOf(kB).objects;
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(Put(kA, "k", std::string(100 * kKiB, 'a')).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(UsageOf(kB).objects, objects);
  EXPECT_EQ(UsageOf(kB).segment_bytes, 16 * kMiB);
}

TEST_F(ObjectStoreTest, ValuesLargerThanASegmentGetOneOfTheirOwn) {
  Make(64 * kMiB, 8 * kMiB);
  Namespaces({Info(kA)});
  for (int i = 0; i < 700; ++i)
    ASSERT_TRUE(PutRetrying(kA, std::to_string(i), std::string(100 * kKiB, 'a')).ok());
  for (int i = 0; i < 6; ++i) {
    const std::string value = MakeValue("a", "big", static_cast<uint64_t>(i), 20 * kMiB);
    ASSERT_TRUE(PutRetrying(kA, "big" + std::to_string(i), value).ok()) << i;
    const ObjectPin pin = store_->Get(kA, "big" + std::to_string(i), true);
    ASSERT_TRUE(pin);
    EXPECT_EQ(AsText(pin.value()), value);
  }
  EXPECT_LE(pool_->stats().bytes_created, 64 * kMiB);
  EXPECT_EQ(store_->Reserve(kA, SlotId(0), "huge", 65 * kMiB).status().code(),
            StatusCode::kOutOfRange);
}

TEST_F(ObjectStoreTest, TheWatermarksBoundPhysicalUse) {
  pool_ = std::make_unique<SegmentPool>(SmallPool(16 * kMiB));
  ObjectStore::Options options;
  options.pool = pool_.get();
  options.high_watermark = 0.5;
  options.low_watermark = 0.4;
  store_ = std::make_unique<ObjectStore>(options);
  store_->SetOwnedSlots(AllSlots());
  ASSERT_TRUE(pool_->WaitReady(16 * kMiB, Soon()).ok());
  Namespaces({Info(kA)});
  for (int i = 0; i < 700; ++i)
    ASSERT_TRUE(Put(kA, std::to_string(i), std::string(16 * kKiB, 'a')).ok());
  (void)store_->EvictToWatermark();
  EXPECT_LE(UsageOf(kA).value_bytes, 16 * kMiB * 4 / 10);
  EXPECT_GE(UsageOf(kA).value_bytes, 16 * kMiB * 3 / 10);
  EXPECT_TRUE(Has(kA, "699"));
  EXPECT_FALSE(Has(kA, "0"));
}

}  // namespace
}  // namespace ems::server
