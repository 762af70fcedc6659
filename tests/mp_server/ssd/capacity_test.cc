// What must hold: the tier's folder never takes more of the disk than its capacity, however small
// the values are, and it says what it takes.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "mp_server/ssd/ssd_tier.h"
#include "tests/mp_server/ssd/ssd_fixture.h"
#include "tests/support/eventually.h"

namespace ems::ssd {
namespace {

namespace fs = std::filesystem;
using ems::testing::kNs;
using ems::testing::MakeObject;
using ems::testing::NameOf;

// As du: blocks of all files and folders. A file may go meanwhile.
uint64_t DiskUse(const std::string& folder) {
  uint64_t blocks = 0;
  const auto add = [&blocks](const fs::path& path) {
    struct stat info {};
    if (::lstat(path.c_str(), &info) == 0) blocks += static_cast<uint64_t>(info.st_blocks);
  };
  add(folder);
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error))
    add(at->path());
  return blocks * 512;
}

struct Load {
  uint64_t capacity_bytes = 0;
  uint64_t value_bytes = 0;
  uint64_t puts = 0;
  uint64_t keys = 0;  // below `puts`: values are replaced
  uint64_t step = 0;  // so many at once
};

class CapacityTest : public ::testing::TestWithParam<Load> {
 protected:
  void Open() {
    tier_.reset();
    TierOptions options;
    options.folder = folder_ / "tier";
    options.capacity_bytes = GetParam().capacity_bytes;
    options.dirty_bytes_max = 4 * kMiB;
    options.lineage = 40;
    options.overwrite_quiet = Duration::zero();
    tier_ = SsdTier::Open(options);
    tier_->SetNamespaces({{kNs, 0, 0, false}});
    SlotGrant grant;
    grant.view = ViewVersion(1, 1);
    grant.owned.set();
    tier_->SetOwnedSlots(grant);
  }
  void Look() {
    const uint64_t use = DiskUse(folder_ / "tier");
    most_ = std::max(most_, use);
    ASSERT_LE(use, GetParam().capacity_bytes) << "the tier says " << tier_->stats().disk_bytes;
  }
  // Waits until all is written, and looks at the folder meanwhile.
  void Settle() {
    ASSERT_TRUE(ems::testing::Eventually([&] {
      Look();
      return HasFatalFailure() || tier_->stats().writer.dirty_bytes == 0;
    }));
  }
  // Large values first, so that all regions are there.
  void PutAll() {
    for (uint64_t i = 0; i < GetParam().capacity_bytes / (400 * kKiB); ++i) {
      const std::string key = "large " + std::to_string(i);
      tier_->Put(NameOf(key), MakeObject(key, i, 400 * kKiB), false, nullptr);
      if (i % 8 != 7) continue;
      ASSERT_NO_FATAL_FAILURE(Settle());
    }
    for (uint64_t i = 0; i < GetParam().puts; ++i) {
      const std::string key = std::to_string(i % GetParam().keys);
      tier_->Put(NameOf(key), MakeObject(key, i, GetParam().value_bytes), false, nullptr);
      if (i % GetParam().step != 0) continue;
      ASSERT_NO_FATAL_FAILURE(Settle());
    }
    ASSERT_NO_FATAL_FAILURE(Settle());
  }

  const ::ems::testing::TempFolder folder_;
  std::unique_ptr<SsdTier> tier_;
  uint64_t most_ = 0;
};

TEST_P(CapacityTest, TheFolderStaysBelowIt) {
  Open();
  ASSERT_EQ(tier_->state(), TierState::kOk) << tier_->reason();
  ASSERT_NO_FATAL_FAILURE(PutAll());
  const TierStats stats = tier_->stats();
  EXPECT_GT(stats.writer.reclaimed_regions, 0U) << "there was never too little room";
  EXPECT_GT(stats.objects, 1000U);
  EXPECT_GT(stats.free_bytes, 0U);
  EXPECT_LT(stats.free_bytes, UINT64_MAX) << "this file system says what is free";
  EXPECT_EQ(stats.writer.regions, stats.regions_max);
  EXPECT_GT(most_, GetParam().capacity_bytes * 3 / 4);
  EXPECT_TRUE(ems::testing::Eventually([&] {
    const uint64_t said = tier_->stats().disk_bytes;
    const uint64_t use = DiskUse(folder_ / "tier");
    return use <= said + 256 * kKiB && said <= use + 256 * kKiB;
  })) << "it says what it takes";
  std::printf("%llu B values in %llu MiB: at most %.3f of it, %llu objects, %llu shed\n",
              static_cast<unsigned long long>(GetParam().value_bytes),
              static_cast<unsigned long long>(GetParam().capacity_bytes / kMiB),
              static_cast<double>(most_) / static_cast<double>(GetParam().capacity_bytes),
              static_cast<unsigned long long>(stats.objects),
              static_cast<unsigned long long>(stats.writer.shed_objects));
  Open();
  ASSERT_EQ(tier_->state(), TierState::kOk) << tier_->reason();
  ASSERT_NO_FATAL_FAILURE(Look());
  EXPECT_GT(tier_->stats().recovered_objects, 1000U);
}

INSTANTIATE_TEST_SUITE_P(Values, CapacityTest,
                         ::testing::Values(Load{64 * kMiB, 100, 150000, 150000, 2000},
                                           Load{64 * kMiB, 1, 100000, 100000, 2000},
                                           Load{64 * kMiB, 100, 250000, 20000, 2000},
                                           Load{64 * kMiB, 20 * kKiB, 5000, 5000, 100},
                                           Load{256 * kMiB, 100, 150000, 150000, 2000}));

}  // namespace
}  // namespace ems::ssd
