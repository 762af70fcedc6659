// What must hold: only memory that can neither shrink nor lose pages is mapped, and what is read of
// it was mapped before.
#include "mp_server/registered_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

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

TEST_F(RegisteredMemoryTest, PartsAreReadAndWhatWasNeverWrittenIsZero) {
  Make(kMiB);
  Write(100, "hello");
  const auto part = memory_->Part(100, 8);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(AsText(*part), std::string_view("hello\0\0\0", 8));
  const auto hole = memory_->Part(kMiB - 100, 100);
  ASSERT_TRUE(hole.ok()) << hole.status();
  EXPECT_EQ(AsText(*hole), std::string(100, '\0'));
  Write(kMiB - 5, "later");
  EXPECT_EQ(AsText(memory_->Part(kMiB - 5, 5).value()), "later");
  EXPECT_FALSE(Reads(kMiB, 1));
  EXPECT_FALSE(Reads(1, UINT64_MAX));
  EXPECT_TRUE(Reads(kMiB, 0));
}

// Each page is mapped before it is read, whatever the order: what is not would fault, which
// mincore(2) tells of the file of a process that may write it.
TEST_F(RegisteredMemoryTest, EachPageIsThereOnceItsPartWasAskedFor) {
  constexpr uint64_t kPages = 256;
  Make(kPages * kPage);
  for (const uint64_t page : {63u, 64u, 65u, 0u, 255u, 128u, 127u, 62u}) {
    ASSERT_TRUE(Reads(page * kPage + 5, kPage - 5));
  }
  ASSERT_TRUE(Reads(190 * kPage + 1, 4 * kPage)) << "across a word of the bits";
  std::vector<unsigned char> there(kPages);
  ASSERT_EQ(mincore(client_->bytes().data(), kPages * kPage, there.data()), 0);
  for (const uint64_t page :
       {0u, 62u, 63u, 64u, 65u, 127u, 128u, 190u, 191u, 192u, 193u, 194u, 255u})
    EXPECT_EQ(there[page] & 1, 1) << page;
  EXPECT_EQ(there[10] & 1, 0) << "nobody asked for it";
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
