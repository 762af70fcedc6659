#include "proto/object_header.h"

#include <gtest/gtest.h>

namespace ems::shm {
namespace {

TEST(ObjectHeaderTest, ChecksumCoversEverythingButTheState) {
  ObjectHeader header;
  header.payload_bytes = 12345;
  const uint32_t sum = HeaderChecksum(header);
  header.state_generation.store(StateWord(9, ChunkState::kValid));
  EXPECT_EQ(HeaderChecksum(header), sum);
  auto* bytes = reinterpret_cast<unsigned char*>(&header);
  for (size_t at = 0; at < 120; ++at) {
    if (at >= 8 && at < 16) continue;  // the state
    bytes[at] ^= 1;
    EXPECT_NE(HeaderChecksum(header), sum) << "byte " << at;
    bytes[at] ^= 1;
  }
  EXPECT_EQ(HeaderChecksum(header), sum);
}

TEST(ObjectHeaderTest, StateWordKeepsGenerationAndStateApart) {
  EXPECT_EQ(StateWord(1, ChunkState::kFree), 256u);
  EXPECT_EQ(StateWord(1, ChunkState::kValid) & 0xff, 2u);
  EXPECT_EQ(StateWord((uint64_t{1} << 56) - 1, ChunkState::kQuarantine) >> 8,
            (uint64_t{1} << 56) - 1);
}

}  // namespace
}  // namespace ems::shm
