// What must hold: a tier comes back with what it had; one that is damaged starts empty and keeps
// the damage aside; one that cannot be opened is offline and harms nobody; the cap holds however
// the configuration changes.
#include "mp_server/ssd/ssd_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/object_key.h"
#include "mp_server/ssd/disk/folder.h"
#include "tests/mp_server/ssd/ssd_fixture.h"
#include "tests/support/eventually.h"

namespace ems::ssd {
namespace {

namespace fs = std::filesystem;
using ems::testing::kNs;
using ems::testing::MakeObject;
using ems::testing::Waiter;
using ::testing::HasSubstr;

constexpr ViewVersion kView{1, 1};

class SsdTierTest : public ::testing::Test {
 protected:
  SsdTierTest() {
    options_.folder = folder_.path();
    options_.capacity_bytes = 64 * kMiB;
    options_.region_bytes = 2 * kMiB;
    options_.dirty_bytes_max = 16 * kMiB;
    options_.lineage = 40;
    owned_.set();
  }
  void Open() {
    tier_.reset();
    tier_ = SsdTier::Open(options_);
    tier_->SetNamespaces({{kNs, 0, 0, false}});
    tier_->SetOwnedSlots({kView, owned_});
  }
  static ObjectName NameOf(const std::string& key) { return {kNs, KeyHash(key)}; }
  bool Put(const std::string& key, uint64_t put_id, size_t bytes) {
    const Waiter waiter;
    const TicketPtr ticket =
        tier_->Put(NameOf(key), MakeObject(key, put_id, bytes), true, waiter.wake());
    if (ticket->state() == Ticket::State::kWaiting && !waiter.Wait()) return false;
    return ticket->state() == Ticket::State::kDone;
  }
  bool Has(const std::string& key) { return tier_->Find(NameOf(key), false).has_value(); }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    const auto paths = ListFolder(options_.folder);
    for (const fs::path& path : *paths) names.push_back(path.filename());
    return names;
  }

