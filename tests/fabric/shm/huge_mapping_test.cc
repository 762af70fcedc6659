// What must hold: addresses that huge pages can have, bytes kept, nothing left mapped. Whether huge
// pages come is the kernel's business; where it says so, it is looked at.
#include "fabric/shm/huge_mapping.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "common/thread_pool.h"
#include "fabric/net/socket.h"

namespace ems::fabric::internal {
namespace {

constexpr uint64_t kHuge = 2 * kMiB;

Fd File(uint64_t bytes) {
  Fd fd(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

// Of the mapping that starts at `at`: the figure of smaps, in bytes; -1 where there is none.
int64_t Smaps(const void* at, const std::string& name) {
  std::ifstream smaps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
      here = begin == reinterpret_cast<uintptr_t>(at);
    if (here && line.starts_with(name + ":"))
      return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return -1;
}

class HugeMappingTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(HugeMappingTest, LiesWhereHugePagesFitAndHoldsTheWholeFile) {
  const uint64_t bytes = GetParam();
  const Fd fd = File(bytes);
  auto* const map = static_cast<char*>(MapShared(fd.get(), bytes, PROT_READ | PROT_WRITE));
  ASSERT_NE(map, MAP_FAILED);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(map) % (bytes < kHuge ? 4 * kKiB : kHuge), 0U);
  EXPECT_EQ(Smaps(map, "Size"), static_cast<int64_t>(RoundUp(bytes, 4 * kKiB)));
  map[0] = 'a';
  const char first = bytes == 1 ? 'z' : 'a';
  map[bytes - 1] = 'z';
  char last = 0;
  EXPECT_EQ(::pread(fd.get(), &last, 1, static_cast<off_t>(bytes - 1)), 1);
  EXPECT_EQ(last, 'z');
  (void)MakeHuge(map, bytes);
  EXPECT_EQ(map[0], first);
  EXPECT_EQ(map[bytes - 1], 'z');
  EXPECT_EQ(::munmap(map, bytes), 0);
  EXPECT_EQ(Smaps(map, "Size"), -1) << "nothing stays";
}

INSTANTIATE_TEST_SUITE_P(Sizes, HugeMappingTest,
                         ::testing::Values(1, 4 * kKiB, kHuge - 4 * kKiB, kHuge, kHuge + 4 * kKiB,
                                           3 * kHuge, 5 * kHuge + 12'345));

TEST(HugeMappingOfNothingTest, SaysWhy) {
  EXPECT_EQ(MapShared(-1, 4 * kHuge, PROT_READ), MAP_FAILED);
  EXPECT_EQ(errno, EBADF);
}

TEST(HugePagesTest, ComeWhereTheKernelSaysSoAndForAReaderToo) {
  constexpr uint64_t kBytes = 4 * kHuge;
  const Fd fd = File(kBytes);
  auto* const map = static_cast<char*>(MapShared(fd.get(), kBytes, PROT_READ | PROT_WRITE));
  ASSERT_NE(map, MAP_FAILED);
  std::memset(map + kHuge, 7, kHuge);  // a unit of small pages already
  const bool huge = MakeHuge(map, kBytes);
  EXPECT_EQ(map[kHuge], 7);
  EXPECT_EQ(map[2 * kHuge], 0);
  const void* const reader = MapShared(fd.get(), kBytes, PROT_READ);
  ASSERT_NE(reader, MAP_FAILED);
  EXPECT_EQ(std::memcmp(reader, map, kBytes), 0);
  if (huge && Smaps(map, "ShmemPmdMapped") > 0) {
    EXPECT_EQ(Smaps(map, "ShmemPmdMapped"), static_cast<int64_t>(kBytes));
    EXPECT_EQ(Smaps(reader, "ShmemPmdMapped"), static_cast<int64_t>(kBytes));
  }
  ::munmap(map, kBytes);
  ::munmap(const_cast<void*>(reader), kBytes);
}

// As the kernel chooses where nodes take turns: by the number of the page.
TEST(HugePagesTest, ComeFromAllNodesEvenlyWhereTheyTakeTurns) {
  constexpr uint64_t kUnits = 4096;
  for (uint64_t nodes = 2; nodes <= 8; ++nodes) {
    std::vector<double> units(nodes);
    for (uint64_t unit = 0; unit < kUnits; ++unit) {
      const uint64_t page = FirstPageOf(unit);
      ASSERT_LT(page, 512U);
      ++units[(unit * 512 + page) % nodes];
    }
    for (const double one : units) EXPECT_NEAR(one, kUnits / static_cast<double>(nodes), 100);
  }
}

TEST(HugePagesTest, PartsThatAreNoWholeUnitAreLeftAlone) {
  const Fd fd = File(2 * kHuge);
  auto* const map = static_cast<std::byte*>(MapShared(fd.get(), 2 * kHuge, PROT_READ | PROT_WRITE));
  ASSERT_NE(map, MAP_FAILED);
  EXPECT_TRUE(MakeHuge(map + 4 * kKiB, kHuge));
  EXPECT_EQ(Smaps(map, "Rss"), 0);
  ::munmap(map, 2 * kHuge);
}

// The kernel may take the addresses away before it refuses the mapping. Threads are made all the
// time, and their stacks may lie there by then.
TEST(HugeMappingTest, AMappingThatFailsTakesNoAddressesOfOthers) {
  constexpr uint64_t kBytes = 16 * kMiB;
  const Fd fd(::memfd_create("test", MFD_CLOEXEC | MFD_HUGETLB));
  if (!fd.valid()) GTEST_SKIP() << "this kernel has no hugetlb pages at all";
  ASSERT_EQ(::ftruncate(fd.get(), kBytes), 0);
  std::atomic<bool> stop{false};
  Thread mapper("mapper", [&] {
    while (!stop.load()) {
      void* const map = MapShared(fd.get(), kBytes, PROT_READ | PROT_WRITE);
      if (map != MAP_FAILED) (void)::munmap(map, kBytes);  // they are reserved on this machine
    }
  });
  for (int i = 0; i < 3000; ++i) Thread("other", [] {}).Join();
  stop.store(true);
}

}  // namespace
}  // namespace ems::fabric::internal
