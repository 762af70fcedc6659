// What must hold: all the memory is there from the start, zero, sealed against a change of size.
#include "fabric/shm_segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace ems::fabric {
namespace {

TEST(ShmSegmentTest, IsZeroRoundedUpAndResident) {
  Result<ShmSegment> segment = ShmSegment::Create(3 * kMiB, HugePages::kOff);
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ(segment->size_bytes(), 4 * kMiB);
  EXPECT_EQ(segment->bytes().size(), 4 * kMiB);
  EXPECT_EQ(segment->page_kind(), PageKind::kSmall);
  EXPECT_TRUE(std::ranges::all_of(segment->bytes(), [](std::byte b) { return b == std::byte{0}; }));
  struct stat info {};
  ASSERT_EQ(::fstat(segment->fd(), &info), 0);
  EXPECT_GE(info.st_blocks * 512, static_cast<int64_t>(4 * kMiB)) << "every page is allocated";
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST(ShmSegmentTest, CannotShrinkOrGrow) {
  Result<ShmSegment> segment = ShmSegment::Create(2 * kMiB, HugePages::kTry);
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_NE(::ftruncate(segment->fd(), 4096), 0);
  EXPECT_NE(::ftruncate(segment->fd(), static_cast<off_t>(8 * kMiB)), 0);
  const int seals = ::fcntl(segment->fd(), F_GET_SEALS);
  EXPECT_EQ(seals & (F_SEAL_SHRINK | F_SEAL_GROW), F_SEAL_SHRINK | F_SEAL_GROW);
}

TEST(ShmSegmentTest, AReadOnlyMappingSeesTheBytes) {
  Result<ShmSegment> segment = ShmSegment::Create(2 * kMiB, HugePages::kOff);
  ASSERT_TRUE(segment.ok()) << segment.status();
  std::memcpy(segment->bytes().data() + 12345, "hello", 5);
  void* other = ::mmap(nullptr, 2 * kMiB, PROT_READ, MAP_SHARED, segment->fd(), 0);
  ASSERT_NE(other, MAP_FAILED);
  EXPECT_EQ(std::memcmp(static_cast<char*>(other) + 12345, "hello", 5), 0);
  ::munmap(other, 2 * kMiB);
}

TEST(ShmSegmentTest, MovesLeaveNothingBehind) {
  Result<ShmSegment> segment = ShmSegment::Create(2 * kMiB, HugePages::kOff);
  ASSERT_TRUE(segment.ok()) << segment.status();
  const int fd = segment->fd();
  {
    ShmSegment moved = std::move(*segment);
    EXPECT_EQ(moved.fd(), fd);
    EXPECT_EQ(segment->size_bytes(), 0U);
  }
  EXPECT_LT(::fcntl(fd, F_GETFD), 0) << "closed with its owner";
}

TEST(ShmSegmentTest, ZeroAndImpossibleSizesAreErrors) {
  EXPECT_EQ(ShmSegment::Create(0, HugePages::kTry).status().code(), StatusCode::kInvalidArgument);
  Result<ShmSegment> huge = ShmSegment::Create(uint64_t{1} << 50, HugePages::kRequire);
  EXPECT_EQ(huge.status().code(), StatusCode::kResourceExhausted) << huge.status();
  EXPECT_FALSE(Message(huge.status()).empty());
}

TEST(ShmSegmentTest, PageKindsHaveNames) {
  EXPECT_EQ(PageKindName(PageKind::kHugetlb), "hugetlb 2 MiB");
  EXPECT_EQ(PageKindName(PageKind::kTransparent), "transparent 2 MiB");
  EXPECT_EQ(PageKindName(PageKind::kSmall), "4 KiB");
}

}  // namespace
}  // namespace ems::fabric
