// What must hold: each number finds its own memory or none, while others come and go.
#include "mp_sdk/internal/memory_map.h"

#include <gtest/gtest.h>

#include <random>
#include <unordered_map>
#include <vector>

#include "tests/support/pool_image.h"

namespace ems::internal {
namespace {

TEST(MemoryMapTest, FindsWhatWasInsertedAndNotErased) {
  MemoryMap map;
  const testing::PlainMemory a({}), b({});
  EXPECT_EQ(map.Find(0), nullptr);
  (void)map.Insert(0, &a);
  (void)map.Insert(64, &b);
  EXPECT_EQ(map.Find(0), &a);
  EXPECT_EQ(map.Find(64), &b);
  EXPECT_EQ(map.Find(1), nullptr);
  map.Erase(0);
  map.Erase(1);
  EXPECT_EQ(map.Find(0), nullptr);
  (void)map.Insert(0, &b);
  EXPECT_EQ(map.Find(0), &b);
  EXPECT_EQ(map.size(), 2U);
}

TEST(MemoryMapTest, SurvivesManyThatComeAndGo) {
  const uint64_t seed = 3;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  MemoryMap map;
  const std::vector<testing::PlainMemory> memories(16, testing::PlainMemory({}));
  std::unordered_map<uint64_t, const fabric::RemoteMemory*> expected;
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t id = random() % 2 == 0 ? random() % 400 : static_cast<uint64_t>(i);
    if (expected.contains(id)) {
      map.Erase(id);
      expected.erase(id);
    } else if (expected.size() < 300) {
      const fabric::RemoteMemory* memory = &memories[random() % memories.size()];
      (void)map.Insert(id, memory);
      expected[id] = memory;
    }
    ASSERT_EQ(map.size(), expected.size());
    const uint64_t other = random() % 400;
    const auto found = expected.find(other);
    ASSERT_EQ(map.Find(other), found == expected.end() ? nullptr : found->second);
  }
  for (const auto& [id, memory] : expected) EXPECT_EQ(map.Find(id), memory);
}

}  // namespace
}  // namespace ems::internal
