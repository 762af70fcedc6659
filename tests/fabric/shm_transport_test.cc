// What must hold: granted memory reads as its owner writes it; what is not memory that keeps its
// size is not mapped; memory that was taken back reads as zeros.
#include "fabric/shm_transport.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "fabric/shm_segment.h"

namespace ems::fabric {
namespace {

MutableBytes Room(std::string* text) { return std::as_writable_bytes(std::span(*text)); }

TEST(ShmTransportTest, AGrantReachesTheMemory) {
  ShmTransport shm;
  auto local = shm.Allocate(10'000);
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ((*local)->bytes().size(), 12'288U) << "whole pages";
  auto remote = shm.Reach(*(*local)->Grant());
  ASSERT_TRUE(remote.ok()) << remote.status();
  EXPECT_EQ((*remote)->size_bytes(), 12'288U);
  std::memcpy((*local)->bytes().data() + 4090, "across pages", 12);
  std::string text(12, '\0');
  (*remote)->Read(4090, Room(&text));
  EXPECT_EQ(text, "across pages");
  (*local)->bytes()[8] = std::byte{42};
  EXPECT_EQ((*remote)->LoadWord(8), 42U);
  EXPECT_NE((*remote)->address(), nullptr);
}

TEST(ShmTransportTest, TheMemoryOutlivesItsOwner) {
  ShmTransport shm;
  auto local = shm.Allocate(4096);
  (*local)->bytes()[0] = std::byte{7};
  auto remote = shm.Reach(*(*local)->Grant());
  local->reset();
  EXPECT_EQ((*remote)->LoadWord(0), 7U);
}

TEST(ShmTransportTest, OnlySealedFilesOfTheStatedLengthAreMapped) {
  Fd unsealed(::memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096), 0);
  EXPECT_EQ(MappedMemory::Map(unsealed, 4096).status().code(), StatusCode::kInvalidArgument);
  ASSERT_EQ(::fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(MappedMemory::Map(unsealed, 4096).ok());
  EXPECT_FALSE(MappedMemory::Map(unsealed, 4095).ok());
  EXPECT_FALSE(MappedMemory::Map(unsealed, 8192).ok());
  EXPECT_FALSE(MappedMemory::Map(unsealed, 0).ok());
  EXPECT_FALSE(MappedMemory::Map(Fd(), 4096).ok());
  EXPECT_FALSE(MappedMemory::Map(Fd(::open("/dev/null", O_RDONLY)), 0).ok());
  EXPECT_FALSE(SharedPage::Map(unsealed, 8192).ok());
}

TEST(ShmTransportTest, BlankMemoryReadsAsZerosAtTheSameAddress) {
  auto local = SharedMemory::Create("t", 64 * kKiB);
  std::memset((*local)->bytes().data(), 0xff, 64 * kKiB);
  const MemoryGrant grant = *(*local)->Grant();
  auto remote = MappedMemory::Map(grant.fd, grant.bytes);
  const std::byte* const address = (*remote)->address();
  (*remote)->Blank();
  EXPECT_EQ((*remote)->address(), address);
  EXPECT_EQ((*remote)->LoadWord(4096), 0U);
  std::string all(64 * kKiB, 'x');
  (*remote)->Read(0, Room(&all));
  EXPECT_EQ(all, std::string(64 * kKiB, '\0'));
}

TEST(ShmTransportTest, SharedPagesAreWrittenByBothSides) {
  auto local = ShmSegment::CreatePages(4096, true);
  ASSERT_TRUE(local.ok()) << local.status();
  const Fd fd(::dup(local->fd()));
  ShmTransport shm;
  auto mapped = shm.ReachToWrite({Fd(::dup(fd.get())), 4096});
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  (*mapped)->Write(4000, AsBytes("one-sided"));
  EXPECT_EQ(AsText(local->bytes().subspan(4000, 9)), "one-sided");
  (*mapped)->StoreWord(16, 0x0908'0706'0504'0302);
  EXPECT_EQ(local->bytes()[16], std::byte{2});
  local->bytes()[24] = std::byte{5};
  EXPECT_EQ((*mapped)->LoadWord(24), 5U);
  std::string text(9, ' ');
  (*mapped)->Read(4000, Room(&text));
  EXPECT_EQ(text, "one-sided");
  EXPECT_EQ((*mapped)->address(), (*mapped)->writable_address());
}

TEST(ShmTransportTest, WhatWasGrantedIsReadAndNeitherWrittenNorEmptiedByAPeer) {
  auto local = SharedMemory::Create("t", 8192);
  ASSERT_TRUE(local.ok()) << local.status();
  (*local)->bytes()[5] = std::byte{9};
  const MemoryGrant grant = *(*local)->Grant();
  EXPECT_FALSE(SharedPage::Map(grant.fd, 8192).ok());
  EXPECT_LT(::pwrite(grant.fd.get(), "x", 1, 5), 0);
  EXPECT_NE(::fallocate(grant.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  const auto remote = MappedMemory::Map(grant.fd, 8192);
  ASSERT_TRUE(remote.ok()) << remote.status();
  EXPECT_EQ((*remote)->address()[5], std::byte{9});
}

TEST(ShmTransportTest, MessagesNeedAUnixSocket) {
  ShmTransport shm;
  const auto tcp =
      shm.Connect({.host = "127.0.0.1", .port = 1, .unix_path = {}}, std::chrono::milliseconds(10));
  EXPECT_EQ(tcp.status().code(), StatusCode::kInvalidArgument);
}

TEST(SharedMemoryTest, MemoryOfNoBytesIsRefused) {
  EXPECT_EQ(SharedMemory::Create("t", 0).status().code(), StatusCode::kInvalidArgument);
}

TEST(SharedMemoryTest, PagesAreMadeOnDemand) {
  auto memory = SharedMemory::Create("t", kGiB);
  ASSERT_TRUE(memory.ok()) << "a file of many bytes costs nothing: " << memory.status();
  EXPECT_TRUE((*memory)->Populate(12'345, 100'000).ok());
}

}  // namespace
}  // namespace ems::fabric
