// What must hold: only memory that can neither shrink nor fault is mapped, and only what was
// written of it is read.
#include "mp_server/registered_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace ems::server {
namespace {

using fabric::Fd;

Fd Memory(uint64_t bytes, int seals) {
  Fd fd(memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

TEST(RegisteredMemoryTest, OnlySealedSharedMemoryOfTheStatedSizeIsMapped) {
  EXPECT_TRUE(RegisteredMemory::Map(Memory(kMiB, F_SEAL_SHRINK), kMiB).ok());
  EXPECT_FALSE(RegisteredMemory::Map(Memory(kMiB, 0), kMiB).ok());
  EXPECT_FALSE(RegisteredMemory::Map(Memory(kMiB, F_SEAL_SHRINK), 2 * kMiB).ok());
  EXPECT_FALSE(RegisteredMemory::Map(Memory(0, F_SEAL_SHRINK), 0).ok());
  EXPECT_FALSE(RegisteredMemory::Map(Fd(open("/dev/zero", O_RDWR | O_CLOEXEC)), kMiB).ok());
  EXPECT_FALSE(RegisteredMemory::Map(Fd(), kMiB).ok());
}

TEST(RegisteredMemoryTest, PartsThatWereWrittenAreReadAndHolesAreNot) {
  const Fd fd = Memory(kMiB, F_SEAL_SHRINK);
  const auto memory = RegisteredMemory::Map(fd, kMiB);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_FALSE((*memory)->Part(100, 5).ok());
  ASSERT_EQ(::pwrite(fd.get(), "hello", 5, 100), 5);
  const auto part = (*memory)->Part(100, 5);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(AsText(*part), "hello");
  EXPECT_FALSE((*memory)->Part(100, 8192).ok()) << "it ends in a hole";
  EXPECT_FALSE((*memory)->Part(kMiB, 1).ok());
  EXPECT_FALSE((*memory)->Part(1, UINT64_MAX).ok());
  EXPECT_TRUE((*memory)->Part(kMiB, 0).ok());
}

}  // namespace
}  // namespace ems::server
