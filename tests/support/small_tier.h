#pragma once
// A fixture of a server's storage at its smallest: 16 MiB of DRAM before an SSD tier of 64 MiB, and
// one namespace.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/object_key.h"
#include "mp_server/store/tiered_store.h"

namespace ems::server {

class SmallTierTest : public ::testing::Test {
 protected:
  static constexpr NamespaceRef kNs{NamespaceId(1), 3};

  explicit SmallTierTest(std::string_view name, decltype(ssd::TierOptions::wrap_io) wrap_io = {},
                         uint64_t index_memory_bytes = 0)
      : folder_(fmt::format("{}ems_{}_{}_{}", ::testing::TempDir(), name, ::getpid(),
                            ::testing::UnitTest::GetInstance()->current_test_info()->name())),
        wrap_io_(std::move(wrap_io)),
        index_memory_bytes_(index_memory_bytes) {
    Open();
  }
  ~SmallTierTest() override {
    Close();
    std::filesystem::remove_all(folder_);
  }
  // No slot is owned yet.
  void Open() {
    SegmentPool::Options pool;
    pool.bytes = 16 * kMiB;
    pool.segment_bytes = 2 * kMiB;
    pool.huge_pages = HugePages::kOff;
    pool_ = std::make_unique<SegmentPool>(pool);
    ASSERT_TRUE(pool_->WaitReady(pool.bytes, Deadline::After(std::chrono::seconds(20))).ok());
    dram_ = std::make_unique<ObjectStore>(
        ObjectStore::Options{.pool = pool_.get(), .another_tier = true, .hash = hash_});
    ssd::TierOptions tier;
    tier.folder = folder_;
    tier.capacity_bytes = 64 * kMiB;
    tier.region_bytes = 8 * kMiB;
    tier.dirty_bytes_max = 8 * kMiB;
    tier.overwrite_quiet = overwrite_quiet_;
    tier.lineage = 40;
    tier.wrap_io = wrap_io_;
    tier.index_memory_bytes = index_memory_bytes_;
    tier.observer = observer_;
    tier_ = ssd::SsdTier::Open(tier);
    ASSERT_EQ(tier_->state(), ssd::TierState::kOk) << tier_->stats().reason;
    store_ = std::make_unique<TieredStore>(dram_.get(), tier_.get());
    NamespaceTable table;
    table.version = 1;
    NamespaceInfo info;
    info.ref = kNs;
    info.name = "kv";
    table.by_id[kNs.id] = info;
    store_->SetNamespaces(table, 1.0);
  }
  TieredNamespace Objects() { return store_->Open(kNs); }
  void Close() {
    tier_.reset();
    store_.reset();
    dram_.reset();
    pool_.reset();
  }

  const std::string folder_;
  decltype(ssd::TierOptions::wrap_io) wrap_io_;  // of the next Open, as the next four
  uint64_t index_memory_bytes_;
  Duration overwrite_quiet_ = ssd::HeldBack::kQuiet;
  ssd::StoredObserver* observer_ = nullptr;
  Hash128 (*hash_)(std::string_view key) = &KeyHash;
  std::unique_ptr<SegmentPool> pool_;
  std::unique_ptr<ObjectStore> dram_;
  std::unique_ptr<ssd::SsdTier> tier_;
  std::unique_ptr<TieredStore> store_;
};

}  // namespace ems::server
