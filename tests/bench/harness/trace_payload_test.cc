#include "bench/harness/trace_payload.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace ems::bench {
namespace {

std::vector<std::byte> Block(uint64_t id, size_t bytes) {
  std::vector<std::byte> block(bytes);
  FillBlock(id, block);
  return block;
}

TEST(TracePayloadTest, ABlockVerifiesAtAnyLength) {
  for (const size_t bytes : {0u, 1u, 7u, 8u, 9u, 4096u, 4099u})
    EXPECT_EQ(CountWrongBytes(42, Block(42, bytes)), 0u) << bytes;
}

TEST(TracePayloadTest, EveryFlippedBitIsSeen) {
  auto block = Block(7, 37);
  for (size_t bit = 0; bit < block.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1u << (bit % 8));
    block[bit / 8] ^= mask;
    EXPECT_EQ(CountWrongBytes(7, block), 1u) << bit;
    block[bit / 8] ^= mask;
  }
}

TEST(TracePayloadTest, CountsEachWrongByte) {
  auto block = Block(7, 1003);
  for (const size_t at : {0u, 8u, 9u, 500u, 1001u, 1002u}) block[at] ^= std::byte{0x80};
  EXPECT_EQ(CountWrongBytes(7, block), 6u);
}

TEST(TracePayloadTest, SpoiltValuesAreWrongInEveryPage) {
  for (const size_t value_bytes : {5u, 64u, 4096u, 10'000u}) {
    std::vector<std::byte> values(3 * value_bytes);
    const auto value = [&](size_t i) {
      return std::span(values).subspan(i * value_bytes, value_bytes);
    };
    for (size_t i = 0; i < 3; ++i) FillBlock(i, value(i));
    Spoil(values, value_bytes);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_GE(CountWrongBytes(i, value(i)), (value_bytes + 4095) / 4096);
  }
}

TEST(TracePayloadTest, BytesBelongToOneBlockAndOnePlace) {
  const auto one = Block(1, 4096);
  EXPECT_GT(CountWrongBytes(2, one), 4000u);
  EXPECT_GT(CountWrongBytes(0, std::vector<std::byte>(4096)), 4000u);
  // Shifted by one word, so what sits at an offset must come from that offset.
  EXPECT_GT(CountWrongBytes(1, std::span(one).subspan(8)), 4000u);
  std::set<std::string> starts;
  for (uint64_t id = 0; id < 10'000; ++id) starts.insert(std::string(AsText(Block(id, 8))));
  EXPECT_EQ(starts.size(), 10'000u);
}

}  // namespace
}  // namespace ems::bench
