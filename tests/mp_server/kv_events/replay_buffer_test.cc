#include "mp_server/kv_events/replay_buffer.h"

#include <gtest/gtest.h>

namespace ems::kv_events {
namespace {

Payload Text(std::string text) { return std::make_shared<const std::string>(std::move(text)); }

TEST(ReplayBufferTest, KeepsTheLastBatches) {
  ReplayBuffer buffer(3, 1000);
  for (uint64_t i = 0; i < 5; ++i) buffer.Add(100 + i, Text(std::to_string(i)));
  EXPECT_EQ(buffer.first(), 102u);
  EXPECT_EQ(buffer.next(), 105u);
  EXPECT_EQ(*buffer.At(102), "2");
  EXPECT_EQ(*buffer.At(104), "4");
}

TEST(ReplayBufferTest, KeepsSoManyBytesAndAlwaysTheLastBatch) {
  ReplayBuffer buffer(100, 10);
  buffer.Add(1, Text("1234"));
  buffer.Add(2, Text("5678"));
  EXPECT_EQ(buffer.first(), 1u);
  buffer.Add(3, Text("90a"));
  EXPECT_EQ(buffer.first(), 2u);
  EXPECT_EQ(buffer.bytes(), 7u);
  buffer.Add(4, Text(std::string(50, 'x')));
  EXPECT_EQ(buffer.first(), 4u);
  EXPECT_EQ(buffer.bytes(), 50u);
}

TEST(ReplayBufferTest, ANumberThatIsLeftOutEmptiesIt) {
  ReplayBuffer buffer(10, 1000);
  buffer.Add(1, Text("a"));
  buffer.Add(2, Text("b"));
  buffer.Add(4, Text("d"));
  EXPECT_EQ(buffer.first(), 4u);
  EXPECT_EQ(buffer.next(), 5u);
  EXPECT_EQ(*buffer.At(4), "d");
  EXPECT_EQ(buffer.bytes(), 1u);
}

TEST(ReplayBufferDeathTest, NumbersNeverGoBack) {
  ReplayBuffer buffer(10, 1000);
  buffer.Add(5, Text("a"));
  EXPECT_DEATH(buffer.Add(5, Text("b")), "batch 5 after 6");
}

}  // namespace
}  // namespace ems::kv_events
