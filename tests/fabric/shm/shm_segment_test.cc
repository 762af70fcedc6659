// What must hold: all the memory is there from the start, zero, sealed against a change of size.
#include "fabric/shm/shm_segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

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

uint64_t FaultsOfThisThread() {
  rusage usage{};
  EXPECT_EQ(::getrusage(RUSAGE_THREAD, &usage), 0);
  return static_cast<uint64_t>(usage.ru_minflt);
}

TEST(ShmSegmentTest, LargeOnesAreTouchedBySeveralThreads) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one core";
  constexpr uint64_t kBytes = 50 * kMiB;  // no multiple of the threads
  const uint64_t before = FaultsOfThisThread();
  Result<ShmSegment> segment = ShmSegment::Create(kBytes, HugePages::kOff);
  ASSERT_TRUE(segment.ok()) << segment.status();
  const uint64_t pages = kBytes / (4 * kKiB);
  EXPECT_LT(FaultsOfThisThread() - before, pages * 3 / 4);
  std::vector<unsigned char> resident(pages);
  ASSERT_EQ(::mincore(segment->bytes().data(), kBytes, resident.data()), 0);
  EXPECT_TRUE(std::ranges::all_of(resident, [](unsigned char page) { return (page & 1) != 0; }));
}

// The kernel's word on where pages of the memory come from: linux/mempolicy.h.
int PolicyOf(const void* at) {
  constexpr unsigned long kAddress = 2;  // MPOL_F_ADDR
  int policy = -1;
  EXPECT_EQ(::syscall(SYS_get_mempolicy, &policy, nullptr, 0, at, kAddress), 0);
  return policy;
}

TEST(ShmSegmentTest, IsSpreadOverTheNodesThatAreNamed) {
  constexpr int kDefault = 0, kInterleave = 3;  // MPOL_*
  for (const HugePages pages : {HugePages::kOff, HugePages::kTry}) {
    Result<ShmSegment> spread = ShmSegment::CreateOn({0}, 4 * kMiB, pages);
    ASSERT_TRUE(spread.ok()) << spread.status();
    EXPECT_EQ(PolicyOf(spread->bytes().data()), kInterleave);
    EXPECT_EQ(PolicyOf(spread->bytes().data() + 4 * kMiB - 1), kInterleave);
    Result<ShmSegment> plain = ShmSegment::Create(4 * kMiB, pages);
    ASSERT_TRUE(plain.ok()) << plain.status();
    EXPECT_EQ(PolicyOf(plain->bytes().data()), kDefault);
  }
  EXPECT_TRUE(ShmSegment::CreateOn({kNumaNodesMax - 1}, 2 * kMiB, HugePages::kOff).ok())
      << "a node that is not there is no reason to have no memory";
}

TEST(ShmSegmentTest, ASparseOneHasItsAddressesAndNoPages) {
  Result<ShmSegment> segment = ShmSegment::CreateSparse(uint64_t{1} << 40);
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ(segment->size_bytes(), uint64_t{1} << 40);
  segment->bytes().back() = std::byte{1};
  struct stat info {};
  ASSERT_EQ(::fstat(segment->fd(), &info), 0);
  EXPECT_LE(info.st_blocks * 512, static_cast<int64_t>(2 * kMiB));
  EXPECT_EQ(ShmSegment::CreateSparse(0).status().code(), StatusCode::kInvalidArgument);
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

TEST(ShmSegmentTest, ThisKernelKeepsWhatTheSealsPromise) {
  const Status checked = ShmSegment::CheckSealing();
  EXPECT_TRUE(checked.ok()) << checked;
}

TEST(ShmSegmentTest, AReceiverCannotWriteByAnyDescriptorItCanGet) {
  Result<ShmSegment> segment = ShmSegment::CreatePages(8192, false);
  ASSERT_TRUE(segment.ok()) << segment.status();
  segment->bytes()[0] = std::byte{42};  // the owner still can
  Result<Fd> given = segment->OpenReadOnly();
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, given->get(), 0), MAP_FAILED);
  const std::string path = "/proc/self/fd/" + std::to_string(given->get());
  const Fd again(::open(path.c_str(), O_RDWR | O_CLOEXEC));  // the same user may open it
  if (again.valid()) {
    EXPECT_EQ(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0),
              MAP_FAILED);
    EXPECT_EQ(::pwrite(again.get(), "EVIL", 4, 0), -1);
    EXPECT_NE(::ftruncate(again.get(), 0), 0);
    EXPECT_NE(::fallocate(again.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  }
  EXPECT_EQ(segment->bytes()[0], std::byte{42});
}

TEST(ShmSegmentTest, ASuccessorMapsWhatWasLeftAndCanWrite) {
  Fd left;
  {
    auto segment = ShmSegment::CreateOn({}, 2 * kMiB, HugePages::kOff, Writers::kSuccessor);
    ASSERT_TRUE(segment.ok()) << segment.status();
    std::memcpy(segment->bytes().data() + 4711, "hello", 5);
    left = Fd(::fcntl(segment->fd(), F_DUPFD_CLOEXEC, 0));
  }
  auto again = ShmSegment::Adopt(std::move(left), 2 * kMiB, PageKind::kSmall);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(std::memcmp(again->bytes().data() + 4711, "hello", 5), 0);
  again->bytes()[0] = std::byte{42};
  const auto given = again->OpenReadOnly();
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, given->get(), 0), MAP_FAILED);
  EXPECT_EQ(::pwrite(given->get(), "EVIL", 4, 0), -1);
  EXPECT_EQ(again->Protect(), OkStatus());
  EXPECT_DEATH(again->bytes()[0] = std::byte{1}, "");
}

TEST(ShmSegmentTest, WhatCouldShrinkOrHasAnotherSizeIsNotAdopted) {
  Fd loose(::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(loose.get(), 2 * kMiB), 0);
  EXPECT_EQ(ShmSegment::Adopt(std::move(loose), 2 * kMiB, PageKind::kSmall).status().code(),
            StatusCode::kInvalidArgument);
  auto segment = ShmSegment::CreateOn({}, 2 * kMiB, HugePages::kOff, Writers::kSuccessor);
  ASSERT_TRUE(segment.ok());
  EXPECT_FALSE(
      ShmSegment::Adopt(Fd(::fcntl(segment->fd(), F_DUPFD_CLOEXEC, 0)), 4 * kMiB, PageKind::kSmall)
          .ok());
  EXPECT_FALSE(ShmSegment::Adopt(Fd(), 2 * kMiB, PageKind::kSmall).ok());
}

TEST(ShmSegmentTest, ThisKernelKeepsWhatIsPromisedWithASuccessor) {
  const Status checked = ShmSegment::CheckSealing(Writers::kSuccessor);
  EXPECT_TRUE(checked.ok()) << checked;
}

TEST(ShmSegmentTest, APageForThePeerCanBeWrittenByIt) {
  Result<ShmSegment> page = ShmSegment::CreatePages(100, true);
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->size_bytes(), 4096u);
  void* map = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, page->fd(), 0);
  ASSERT_NE(map, MAP_FAILED);
  static_cast<char*>(map)[9] = 'x';
  EXPECT_EQ(page->bytes()[9], std::byte{'x'});
  EXPECT_NE(::ftruncate(page->fd(), 0), 0);
  ::munmap(map, 4096);
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
