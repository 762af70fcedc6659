#include "mp_server/kv_events/event_encoder.h"

#include <gtest/gtest.h>

#include "common/object_key.h"

namespace ems::kv_events {
namespace {

std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<uint8_t>(byte));
  return text;
}

// As text: a is a string of msgpack up to 31 bytes.
std::string Str(std::string_view text) {
  return fmt::format("{:02x}", 0xa0 | text.size()) + Hex(text);
}

constexpr BlockEvent kStored{Hash128{0x0102030405060708, 0x1112131415161718}, Medium::kDram, true};
constexpr BlockEvent kGone{Hash128{9, 10}, Medium::kSsd, false};
constexpr std::string_view kTs = "cb3ff8000000000000";  // 1.5
constexpr std::string_view kHash = "c41011121314151617180102030405060708";

// Golden: what any msgpack reads, written out by its specification.
TEST(EventEncoderTest, Arrays) {
  const EventEncoder encoder({Encoding::kArrays, HashForm::kBytes, 128});
  const std::vector<BlockEvent> events{kStored, kGone};
  EXPECT_EQ(Hex(encoder.Batch(1.5, true, events)),
            fmt::format("93{}93", kTs) + "91" + Str("AllBlocksCleared") +  //
                "98" + Str("BlockStored") + fmt::format("91{}", kHash) +   // hashes
                "c0" + "90" + "cc80" + "c0" + Str("EMS_DRAM") + "c0" +     //
                "93" + Str("BlockRemoved") + "91" +
                "c4100000000000000"
                "00a"
                "0000000000000009" +
                Str("EMS_SSD") + "c0");
}

// The batch stays an array: vLLM's own struct decodes nothing else.
TEST(EventEncoderTest, MapsInAnArray) {
  const EventEncoder encoder({Encoding::kMaps, HashForm::kBytes, 0});
  EXPECT_EQ(Hex(encoder.Batch(1.5, false, std::vector<BlockEvent>{kStored})),
            fmt::format("93{}91", kTs) +  //
                "88" + Str("type") + Str("BlockStored") + Str("block_hashes") +
                fmt::format("91{}", kHash) + Str("parent_block_hash") + "c0" + Str("token_ids") +
                "90" + Str("block_size") + "00" + Str("lora_id") + "c0" + Str("medium") +
                Str("EMS_DRAM") + Str("lora_name") + "c0" + "c0");
  EXPECT_EQ(Hex(encoder.Batch(1.5, true, std::vector<BlockEvent>{kGone})),
            fmt::format("93{}92", kTs) +                        //
                "81" + Str("type") + Str("AllBlocksCleared") +  //
                "83" + Str("type") + Str("BlockRemoved") + Str("block_hashes") +
                "91c410000000000000000a0000000000000009" + Str("medium") + Str("EMS_SSD") + "c0");
}

TEST(EventEncoderTest, NumbersAreTheLastEightBytes) {
  const EventEncoder encoder({Encoding::kArrays, HashForm::kNumber, 0});
  const std::string batch = Hex(encoder.Batch(1.5, false, std::vector<BlockEvent>{kStored}));
  EXPECT_NE(batch.find("91cf0102030405060708c090"), std::string::npos) << batch;
}

TEST(EventEncoderTest, AnEmptyBatchHasNoEvents) {
  EXPECT_EQ(Hex(EventEncoder({}).Batch(1.5, false, {})), fmt::format("93{}90c0", kTs));
}

// Neighbours of one kind and medium share an event; their order against others stays.
TEST(EventEncoderTest, RunsShareAnEventAndKeepTheirOrder) {
  const BlockEvent ssd{kStored.hash, Medium::kSsd, true};
  const std::vector<BlockEvent> events{kStored, kStored, ssd, kGone, kGone, kGone, kStored};
  const std::string batch = EventEncoder({}).Batch(1.5, false, events);
  EXPECT_EQ(batch[10], '\x94');  // four events
  const size_t dram = batch.find("EMS_DRAM"), on_ssd = batch.find("EMS_SSD");
  const size_t removed = batch.find("BlockRemoved"), again = batch.rfind("BlockStored");
  EXPECT_LT(dram, on_ssd);
  EXPECT_LT(on_ssd, removed);
  EXPECT_LT(removed, again);
}

// What a router computes: XXH3-128 of the key as xxhsum prints it (golden, from xxhash 0.8).
TEST(EventEncoderTest, TheHashOfAKeyIsWhatOthersComputeForIt) {
  const BlockEvent event{KeyHash("block-1"), Medium::kDram, true};
  const std::string batch = EventEncoder({}).Batch(1.5, false, std::vector<BlockEvent>{event});
  EXPECT_NE(Hex(batch).find("c410"
                            "f3c81bd9a6862cce0a5caa70d213b7ab"),
            std::string::npos);
}

}  // namespace
}  // namespace ems::kv_events
