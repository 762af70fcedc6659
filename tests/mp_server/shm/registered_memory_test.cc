// What must hold: only memory is mapped that has all its pages and can neither shrink nor lose one.
#include "mp_server/shm/registered_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "fabric/shm/shm_segment.h"
#include "fabric/shm/shm_transport.h"

namespace ems::server {
namespace {

using fabric::Fd;

constexpr uint64_t kPage = 4 * kKiB;
constexpr int kSeals = F_SEAL_SHRINK | fabric::kSealFutureWrite;

Fd Memory(uint64_t bytes, int seals) {
  Fd fd(memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::string pages(bytes, 'x');
  EXPECT_EQ(write(fd.get(), pages.data(), bytes), static_cast<ssize_t>(bytes));
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

TEST_F(RegisteredMemoryTest, ItsFirstPartIsMappedWhereOnlyThatHasItsPages) {
  auto made = fabric::SharedMemory::Create("client", kMiB);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_TRUE((*made)->Populate(0, 2 * kPage).ok());
  const Fd fd(dup((*made)->fd()));
  const auto part = RegisteredMemory::Map(fd, 2 * kPage);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ((*part)->size_bytes(), 2 * kPage);
  EXPECT_FALSE((*part)->Part(2 * kPage, 1).ok());
  EXPECT_FALSE(RegisteredMemory::Map(fd, 3 * kPage).ok());
}

// Pages beyond the end, or behind a hole, are as many as are missing.
TEST_F(RegisteredMemoryTest, PagesElsewhereDoNotMakeUpForHoles) {
  Fd fd(memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), kMiB), 0);
  ASSERT_EQ(fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, kMiB, kMiB), 0);
  ASSERT_EQ(pwrite(fd.get(), "x", 1, 0), 1);
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, kSeals), 0);
  EXPECT_FALSE(RegisteredMemory::Map(fd, kMiB).ok());
  EXPECT_TRUE(RegisteredMemory::Map(fd, kPage).ok());
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

class RegisteredMemoriesTest : public ::testing::Test {
 protected:
  Status Register(uint64_t session, uint64_t bytes) {
    std::vector<Fd> fds;
    fds.push_back(Memory(bytes, kSeals));
    return memories_.Register(session, 100 + session, fds, bytes);
  }
  static wire::StagedValue Staged(uint64_t session, uint64_t offset, uint64_t bytes) {
    wire::StagedValue value;
    value.session = session;
    value.secret = 100 + session;
    value.offset = offset;
    value.bytes = bytes;
    value.progress_at = wire::kAllThere;
    return value;
  }
  bool Finds(const wire::StagedValue& value) { return memories_.Find(value).ok(); }

  MetricsRegistry registry_;
  Gauge gauge_ = registry_.AddGauge("registered", "");
  RegisteredMemories memories_{4 * kPage, gauge_};
};

TEST_F(RegisteredMemoriesTest, AllTogetherStayBelowTheBound) {
  EXPECT_EQ(Register(1, 3 * kPage), OkStatus());
  EXPECT_EQ(Register(2, 2 * kPage).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Register(2, kPage), OkStatus());
  EXPECT_EQ(gauge_.value(), 4 * kPage);
  memories_.Drop(1);
  memories_.Drop(1);
  EXPECT_EQ(gauge_.value(), kPage);
  EXPECT_EQ(Register(3, 3 * kPage), OkStatus());
}

TEST_F(RegisteredMemoriesTest, ASessionRegistersMoreAndMoreWithOneDescriptorEach) {
  EXPECT_EQ(memories_.Register(1, 2, {}, kPage).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Register(1, kPage), OkStatus());
  const auto early = memories_.Find(Staged(1, 0, kPage));
  EXPECT_EQ(Register(1, 3 * kPage), OkStatus());
  EXPECT_EQ(gauge_.value(), 3 * kPage) << "in place of what it had";
  EXPECT_TRUE(Finds(Staged(1, 2 * kPage, kPage)));
  EXPECT_EQ(early->bytes[0], std::byte{'x'}) << "who copies goes on";
  EXPECT_EQ(Register(2, kPage), OkStatus());
  EXPECT_EQ(Register(1, 4 * kPage).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(memories_.Register(1, 101, {}, kPage).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Finds(Staged(1, 2 * kPage, kPage))) << "a refusal changes nothing";
  EXPECT_EQ(Register(1, kPage), OkStatus());
  EXPECT_EQ(gauge_.value(), 2 * kPage);
}

TEST_F(RegisteredMemoriesTest, OnlyWhoKnowsTheSecretReadsAndOnlyWithin) {
  ASSERT_EQ(Register(1, kPage), OkStatus());
  EXPECT_TRUE(Finds(Staged(1, 8, kPage - 8)));
  EXPECT_FALSE(Finds(Staged(1, 8, kPage)));
  EXPECT_FALSE(Finds(Staged(2, 0, 1)));
  wire::StagedValue guessed = Staged(1, 0, 1);
  ++guessed.secret;
  EXPECT_FALSE(Finds(guessed));
  wire::StagedValue progress = Staged(1, 0, 1);
  progress.progress_at = 16;
  EXPECT_TRUE(Finds(progress));
  progress.progress_at = 17;
  EXPECT_FALSE(Finds(progress)) << "not a word";
  progress.progress_at = kPage;
  EXPECT_FALSE(Finds(progress));
}

TEST_F(RegisteredMemoriesTest, WhoCopiesKeepsTheMemoryThatIsDropped) {
  ASSERT_EQ(Register(1, kPage), OkStatus());
  const auto staged = memories_.Find(Staged(1, 0, kPage));
  ASSERT_TRUE(staged.ok());
  memories_.Drop(1);
  EXPECT_FALSE(Finds(Staged(1, 0, kPage)));
  EXPECT_EQ(staged->bytes[kPage - 1], std::byte{'x'});
}

}  // namespace
}  // namespace ems::server
