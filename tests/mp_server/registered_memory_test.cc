// What must hold: only memory that can neither shrink nor fault is mapped, and only what was
// written of it is read.
#include "mp_server/registered_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "fabric/shm_segment.h"
#include "fabric/shm_transport.h"

namespace ems::server {
namespace {

using fabric::Fd;

constexpr uint64_t kPage = 4 * kKiB;
constexpr int kSeals = F_SEAL_SHRINK | fabric::kSealFutureWrite;

Fd Memory(uint64_t bytes, int seals) {
  Fd fd(memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

// The client's memory, as its SDK makes it, and the server's mapping of it.
class RegisteredMemoryTest : public ::testing::Test {
 protected:
  void Make(uint64_t bytes) {
    auto made = fabric::SharedMemory::Create("client", bytes);
    ASSERT_TRUE(made.ok()) << made.status();
    client_ = *std::move(made);
    const Fd fd(dup(client_->fd()));
    auto mapped = RegisteredMemory::Map(fd, bytes);
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    memory_ = *std::move(mapped);
  }
  void Write(uint64_t offset, std::string_view text) {
    std::memcpy(client_->bytes().data() + offset, text.data(), text.size());
  }
  bool Reads(uint64_t offset, uint64_t bytes) { return memory_->Part(offset, bytes).ok(); }

  std::unique_ptr<fabric::SharedMemory> client_;
  std::shared_ptr<const RegisteredMemory> memory_;
};

TEST_F(RegisteredMemoryTest, OnlySealedSharedMemoryOfTheStatedSizeIsMapped) {
  EXPECT_TRUE(RegisteredMemory::Map(Memory(kMiB, kSeals), kMiB).ok());
  EXPECT_FALSE(RegisteredMemory::Map(Memory(kMiB, 0), kMiB).ok());
  EXPECT_FALSE(RegisteredMemory::Map(Memory(kMiB, F_SEAL_SHRINK), kMiB).ok())
      << "its pages could be given back under a reader";
  EXPECT_FALSE(RegisteredMemory::Map(Memory(kMiB, kSeals), 2 * kMiB).ok());
  EXPECT_FALSE(RegisteredMemory::Map(Memory(0, kSeals), 0).ok());
  EXPECT_FALSE(RegisteredMemory::Map(Fd(open("/dev/zero", O_RDWR | O_CLOEXEC)), kMiB).ok());
  EXPECT_FALSE(RegisteredMemory::Map(Fd(), kMiB).ok());
}

TEST_F(RegisteredMemoryTest, PartsThatWereWrittenAreReadAndHolesAreNot) {
  Make(kMiB);
  EXPECT_FALSE(Reads(100, 5));
  Write(100, "hello");
  const auto part = memory_->Part(100, 5);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(AsText(*part), "hello");
  EXPECT_FALSE(Reads(100, 2 * kPage)) << "it ends in a hole";
  EXPECT_FALSE(Reads(kMiB, 1));
  EXPECT_FALSE(Reads(1, UINT64_MAX));
  EXPECT_TRUE(Reads(kMiB, 0));
}

TEST_F(RegisteredMemoryTest, EachPageCountsForItself) {
  Make(kMiB);
  for (const uint64_t page : {0, 1, 2, 63, 64, 65, 127, 128, 255}) Write(page * kPage, "x");
  EXPECT_TRUE(Reads(0, 3 * kPage));
  EXPECT_FALSE(Reads(0, 3 * kPage + 1));
  EXPECT_TRUE(Reads(63 * kPage, 3 * kPage)) << "across a word of the bits";
  EXPECT_FALSE(Reads(62 * kPage, 2 * kPage));
  EXPECT_TRUE(Reads(127 * kPage + 5, kPage));
  EXPECT_TRUE(Reads(255 * kPage, kPage)) << "the last";
  EXPECT_FALSE(Reads(254 * kPage, 2 * kPage));
  Write(254 * kPage, "x");
  EXPECT_TRUE(Reads(254 * kPage, 2 * kPage)) << "what was refused may be written later";
}

TEST_F(RegisteredMemoryTest, AClientCannotTakeAPageBack) {
  Make(kMiB);
  Write(0, "here");
  ASSERT_TRUE(Reads(0, 4));
  EXPECT_NE(fallocate(client_->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kPage), 0);
  EXPECT_NE(madvise(client_->bytes().data(), kPage, MADV_REMOVE), 0);
  EXPECT_NE(ftruncate(client_->fd(), 0), 0);
  EXPECT_EQ(AsText(*memory_->Part(0, 4)), "here");
}

// Each call would walk over everything behind it: bounded, and what was seen stays good.
TEST_F(RegisteredMemoryTest, WalkingBackwardsIsRefusedInTheEnd) {
  constexpr uint64_t kPages = 2048;
  Make(kPages * kPage);
  int seen = 0;
  for (uint64_t page = kPages; page-- > 0;) {
    Write(page * kPage, "x");
    seen += Reads(page * kPage, kPage) ? 1 : 0;
  }
  EXPECT_GT(seen, 300);
  EXPECT_LT(seen, 800) << "nobody counted the walks";
  EXPECT_TRUE(Reads((kPages - 1) * kPage, kPage));
}

}  // namespace
}  // namespace ems::server
