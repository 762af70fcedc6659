// What must hold: values carry the checksums that they have, a tier of the computed size takes all
// of them, and the watch sees the most that lay there.
#include "bench/ssd/ssd_rig.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>

#include "bench/harness/child_process.h"
#include "tests/mp_server/ssd/ssd_fixture.h"

namespace ems::bench {
namespace {

using ::ems::testing::TempFolder;

TEST(ValueRingTest, ValuesAreDistinctAlignedAndChecksummed) {
  const ValueRing ring(4 * kMiB);
  const uint64_t count = ValueRing::kRingBytes / (4 * kMiB);
  const auto first = ring.Object(0), second = ring.Object(1), again = ring.Object(count);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first->value().data()) % ssd::kBlockBytes, 0u);
  EXPECT_EQ(first->value().size(), 4 * kMiB);
  EXPECT_EQ(first->checksum(), Checksum(first->value()));
  EXPECT_EQ(first->piece_sums().size(), PieceCount(4 * kMiB));
  EXPECT_EQ(first->checksum(), CombinePieces(first->piece_sums()));
  EXPECT_NE(first->checksum(), second->checksum());
  EXPECT_EQ(first->value().data(), again->value().data());
  EXPECT_NE(first->key(), again->key());
}

struct Case {
  uint64_t value_bytes, objects;
};
class BenchTierTest : public ::testing::TestWithParam<Case> {};

TEST_P(BenchTierTest, TakesAllOfItsObjectsAndComesBackWithThem) {
  const auto [value_bytes, objects] = GetParam();
  const TempFolder folder;
  const TierSize size = SizeForObjects(objects, value_bytes);
  const ValueRing ring(value_bytes);
  {
    const auto tier = BenchTier::Open(folder.path(), size);
    ASSERT_TRUE(tier.ok()) << ToString(tier.status());
    const Status written = (*tier)->Write(ring, 0, objects);
    ASSERT_TRUE(written.ok()) << ToString(written);
    EXPECT_EQ((*tier)->stats().writer.reclaimed_regions, 0u);
  }
  const auto tier = BenchTier::Open(folder.path(), size);
  ASSERT_TRUE(tier.ok()) << ToString(tier.status());
  EXPECT_GT((*tier)->open_seconds(), 0);
  EXPECT_EQ((*tier)->stats().recovered_objects, objects);
  std::vector<uint64_t> numbers(objects);
  std::iota(numbers.begin(), numbers.end(), uint64_t{0});
  LatencyRecorder latencies;
  const Status read = (*tier)->Read(numbers, value_bytes, 3, &latencies);
  EXPECT_TRUE(read.ok()) << ToString(read);
  EXPECT_EQ(latencies.count(), objects);
  EXPECT_FALSE((*tier)->Read({objects}, value_bytes, 3, &latencies).ok());
}

INSTANTIATE_TEST_SUITE_P(Sizes, BenchTierTest,
                         ::testing::Values(Case{4 * kKiB, 3000}, Case{64 * kKiB, 200},
                                           Case{kMiB, 12}, Case{4 * kMiB, 3}));

TEST(BenchTierTest, HalfOfTheRoomKeepsTheNewerHalfAndTakesMore) {
  constexpr uint64_t kObjects = 64;
  const TempFolder folder;
  const TierSize size = SizeForObjects(kObjects, kMiB);
  const ValueRing ring(kMiB);
  {
    const auto tier = BenchTier::Open(folder.path(), size);
    ASSERT_TRUE(tier.ok() && (*tier)->Write(ring, 0, kObjects).ok());
  }
  const TierSize half = SizeForRegions(kObjects * kMiB / 2, size.region_bytes);
  const auto tier = BenchTier::Open(folder.path(), half);
  ASSERT_TRUE(tier.ok());
  EXPECT_LT((*tier)->stats().recovered_objects, kObjects);
  FolderWatch watch(folder.path());
  ASSERT_TRUE((*tier)->Write(ring, kObjects, kObjects).ok());
  EXPECT_GT((*tier)->stats().writer.reclaimed_objects, 0u);
  EXPECT_LE(watch.Stop(), half.capacity_bytes);
}

TEST(BenchTierTest, OneThatCannotBeOpenedSaysWhy) {
  const TempFolder folder;
  std::ofstream(folder / "file") << "x";
  const auto tier = BenchTier::Open(folder / "file/below", SizeForObjects(10, kMiB));
  EXPECT_EQ(tier.status().code(), StatusCode::kUnavailable);
}

TEST(TierSizeTest, TheCapacityHoldsRegionsAndIndex) {
  for (const uint64_t bytes : {16 * kMiB, kGiB, 4 * kGiB, 64 * kGiB}) {
    const uint64_t region = RegionBytesFor(bytes);
    EXPECT_EQ(region % kMiB, 0u);
    const TierSize size = SizeForRegions(bytes, region);
    EXPECT_GE(size.regions, 4u);
    EXPECT_GE(size.capacity_bytes - std::max(size.capacity_bytes / 16, 16 * kMiB),
              size.regions * size.region_bytes);
  }
}

TEST(FolderWatchTest, RemembersTheMost) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "below");
  FolderWatch watch(folder.path());
  std::ofstream(folder / "below/file") << std::string(kMiB, 'x') << std::flush;
  const int fd = ::open((folder / "below/file").c_str(), O_RDONLY);
  ASSERT_EQ(::fsync(fd), 0);  // blocks are allocated late
  ::close(fd);
  EXPECT_GE(AllocatedBytes(folder.path()), kMiB);
  EXPECT_GE(watch.Stop(), kMiB);
  EXPECT_EQ(AllocatedBytes(folder / "none"), 0u);
}

TEST(WrittenBytesTest, GrowsWithWhatIsWritten) {
  const auto before = WrittenBytes();
  if (!before.ok()) GTEST_SKIP() << ToString(before.status());
  const TempFolder folder;
  const auto tier = BenchTier::Open(folder.path(), SizeForObjects(16, kMiB));
  ASSERT_TRUE(tier.ok() && (*tier)->Write(ValueRing(kMiB), 0, 16).ok());
  EXPECT_GE(*WrittenBytes() - *before, 16 * kMiB);
  Settle(folder.path());
}

}  // namespace
}  // namespace ems::bench
