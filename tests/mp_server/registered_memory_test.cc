// What must hold: only memory is mapped that has all its pages and can neither shrink nor lose one.
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
  if (bytes > 0) {
    EXPECT_EQ(fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)), 0);
  }
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
    ASSERT_TRUE(client_->Populate(0, bytes).ok());
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

TEST_F(RegisteredMemoryTest, PartsAreRead) {
  Make(kMiB);
  Write(100, "hello");
  const auto part = memory_->Part(100, 5);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(AsText(*part), "hello");
  EXPECT_TRUE(Reads(kMiB - 1, 1));
  EXPECT_FALSE(Reads(kMiB, 1));
  EXPECT_FALSE(Reads(1, UINT64_MAX));
  EXPECT_TRUE(Reads(kMiB, 0));
}

// Reading a hole would make pages that the reader pays for.
TEST_F(RegisteredMemoryTest, MemoryWithHolesIsRefused) {
  auto made = fabric::SharedMemory::Create("client", kMiB);
  ASSERT_TRUE(made.ok()) << made.status();
  const Fd fd(dup((*made)->fd()));
  EXPECT_FALSE(RegisteredMemory::Map(fd, kMiB).ok());
  ASSERT_TRUE((*made)->Populate(0, kMiB - kPage).ok());
  EXPECT_FALSE(RegisteredMemory::Map(fd, kMiB).ok()) << "one page is missing";
  ASSERT_TRUE((*made)->Populate(kMiB - kPage, kPage).ok());
  EXPECT_TRUE(RegisteredMemory::Map(fd, kMiB).ok());
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

}  // namespace
}  // namespace ems::server
