// What must hold: granted memory reads as its owner writes it; what is not memory that keeps its
// size is not mapped; memory that was taken back reads as zeros.
#include "fabric/shm/shm_transport.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "fabric/shm/shm_segment.h"

namespace ems::fabric {
namespace {

MutableBytes Room(std::string* text) { return std::as_writable_bytes(std::span(*text)); }

Fd Given(const SharedMemory& memory) { return Fd(::dup(memory.fd())); }

TEST(ShmTransportTest, APeerReadsTheMemory) {
  auto local = SharedMemory::Create("t", 10'000);
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ((*local)->bytes().size(), 12'288U) << "whole pages";
  auto remote = MappedMemory::Map(Given(**local), 12'288);
  ASSERT_TRUE(remote.ok()) << remote.status();
  EXPECT_EQ((*remote)->size_bytes(), 12'288U);
  std::memcpy((*local)->bytes().data() + 4090, "across pages", 12);
  std::string text(12, '\0');
  (*remote)->Read(4090, Room(&text));
  EXPECT_EQ(text, "across pages");
  (*local)->bytes()[8] = std::byte{42};
  EXPECT_EQ((*remote)->LoadWord(8), 42U);
  EXPECT_NE((*remote)->address(), nullptr);
  local->reset();
  EXPECT_EQ((*remote)->LoadWord(8), 42U) << "it outlives its owner";
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
  auto remote = MappedMemory::Map(Given(**local), 64 * kKiB);
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
  auto mapped = SharedPage::Map(Fd(::dup(local->fd())), 4096);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  std::memcpy((*mapped)->writable_address() + 4000, "one-sided", 9);
  EXPECT_EQ(AsText(local->bytes().subspan(4000, 9)), "one-sided");
  local->bytes()[24] = std::byte{5};
  EXPECT_EQ((*mapped)->writable_address()[24], std::byte{5});
}

TEST(ShmTransportTest, WhatWasGrantedIsReadAndNeitherWrittenNorEmptiedByAPeer) {
  auto local = SharedMemory::Create("t", 8192);
  ASSERT_TRUE(local.ok()) << local.status();
  (*local)->bytes()[5] = std::byte{9};
  const Fd given = Given(**local);
  EXPECT_FALSE(SharedPage::Map(given, 8192).ok());
  EXPECT_LT(::pwrite(given.get(), "x", 1, 5), 0);
  EXPECT_NE(::fallocate(given.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  const auto remote = MappedMemory::Map(given, 8192);
  ASSERT_TRUE(remote.ok()) << remote.status();
  EXPECT_EQ((*remote)->address()[5], std::byte{9});
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