  const ::ems::testing::TempFolder folder_;
  TierOptions options_;
  std::bitset<kSlotCount> owned_;
  std::unique_ptr<SsdTier> tier_;
};

TEST_F(SsdTierTest, ComesBackWithWhatItHad) {
  Open();
  ASSERT_EQ(tier_->state(), TierState::kOk);
  ASSERT_TRUE(Put("a", 1, 100));
  ASSERT_TRUE(Put("b", 2, 200 * kKiB));
  Open();
  EXPECT_EQ(tier_->stats().recovered_objects, 2u);
  EXPECT_TRUE(Has("a"));
  EXPECT_TRUE(Has("b"));
  EXPECT_FALSE(Has("c"));
}

// What nobody reads is found all the same: the record alone is dropped, for good.
TEST_F(SsdTierTest, DamageIsFoundByTheScrubber) {
  Open();
  ASSERT_TRUE(Put("sound", 1, 200 * kKiB));
  ASSERT_TRUE(Put("damaged", 2, 200 * kKiB));
  ASSERT_TRUE(Put("small", 3, 100));
  const Row row = tier_->Find(NameOf("damaged"), false)->row;
  {
    std::fstream region(fmt::format("{}/regions/{:08}.region", options_.folder, row.region),
                        std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(region.good());
    region.seekp(static_cast<std::streamoff>(RecordBlocks(row).begin + 100 * kKiB));
    region << "overwritten";
  }
  options_.scrub_bytes_per_s = kGiB;
  options_.scrub_pass_at_least = Duration::zero();
  Open();
  EXPECT_TRUE(ems::testing::Eventually([&] { return tier_->stats().scrubber.passes >= 2; }));
  EXPECT_EQ(tier_->stats().dropped_damaged, 1U);
  EXPECT_FALSE(Has("damaged"));
  EXPECT_TRUE(Has("sound"));
  EXPECT_TRUE(Has("small"));
  options_.scrub_bytes_per_s = 0;
  Open();
  EXPECT_FALSE(Has("damaged"));
  EXPECT_EQ(tier_->stats().scrubber.passes, 0U);
}

TEST_F(SsdTierTest, ADamagedIndexIsSetAsideAndTheTierStartsEmpty) {
  for (int round = 0; round < 2; ++round) {
    Open();
    ASSERT_TRUE(Put("a", 1, 100));
    tier_.reset();
    std::ofstream(options_.folder + "/index/CURRENT") << "nonsense\n";
    Open();
    EXPECT_EQ(tier_->state(), TierState::kOk);
    EXPECT_FALSE(Has("a"));
    EXPECT_TRUE(Put("b", 2, 100));
  }
  EXPECT_THAT(Names(), ::testing::Contains(HasSubstr("index.corrupt.")).Times(1));
}

TEST_F(SsdTierTest, OneThatCannotBeOpenedIsOfflineAndSaysWhy) {
  options_.folder = folder_.path() + "/file/below";
  std::ofstream(folder_.path() + "/file") << "x";
  Open();
  EXPECT_EQ(tier_->state(), TierState::kOffline);
  EXPECT_THAT(tier_->reason(), HasSubstr("below"));
  EXPECT_FALSE(Put("a", 1, 100));
  EXPECT_FALSE(Has("a"));
  EXPECT_EQ(tier_->Remove(NameOf("a"), nullptr), nullptr);
  EXPECT_EQ(tier_->Put(NameOf("a"), MakeObject("a", 1, 100), false, nullptr), nullptr);
}

TEST_F(SsdTierTest, ACapacityWithoutRoomForRegionsIsRefusedByNumbers) {
  options_.capacity_bytes = 20 * kMiB;
  options_.region_bytes = 0;
  Open();
  EXPECT_EQ(tier_->state(), TierState::kOffline);
  EXPECT_THAT(tier_->reason(), HasSubstr("20 MiB"));
  options_.capacity_bytes = 64 * kMiB;
  options_.region_bytes = 1;
  Open();
  EXPECT_EQ(tier_->state(), TierState::kOffline);
}

TEST_F(SsdTierTest, RegionsKeepTheirSizeWhenTheCapacityChanges) {
  options_.region_bytes = 0;
  options_.capacity_bytes = 320 * kMiB;
  Open();
  const uint64_t before = tier_->stats().region_bytes;
  ASSERT_TRUE(Put("a", 1, 300 * kKiB));
  options_.capacity_bytes = kGiB;
  Open();
  EXPECT_EQ(tier_->stats().region_bytes, before);
  EXPECT_TRUE(Has("a"));
}

TEST(SizeOfRegionsTest, RegionsAreSmallOnSmallDisksAndNeverTooMany) {
  EXPECT_EQ(RegionBytesFor(64 * kMiB), 8 * kMiB);
  EXPECT_EQ(RegionBytesFor(kGiB), 32 * kMiB);
  EXPECT_EQ(RegionBytesFor(200 * kGiB), 128 * kMiB);
  EXPECT_EQ(RegionBytesFor(512 * kGiB), 128 * kMiB);
  EXPECT_EQ(RegionBytesFor(3072 * kGiB), 768 * kMiB);
  for (uint64_t capacity = kGiB; capacity <= uint64_t{1024} * 1024 * kGiB;
       capacity += capacity / 3) {
    const uint64_t bytes = RegionBytesFor(capacity);
    EXPECT_LE(capacity / bytes, 4096U) << capacity;
    EXPECT_EQ(bytes % kMiB, 0U);
    // What a row can name.
    EXPECT_LE(bytes, (uint64_t{UINT32_MAX} + 1) * kPackUnit);
  }
}

TEST_F(SsdTierTest, ASmallerCapacityHoldsFromTheStart) {
  Open();
  for (uint64_t i = 0; i < 60; ++i) ASSERT_TRUE(Put("k" + std::to_string(i), i, 600 * kKiB));
  options_.capacity_bytes = 40 * kMiB;
  Open();
  EXPECT_EQ(tier_->state(), TierState::kOk) << tier_->reason();
  EXPECT_LE(FolderBytes(options_.folder + "/regions") + FolderBytes(options_.folder + "/index"),
            options_.capacity_bytes);
  EXPECT_TRUE(Has("k59"));
  EXPECT_FALSE(Has("k0"));
}

TEST_F(SsdTierTest, LessMemoryForTheIndexHoldsFromTheStart) {
  Open();
  for (uint64_t i = 0; i < 60; ++i) ASSERT_TRUE(Put("k" + std::to_string(i), i, 600 * kKiB));
  options_.index_memory_bytes = 30 * SsdIndex::kObjectMemoryBytes;
  Open();
  EXPECT_EQ(tier_->state(), TierState::kOk) << tier_->reason();
  EXPECT_LE(tier_->stats().index_memory_bytes, options_.index_memory_bytes);
  EXPECT_EQ(tier_->stats().dropped_to_fit + tier_->stats().recovered_objects, 60U);
  EXPECT_TRUE(Has("k59"));
  EXPECT_FALSE(Has("k0"));
  options_.index_memory_bytes = 0;
  Open();
  EXPECT_FALSE(Has("k0")) << "it may have been put again meanwhile, in DRAM alone";
}

TEST_F(SsdTierTest, NothingIsShownBeforeAViewIsInstalled) {
  Open();
  ASSERT_TRUE(Put("a", 1, 100));
  tier_.reset();
  tier_ = SsdTier::Open(options_);
  EXPECT_FALSE(Has("a"));
  tier_->SetOwnedSlots({kView, owned_});
  EXPECT_TRUE(Has("a"));
}

// Over how many views it was away does not matter where the view says that nobody else was there.
TEST_F(SsdTierTest, ComesBackAfterManyViewsWithWhatNobodyElseCanHaveChanged) {
  SlotGrant grant;
  grant.owned = owned_;
  grant.history = 7;
  grant.since.assign(kSlotCount, 2);
  const auto open = [&](uint64_t epoch, uint64_t lineage) {
    tier_.reset();
    options_.lineage = lineage;
    tier_ = SsdTier::Open(options_);
    tier_->SetNamespaces({{kNs, 0, 0, false}});
    const bool continues = tier_->continues();
    if (!continues) tier_->BeginLineage(lineage);
    grant.view = ViewVersion(1, epoch);
    tier_->SetOwnedSlots(grant);
    return continues;
  };
  EXPECT_FALSE(open(3, 40)) << "new";
  ASSERT_TRUE(Put("a", 1, 100));
  EXPECT_TRUE(open(50, 40));
  EXPECT_TRUE(Has("a"));
  grant.since.assign(kSlotCount, 51);  // they went in view 51 and are back
  EXPECT_TRUE(open(60, 40));
  EXPECT_FALSE(Has("a"));
  ASSERT_TRUE(Put("b", 1, 100));
  EXPECT_FALSE(open(61, 41)) << "a life of the server was without this tier";
  EXPECT_FALSE(Has("b")) << "although this is the next view";
  ASSERT_TRUE(Put("c", 1, 100));
  EXPECT_TRUE(open(62, 41));
  EXPECT_TRUE(Has("c"));
}

// A data_dir that takes no new file: whether a life without the tier came after this one, nobody
// can tell.
TEST_F(SsdTierTest, WithoutALineageNothingOutlivesARestart) {
  SlotGrant grant;
  grant.owned = owned_;
  const auto open = [&](uint64_t epoch, uint64_t lineage) {
    tier_.reset();
    options_.lineage = lineage;
    tier_ = SsdTier::Open(options_);
    tier_->SetNamespaces({{kNs, 0, 0, false}});
    if (!tier_->continues()) tier_->BeginLineage(lineage);
    grant.view = ViewVersion(1, epoch);
    tier_->SetOwnedSlots(grant);
  };
  open(3, 0);
  ASSERT_TRUE(Put("a", 1, 100));
  grant.view = ViewVersion(1, 4);
  tier_->SetOwnedSlots(grant);
  EXPECT_TRUE(Has("a")) << "while it lives it knows";
  open(4, 40);
  EXPECT_FALSE(Has("a")) << "although this is the same view";
  ASSERT_TRUE(Put("b", 1, 100));
  open(4, 0);
  EXPECT_FALSE(Has("b"));
  grant.history = 7;
  grant.since.assign(kSlotCount, 2);
  open(5, 0);
  ASSERT_TRUE(Put("c", 1, 100));
  grant.view = ViewVersion(1, 9);
  tier_->SetOwnedSlots(grant);
  EXPECT_TRUE(Has("c")) << "while it lives it knows";
  open(10, 40);
  EXPECT_FALSE(Has("c"));
}

// It took views of others who had its name for its own.
TEST_F(SsdTierTest, ARecordOfAnOlderVersionIsTakenOnlyWhereNobodyKnowsBetter) {
  SlotGrant grant;
  grant.owned = owned_;
  const auto open = [&](uint64_t history) {
    {
      RegionIndex::Options wanted;
      wanted.folder = options_.folder + "/index";
      auto rows = *RegionIndex::Open(wanted);
      RowBatch batch;
      batch.PutMeta(kViewMeta, std::to_string(ViewVersion(1, 3).packed()));
      batch.PutMeta(kGrantMeta, "");
      ASSERT_TRUE(rows->Write(batch, true).ok());
    }
    tier_ = SsdTier::Open(options_);
    tier_->SetNamespaces({{kNs, 0, 0, false}});
    tier_->BeginLineage(40);
    grant.view = ViewVersion(1, 4);
    grant.history = history;
    if (history != 0) grant.since.assign(kSlotCount, 2);
    tier_->SetOwnedSlots(grant);
  };
  Open();
  ASSERT_TRUE(Put("a", 1, 100));
  tier_.reset();
  ASSERT_NO_FATAL_FAILURE(open(0));
  EXPECT_TRUE(Has("a"));
  tier_.reset();
  ASSERT_NO_FATAL_FAILURE(open(7));
  EXPECT_FALSE(Has("a"));
}

TEST_F(SsdTierTest, ADamagedRecordIsDroppedAlone) {
  Open();
  ASSERT_TRUE(Put("a", 1, 300 * kKiB));
  ASSERT_TRUE(Put("b", 2, 300 * kKiB));
  const StoredInfo stored = *tier_->Find(NameOf("a"), false);
  {
    std::fstream file(options_.folder + "/regions/00000000.region",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(
        static_cast<std::streamoff>(uint64_t{stored.row.offset_units} * kPackUnit + 100 * kKiB));
    file.put('!');
  }
  AlignedBuffer memory;
  std::vector<uint64_t> sums(PieceCount(300 * kKiB));
  const auto read = [&](const std::string& key) {
    const MutableBytes value = memory.Take(300 * kKiB).first(300 * kKiB);
    const Waiter waiter;
    ReadOutcome outcome = ReadOutcome::kFailed;
    const auto wake = waiter.wake();
    EXPECT_TRUE(tier_->Read(NameOf(key), key, *tier_->Find(NameOf(key), false), {value, sums},
                            [&outcome, wake](ReadOutcome got) {
                              outcome = got;
                              wake();
                            }));
    EXPECT_TRUE(waiter.Wait());
    return outcome;
  };
  EXPECT_EQ(read("a"), ReadOutcome::kDamaged);
  EXPECT_FALSE(Has("a"));
  EXPECT_EQ(read("b"), ReadOutcome::kOk);
  EXPECT_EQ(tier_->stats().dropped_damaged, 1u);
  Open();
  EXPECT_FALSE(Has("a"));
  EXPECT_TRUE(Has("b"));
}

}  // namespace
}  // namespace ems::ssd
